"""Several people on one server: each has a folder and a sandbox, and sees nothing of the others."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from bargein import Agent, Engine
from bargein.cli.people import agent_for_person, closed_in, describe, make_folder, place_of
from bargein.contracts.permission import PermissionMode
from bargein.models.scripted import ScriptedModel
from bargein.process import SandboxReport
from bargein.runtime.config import load_config, user_file
from tests.sandbox.test_command_sandbox import Made, outside, result_of  # noqa: F401 - a fixture
from tests.tools.desk import text_of

pytestmark = pytest.mark.anyio


OF_THE_OPERATOR = """
[tools]
environment_allowed = ["OF_THE_OPERATOR_TOKEN"]
[sandbox]
hosts = ["127.0.0.1:1"]
"""


@asynccontextmanager
async def opened(folder: Path, *calls: Made) -> AsyncIterator[Engine]:
    """An engine as `bargein serve` opens it for alice and bob, whose sessions begin with their
    names. Each makes these calls, one a turn."""
    answers = "".join(
        f"[[answers]]\nsteps = [{{ do = 'call', name = '{name}', arguments = {_toml(given)} }}]\n"
        "[[answers]]\nsteps = [{ do = 'say', text = 'Done.' }]\n"
        for name, given in calls
    )
    (folder / "script.toml").write_text(answers)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "BARGEIN_HOME": str(folder / "data"),
        "BARGEIN_MODEL": f"scripted:{folder / 'script.toml'}",
        "OF_THE_OPERATOR_TOKEN": "given to the operator's own commands",
    }
    settings = user_file(environment)
    settings.parent.mkdir(parents=True)
    settings.write_text(OF_THE_OPERATOR)
    config = load_config(environment, folder=folder / "work")
    (folder / "data").mkdir()
    make_folder(config.home)

    def owner(session: str) -> str:
        return session.partition("-")[0]

    async with Engine(
        Agent(ScriptedModel.from_file(folder / "script.toml")),
        store="memory",
        config=config,
        principal_of=owner,
        agent_of=partial(agent_for_person, config),
        place_of=lambda session: place_of(config.home, owner(session)),
    ) as engine:
        report = await engine.sandbox_for(closed_in(config))
        if report is None or not report.holds:
            pytest.skip("no sandbox here")
        yield engine


def _toml(given: dict[str, object]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items()) + " }"


async def test_each_has_a_folder_and_sees_nothing_of_the_other(outside: Path) -> None:  # noqa: F811
    (outside / "home/of-the-operator").write_text("private")
    look = (
        "echo $USER_SECRET mine > mine; cat mine; pwd; ls -A ..; cat ../*/mine | wc -l; "
        f"cat {outside}/home/of-the-operator; ls -A {outside}/data; echo $HOME; "
        "python3 -c 'print(6 * 7)'"
    )
    async with opened(outside, ("terminal", {"command": look})) as engine:
        for name in ("alice", "bob"):
            said = text_of(await result_of(await engine.session(f"{name}-1")))
            own = outside / "data/people" / name
            lines = said.splitlines()
            assert lines[:5] == ["mine", str(own), name, "1", lines[4]]
            assert "private" not in said
            assert str(own) in lines[lines.index("people") + 1]
            assert "42" in lines
            assert (own / "mine").read_text() == "mine\n"


async def test_nobody_can_allow_a_command_to_leave(outside: Path) -> None:  # noqa: F811
    leave = f"echo out > {outside}/out; echo done"
    calls: list[Made] = [
        ("terminal", {"command": leave, "outside": True}),
        ("terminal", {"command": leave}),
    ]
    async with opened(outside, *calls) as engine:
        session = await engine.session("alice-1")
        await session.set_mode(PermissionMode.FULL)
        refused = await result_of(session)
        assert "outside" in text_of(refused)
        said = text_of(await result_of(session))
        assert "done" in said
        assert "outside=true" not in said
    assert not (outside / "out").exists()


async def test_what_the_operators_own_commands_get_is_not_for_others(
    outside: Path,  # noqa: F811
) -> None:
    connect = 'import socket; socket.create_connection(("127.0.0.1", 3128), 5)'
    look = f"echo [$OF_THE_OPERATOR_TOKEN$http_proxy]; python3 -c '{connect}' 2>&1 | tail -1"
    async with opened(outside, ("terminal", {"command": look})) as engine:
        said = text_of(await result_of(await engine.session("alice-1"))).splitlines()
        assert said[0] == "[]"
        assert "Connection refused" in said[1]


async def test_files_of_others_are_out_of_reach_too(outside: Path) -> None:  # noqa: F811
    calls: list[Made] = [
        ("read_file", {"path": "../bob/secret"}),
        ("write_file", {"path": "note", "content": "mine"}),
    ]
    async with opened(outside, *calls) as engine:
        (outside / "data/people/bob").mkdir()
        (outside / "data/people/bob/secret").write_text("private")
        session = await engine.session("alice-1")
        assert "private" not in text_of(await result_of(session))
        await result_of(session)
    assert (outside / "data/people/alice/note").read_text() == "mine"


def test_names_become_folders_that_cannot_meet(tmp_path: Path) -> None:
    names = ["alice", "../bob", "a/b", ".", "..", "x-61", "a", "Ä", "alice@example.com"]
    names += ["日" * 99 + "1", "日" * 99 + "2", "a" * 100, "a" * 99, ""]
    places = [place_of(tmp_path, name) for name in names]
    assert places.pop() is None
    folders = [Path(place.workspace) for place in places if place is not None]
    assert len(set(folders)) == len(names) - 1
    assert all(folder.parent == tmp_path / "people" and folder.name for folder in folders)


def test_where_no_sandbox_holds_the_operator_learns_it() -> None:
    assert "no sandbox holds (EPERM)" in describe(SandboxReport("Landlock", "none", "EPERM"), 2)
    assert "a sandbox of its own" in describe(SandboxReport("namespaces", "none"), 3)
