"""Staged turns through the whole engine: real commands in real namespaces, as root and as an
ordinary user."""

# ruff: noqa: ASYNC221  (that a test touches files holds nobody up)

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bargein import Agent, Engine
from bargein.contracts.event import StageAccepted, StageDiscarded
from bargein.contracts.place import SessionPlace
from bargein.contracts.stage import StagedFiles
from bargein.errors import BargeinError, UserError
from bargein.runtime.config import load_config
from bargein.session.sending import Busy, TooLate, TurnFailed
from bargein.session.session import Session
from tests.process.ordinary_user import NOBODY, as_ordinary_user
from tests.sandbox.holds import sandbox_here
from tests.sandbox.test_command_sandbox import Made, outside, result_of, script  # noqa: F401
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("_sandbox")]
ROOT = os.geteuid() == 0


@pytest.fixture
def _sandbox() -> None:
    if not sandbox_here().holds:
        pytest.skip(f"no sandbox here: {sandbox_here().detail}")


@asynccontextmanager
async def staging(folder: Path, *calls: Made, **variables: str) -> AsyncIterator[Engine]:
    """An engine whose sessions are staged, and whose model makes these calls, one a turn."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "BARGEIN_HOME": str(folder / "data"),
        "BARGEIN_SANDBOX_STAGED": "on",
        **variables,
    }
    config = load_config(environment, folder=folder / "work")
    agent = Agent(script(*calls), workspace=folder / "work", mode="full")
    async with Engine(agent, config=config) as engine:
        yield engine


def shell(command: str) -> Made:
    return "terminal", {"command": command}


async def staged_in(session: Session) -> StagedFiles:
    found = await session.staged()
    assert found is not None, "no sandbox here, or the session is not staged"
    return found


def named(files: StagedFiles) -> dict[str, str]:
    return {each.path: f"{each.fate}{each.why and ': '}{each.why}" for each in files.files}


async def test_commands_and_edits_change_the_stage_and_an_acceptance_the_workspace(
    outside: Path,  # noqa: F811
) -> None:
    work = outside / "work"
    (work / "old").write_text("old\n")
    (work / "gone").write_text("gone\n")
    command = f"pwd; echo new > old; rm gone; mkdir deep; echo n > {work}/deep/n; ls"
    calls: list[Made] = [
        shell(command),
        ("read_file", {"path": str(work / "old")}),
        ("write_file", {"path": "deep/w", "content": "w"}),
        ("search_files", {"pattern": "^n", "path": str(work / "deep")}),
        ("python", {"code": "print(open('deep/w').read() + '!')"}),
    ]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        lines = text_of(await result_of(session)).splitlines()
        assert lines[:3] == [str(work), "deep", "old"]
        assert text_of(await result_of(session)) == "new\n"
        await result_of(session)
        assert "deep/n:1" in text_of(await result_of(session))
        assert text_of(await result_of(session)).startswith("w!")
        assert (work / "old").read_text() == "old\n"
        assert sorted(os.listdir(work)) == ["gone", "old"]
        staged = await staged_in(session)
        everything = {"old": "changed", "gone": "removed", "deep/n": "added", "deep/w": "added"}
        assert named(staged) == everything
        assert "-old\n+new\n" in staged.diff
        part = await session.accept_staged(["deep/"])
        assert named(part) == {"deep/n": "added", "deep/w": "added"}
        assert sorted(os.listdir(work)) == ["deep", "gone", "old"]
        assert named(await staged_in(session)) == {"old": "changed", "gone": "removed"}
        await session.accept_staged()
        assert sorted(os.listdir(work)) == ["deep", "old"]
        assert (work / "old").read_text() == "new\n"
        assert named(await staged_in(session)) == {}
        events = [each.event for each in await session.events()]
        told = [each for each in events if isinstance(each, StageAccepted)]
        assert [sorted(named(each.files)) for each in told] == [
            ["deep/n", "deep/w"],
            ["gone", "old"],
        ]
        with pytest.raises(BargeinError, match="nothing is staged at old"):
            await session.accept_staged(["old"])


async def test_what_the_user_changed_meanwhile_is_kept_and_named(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    for name in ("both", "theirs", "mine"):
        (work / name).write_text("first\n")
    calls = [shell("echo staged > both; echo staged > theirs"), shell("cat mine both")]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        await result_of(session)
        (work / "both").write_text("users\n")
        (work / "mine").write_text("users\n")
        # The next turn sees what the user changed, and what the session did.
        assert text_of(await result_of(session)).startswith("users\nstaged\n")
        done = await session.accept_staged()
        assert named(done) == {"theirs": "changed", "both": "kept: changed since"}
        assert (work / "both").read_text() == "users\n"
        assert named(await staged_in(session)) == {"both": "kept: changed since"}
        await session.accept_staged(["both"], overrule=["both"])
        assert (work / "both").read_text() == "staged\n"
        assert (work / "mine").read_text() == "users\n"


async def test_an_acceptance_can_be_taken_back_and_is_staged_again(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    (work / "a").write_text("first\n")
    async with staging(outside, shell("echo staged > a; echo b > b")) as engine:
        session = await engine.session("s1")
        await result_of(session)
        with pytest.raises(TooLate, match="no acceptance"):
            await session.undo_accept()
        await session.accept_staged()
        (work / "b").write_text("users\n")
        back = await session.undo_accept()
        assert named(back) == {"a": "changed", "b": "kept: changed since"}
        assert (work / "a").read_text() == "first\n"
        assert (work / "b").read_text() == "users\n"
        assert named(await staged_in(session))["a"] == "changed"
        with pytest.raises(TooLate, match="no acceptance"):
            await session.undo_accept()
        await session.accept_staged()
        assert (work / "a").read_text() == "staged\n"


async def test_discarding_brings_the_stage_back_to_the_workspace(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    (work / ".gitignore").write_text("ignored\n")
    (work / "a").write_text("first\n")
    calls = [
        shell("echo staged > a; echo b > b; echo i > ignored"),
        shell("cat a; ls"),
        shell("ls"),
    ]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        await result_of(session)
        files = named(await staged_in(session))
        assert files["ignored"] == "kept: not covered by snapshots"
        await session.discard_staged(["a"])
        said = text_of(await result_of(session))
        assert said.splitlines()[:4] == ["first", "a", "b", "ignored"]
        await session.discard_staged()
        assert text_of(await result_of(session)).splitlines()[0] == "a"
        assert named(await staged_in(session)) == {}
        events = [each.event for each in await session.events()]
        assert len([each for each in events if isinstance(each, StageDiscarded)]) == 2
        assert (work / "a").read_text() == "first\n"


async def test_a_restart_keeps_the_stage_and_ending_it_needs_a_decision(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    (work / "a").write_text("first\n")
    async with staging(outside, shell("echo staged > a")) as engine:
        await result_of(await engine.session("s1"))
    calls = [shell("cat a"), shell("echo real > a"), shell("cat a; echo again > a")]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        assert text_of(await result_of(session)).startswith("staged\n")
        with pytest.raises(UserError, match=r"1 changes? .*staged \(a\); accept or discard"):
            await session.set_staged(False)
        await session.discard_staged()
        await session.set_staged(False)
        assert [os.listdir(each) for each in (outside / "data/stages").glob("*/tree")] == [[]]
        await result_of(session)
        assert (work / "a").read_text() == "real\n"
        with pytest.raises(UserError, match="not staged"):
            await session.accept_staged()
        await session.set_staged()
        assert text_of(await result_of(session)).startswith("real\n")
        assert named(await staged_in(session)) == {"a": "changed"}
        assert (work / "a").read_text() == "real\n"


async def test_an_undo_of_a_turn_changes_the_stage_alone(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    (work / "a").write_text("first\n")
    calls = [shell("echo one > a"), shell("echo two > a")]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        await result_of(session)
        await result_of(session)
        await session.undo()
        await session.accept_staged()
        assert (work / "a").read_text() == "one\n"
        await session.undo()
        assert (work / "a").read_text() == "one\n"
        assert "-one\n+first\n" in (await staged_in(session)).diff


async def test_git_reads_the_repository_and_cannot_change_it(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(work)]
    subprocess.run([*git, "init", "-q"], check=True)
    (work / "a").write_text("first\n")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    calls = [shell("echo staged > a; git status --short"), shell("git add a; touch .git/x")]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        assert text_of(await result_of(session)).startswith(" M a\n")
        assert text_of(await result_of(session)).count("Read-only file system") == 2
        assert named(await staged_in(session)) == {"a": "changed"}
    assert not (work / ".git/x").exists()


async def test_nothing_is_accepted_while_a_command_still_writes(outside: Path) -> None:  # noqa: F811
    background: Made = ("terminal", {"command": "echo a > a; sleep 60", "background": True})
    async with staging(outside, background) as engine:
        session = await engine.session("s1")
        await (await session.send("go")).result()
        for asked in (session.accept_staged, session.discard_staged):
            with pytest.raises(Busy, match="runs in the background"):
                await asked()
        stages = outside / "data/stages"
        await until(lambda: [each for each in stages.glob("*/tree/a") if each.read_text()])
        await session.interrupt(scope="session")
        await session.accept_staged()
        assert (outside / "work/a").read_text() == "a\n"


async def test_no_command_leaves_the_sandbox_of_a_stage(outside: Path) -> None:  # noqa: F811
    work = outside / "work"
    leave: Made = ("terminal", {"command": "echo out > out", "outside": True})
    stage = outside / "data/stages"
    calls = [leave, shell(f"ls -A {stage.parent} | wc -l; echo x > {work}/../y"), shell("cat /y")]
    async with staging(outside, *calls) as engine:
        session = await engine.session("s1")
        assert "outside" in text_of(await result_of(session))
        said = text_of(await result_of(session))
        assert said.startswith("0\n")
        assert "Read-only file system" in said
    assert os.listdir(work) == []


async def test_a_workspace_that_is_too_large_is_refused_with_the_setting(outside: Path) -> None:  # noqa: F811
    (outside / "work/large").write_bytes(b"x" * (2 << 20))
    off = {"BARGEIN_SANDBOX_STAGED": "off", "BARGEIN_SANDBOX_STAGE_MEGABYTES_MAX": "1"}
    async with staging(outside, **off) as engine:
        session = await engine.session("s1")
        assert await session.staged() is None
        with pytest.raises(BargeinError, match=r"sandbox\.stage_megabytes_max"):
            await session.set_staged()
        assert await session.staged() is None
        (outside / "work/large").unlink()
        await session.set_staged()
        assert await session.place() == SessionPlace("", staged=True)
        assert named(await staged_in(session)) == {}


async def test_without_snapshots_a_staged_turn_fails_and_says_why(outside: Path) -> None:  # noqa: F811
    async with staging(outside, shell("echo a > a"), BARGEIN_CHECKPOINTS_ENABLED="0") as engine:
        sent = await (await engine.session("s1")).send("go")
        with pytest.raises(TurnFailed, match=r"set checkpoints\.enabled to true"):
            await sent.result()
    assert os.listdir(outside / "work") == []


NO_SANDBOX = "no sandbox"
PROGRAM = """
import sys
from pathlib import Path
import anyio
from tests.sandbox.test_staged import accept_all
anyio.run(accept_all, Path(sys.argv[1]))
"""


async def accept_all(folder: Path) -> None:
    """Run by an ordinary user."""
    if not sandbox_here().holds:
        sys.stdout.write(NO_SANDBOX)
        return
    work = folder / "work"
    (work / "locked").mkdir()
    (work / "locked/file").write_text("first\n")
    (work / "locked").chmod(0o555)
    (work / "file").write_text("first\n")
    command = (
        "id -u; cat locked/file; echo staged > file; > new; "
        "head -c 3000000 /dev/zero > /tmp/x || stat -c %s /tmp/x"
    )
    async with staging(folder, shell(command), BARGEIN_LIMITS_TMP_MEGABYTES="1") as engine:
        session = await engine.session("s1")
        said = text_of(await result_of(session))
        assert (work / "file").read_text() == "first\n", said
        assert "No space left on device" in said
        assert "1048576" in said
        shown = [str(said.splitlines()[:2])]
        await session.discard_staged(["new"])
        shown.append(
            f"{named(await session.accept_staged())} {(work / 'file').read_text().strip()}"
        )
        await session.discard_staged()
        await session.set_staged(False)
        left = [os.listdir(each) for each in (folder / "data/stages").glob("*/tree")]
        shown.append(f"{sorted(os.listdir(work))} {left}")
        sys.stdout.write("\n".join(shown))


@pytest.mark.skipif(not ROOT, reason="the other tests run as an ordinary user then")
async def test_an_ordinary_user_stages_too(outside: Path) -> None:  # noqa: F811
    for each in (outside, outside / "work", outside / "home"):
        os.chown(each, NOBODY, NOBODY)
    command = [*as_ordinary_user(), sys.executable, "-c", PROGRAM, str(outside)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stderr
    if ran.stdout == NO_SANDBOX:
        pytest.skip("no sandbox here for an ordinary user")
    assert ran.stdout.splitlines() == [
        f"['{NOBODY}', 'first']",
        "{'file': 'changed'} staged",
        "['file', 'locked'] [[]]",
    ]
