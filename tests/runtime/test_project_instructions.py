"""AGENTS.md: which files count, what is read of them, and that reading them holds nobody up."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import anyio
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.models.script import Answer, Expect, Say
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime import project_instructions
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from bargein.runtime.project_instructions import HANGS, ProjectInstructions, ReadFile, look_at
from tests.session.world import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A home with a repository in it, and a workspace two folders down."""
    workspace = tmp_path / "home" / "repository" / "part" / "deeper"
    workspace.mkdir(parents=True)
    (tmp_path / "home" / "repository" / ".git").mkdir()
    return workspace


def write(folder: Path, text: str) -> Path:
    path = folder / "AGENTS.md"
    path.write_text(text)
    return path


async def read(project: ProjectInstructions) -> str:
    with CancelSource("turn") as source:
        return await project(source.token)


async def test_from_the_root_of_the_repository_down_the_nearest_last(repository: Path) -> None:
    root = repository.parents[1]
    write(root.parent, "of the home")
    write(root, "of the repository")
    write(repository, "of the workspace")
    text = await read(ProjectInstructions(repository, root.parent))
    assert text.index("of the repository") < text.index("of the workspace")
    assert "of the home" not in text
    assert str(root / "AGENTS.md") in text


async def test_without_a_repository_up_to_the_home(tmp_path: Path) -> None:
    workspace = tmp_path / "home" / "notes"
    workspace.mkdir(parents=True)
    write(tmp_path, "of everybody")
    write(tmp_path / "home", "of the home")
    text = await read(ProjectInstructions(workspace, tmp_path / "home"))
    assert "of the home" in text
    assert "of everybody" not in text


async def test_outside_of_both_only_the_workspace_counts(tmp_path: Path) -> None:
    workspace = tmp_path / "shared" / "here"
    workspace.mkdir(parents=True)
    write(tmp_path / "shared", "planted")
    project = ProjectInstructions(workspace, tmp_path / "home")
    assert await read(project) == ""
    write(workspace, "mine")
    assert "mine" in await read(project)


async def test_what_has_changed_is_read_again_and_nothing_else(repository: Path) -> None:
    looked: list[bool] = []

    def look(
        path: Path, top: Path, before: ReadFile | None, bytes_max: int
    ) -> ReadFile | str | None:
        seen = look_at(path, top, before, bytes_max)
        if isinstance(seen, ReadFile):
            looked.append(seen is before)
        return seen

    path = write(repository, "first")
    project = ProjectInstructions(repository, None, look=look)
    assert "first" in await read(project)
    assert "first" in await read(project)
    path.write_text("second, longer")
    assert "second, longer" in await read(project)
    path.unlink()
    assert await read(project) == ""
    assert looked == [False, True, False]


async def test_there_is_a_bound_and_the_nearest_is_cut_last(repository: Path) -> None:
    write(repository.parents[1], "far " * 100)
    write(repository, "near " * 15)
    text = await read(ProjectInstructions(repository, None, bytes_max=100))
    assert text.count("near ") >= 14
    assert text.count("far ") < 10
    assert "is cut here: it has 400 bytes" in text
    write(repository, "ü" * 100)
    text = await read(ProjectInstructions(repository, None, bytes_max=51))
    assert "ü" * 25 in text
    assert "�" not in text.replace("�\n", "")


async def test_a_pipe_is_not_opened(repository: Path) -> None:
    os.mkfifo(repository / "AGENTS.md")
    with anyio.fail_after(5):
        text = await read(ProjectInstructions(repository, None))
    assert "not an ordinary file" in text


async def test_what_leads_out_of_the_project_is_not_read(repository: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    (repository / "AGENTS.md").symlink_to(secret)
    text = await read(ProjectInstructions(repository, None))
    assert "hunter2" not in text
    assert "leads out of the project" in text
    (repository / "AGENTS.md").unlink()
    (repository / "NOTES.md").write_text("inside")
    (repository / "AGENTS.md").symlink_to("NOTES.md")
    assert "inside" in await read(ProjectInstructions(repository, None))


async def test_what_cannot_be_read_is_said(repository: Path) -> None:
    (repository / "AGENTS.md").mkdir()
    assert "not an ordinary file" in await read(ProjectInstructions(repository, None))
    (repository / "AGENTS.md").rmdir()
    (repository / "AGENTS.md").symlink_to("AGENTS.md")
    text = await read(ProjectInstructions(repository, None))
    assert "cannot be read" in text


class Hanging:
    """A file system that does not answer until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self.looks = 0

    def __call__(
        self, path: Path, top: Path, before: ReadFile | None, bytes_max: int
    ) -> ReadFile | str | None:
        self.looks += 1
        self.reached.set()
        self.let_go.wait(30)
        return None


async def test_a_place_that_does_not_answer_costs_a_bounded_time_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_instructions, "READ_S", 0.05)
    hanging = Hanging()
    project = ProjectInstructions(repository, None, look=hanging)
    try:
        with anyio.fail_after(20):
            assert await read(project) == HANGS
        monkeypatch.setattr(project_instructions, "READ_S", 60)
        with anyio.fail_after(20):
            assert await read(project) == HANGS
        assert hanging.looks == 1
    finally:
        hanging.let_go.set()
    await until(lambda: project._hanging[0].over)
    assert await read(project) == ""


async def test_a_stop_ends_the_wait_for_such_a_place(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_instructions, "READ_S", 60)
    hanging = Hanging()
    project = ProjectInstructions(repository, None, look=hanging)
    source = CancelSource("turn")

    async def stop() -> None:
        await until(hanging.reached.is_set)
        source.cancel(Cause.USER_STOP)

    try:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(stop)
                with pytest.raises(Cancelled):
                    await project(source.token)
    finally:
        hanging.let_go.set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_agent_in_a_workspace_is_told(repository: Path, tmp_path: Path) -> None:
    write(repository, "Never use tabs.")
    config = Config(tmp_path / "unused", ModelSettings(), {"HOME": str(tmp_path / "home")})
    told = Answer([Expect(system="Never use tabs."), Say("No tabs.")])
    changed = Answer([Expect(system="Use tabs after all."), Say("Tabs.")])
    model = ScriptedModel([told, changed])
    agent = Agent(model=model, workspace=repository, instructions="Be brief.")
    async with Engine(agent, store="memory", config=config) as engine:
        session = await engine.session("alice")
        assert str(await (await session.send("hi")).result()) == "No tabs."
        assert model.requests[0].system.startswith("Be brief.\n\n")
        write(repository, "Use tabs after all.")
        assert str(await (await session.send("hi")).result()) == "Tabs."
