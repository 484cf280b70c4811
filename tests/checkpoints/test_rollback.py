"""A rollback puts files back, through the whole engine: real tools, processes, store and git."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
import pytest

from bargein import Agent, Engine
from bargein.checkpoints.keeper import Keeper
from bargein.contracts.checkpoint import CheckpointError, FilesUndone, Span
from bargein.contracts.event import (
    FilesChanged,
    FilesRolledBack,
    QueueHeld,
    TurnHidden,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.live import AnswerSoFar, CallOutput, OutputSoFar, TextDelta
from bargein.contracts.model import Text
from bargein.contracts.place import SessionPlace
from bargein.models.script import Pause, Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import load_config
from bargein.runtime.placed_agent import PlacedAgent
from bargein.session.sending import Busy
from bargein.session.session import Session, TooLate
from bargein.testing.engine_invariants import check_log
from tests.checkpoints.engines import engine_of, shell
from tests.session.world import SOON, WITHIN_S, wait_for

pytestmark = pytest.mark.anyio

Kind = TypeVar("Kind")
WORK = "echo theirs > kept.txt; echo new > made; mkdir deep; echo ready; sleep 60"


async def works(session: Session[str], words: str = "go") -> None:
    """Sends a message, and returns when a command of its turn says something."""
    await session.send(words)
    await shows(session, CallOutput, OutputSoFar)


async def shows(session: Session[str], *kinds: type[object]) -> None:
    with anyio.fail_after(WITHIN_S):
        async with aclosing(session.watch()) as events:
            async for event in events:
                if isinstance(event, kinds):
                    return


async def the(session: Session[str], kind: type[Kind]) -> list[Kind]:
    return [each.event for each in await session.events() if isinstance(each.event, kind)]


async def read_by_the_model(session: Session[str], turn: str) -> str:
    said = [each for each in await the(session, UserSaid) if each.turn == turn]
    parts = [part for each in said for part in each.content]
    return "\n".join(part.text for part in parts if isinstance(part, Text))


async def check(session: Session[str]) -> None:
    await session.settled()
    check_log(await session.events(), session.id).check_all_ran()


class HeldUndo:
    """Undos of a keeper begin when `goes` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.begun = anyio.Event()
        self.goes = anyio.Event()
        undo = Keeper.undo

        async def held(
            keeper: Keeper, spans: Sequence[Span], overrule: Sequence[str] = ()
        ) -> FilesUndone:
            self.count += 1
            self.begun.set()
            await self.goes.wait()
            return await undo(keeper, spans, overrule)

        monkeypatch.setattr(Keeper, "undo", held)


async def test_a_rollback_puts_the_files_back_before_its_message_is_answered(
    workspace: Path,
) -> None:
    script = [[shell(WORK)], [shell("cat kept.txt; ls")], [Say("done")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await works(session)
        sent = await session.send("otherwise", mode="rollback", sender="ann")
        assert (await sent.result()).outcome == "completed"
        assert (workspace / "kept.txt").read_text() == "mine\n"
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        log = [type(each.event) for each in await session.events()]
        settled, back = log.index(TurnSettled), log.index(FilesRolledBack)
        assert settled < back < len(log) - log[::-1].index(TurnStarted)
        (told,) = await the(session, FilesRolledBack)
        assert (told.turn, told.by, told.error) == ("t1", "ann", "")
        assert sorted(each.path for each in told.files.changed) == ["kept.txt", "made"]
        words = await read_by_the_model(session, "t2")
        assert "These files were put back: kept.txt, made." in words.splitlines()[0]
        assert words.endswith("otherwise")
        assert "was not undone" not in words.splitlines()[0]
        await check(session)


async def test_a_redo_takes_the_restore_of_a_rollback_back(workspace: Path) -> None:
    script = [[shell(WORK)], [Say("done")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await works(session)
        await (await session.send("otherwise", mode="rollback")).result()
        assert (workspace / "kept.txt").read_text() == "mine\n"
    async with engine_of(workspace, []) as engine:
        session = await engine.session("s")
        await session.redo()
        assert (workspace / "kept.txt").read_text() == "theirs\n"
        assert (workspace / "deep").is_dir()
        with pytest.raises(TooLate, match="no undo of files"):
            await session.redo()


async def test_a_rollback_keeps_and_names_what_somebody_changed_since(workspace: Path) -> None:
    script = [
        [shell("echo theirs > kept.txt; echo b > b")],
        [Say("well"), Pause(60)],
        [Say("done")],
    ]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await session.send("go")
        await wait_for(session, FilesChanged)
        await shows(session, TextDelta, AnswerSoFar)
        (workspace / "kept.txt").write_text("mine again\n")
        await (await session.send("otherwise", mode="rollback")).result()
        assert (workspace / "kept.txt").read_text() == "mine again\n"
        assert not (workspace / "b").exists()
        (told,) = await the(session, FilesRolledBack)
        assert [each.path for each in told.files.kept] == ["kept.txt"]
        assert "kept, because" in await read_by_the_model(session, "t2")
        await check(session)


async def test_a_stop_while_files_are_put_back_holds_the_message(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    async with engine_of(workspace, [[shell(WORK)], [Say("done")]]) as engine:
        session = await engine.session("s")
        await works(session)
        sent = await session.send("otherwise", mode="rollback")
        await undo.begun.wait()
        receipt = await session.interrupt()
        assert (receipt.status, receipt.held) == ("stopped", (sent.message,))
        assert (await session.interrupt(expected_turn="t1")).status == "too_late"
        undo.goes.set()
        await session.settled()
        assert (workspace / "kept.txt").read_text() == "mine\n"
        assert [each.turn for each in await the(session, TurnStarted)] == ["t1"]
        await check(session)
        await session.continue_()
        assert (await sent.result()).turn == "t2"
        assert "were put back" in await read_by_the_model(session, "t2")
        await check(session)


async def test_messages_wait_while_files_are_put_back(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    script = [[shell(WORK)], [Say("both")], [Say("later")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await works(session)
        first = await session.send("otherwise", mode="rollback")
        await undo.begun.wait()
        with pytest.raises(Busy, match="being put back"):
            await session.send("now or never", mode="reject")
        with pytest.raises(Busy):
            await session.compact()
        queued = await session.send("later", mode="queue")
        second = await session.send("and this", mode="rollback")
        assert (second.disposition, second.turn) == ("queued", None)
        undo.goes.set()
        assert (await first.result()).turn == (await second.result()).turn == "t2"
        assert (await queued.result()).turn == "t3"
        await check(session)


async def test_an_undo_while_files_are_put_back_holds_the_message_and_comes_after(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    script = [[shell("echo one > f")], [Say("1")], [shell(WORK)]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await (await session.send("first")).result()
        await works(session)
        await session.send("otherwise", mode="rollback")
        await undo.begun.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(session.undo)
            await wait_for(session, QueueHeld)
            undo.goes.set()
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        assert [each.turn for each in await the(session, TurnHidden)] == ["t1"]
        assert [each.turn for each in await the(session, TurnStarted)] == ["t1", "t2"]
        await check(session)


async def test_an_undo_that_fails_keeps_no_message_from_its_turn(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> FilesUndone:
        raise CheckpointError("the files cannot be written: No space left on device")

    monkeypatch.setattr(Keeper, "undo", full)
    async with engine_of(workspace, [[shell(WORK)], [Say("done")]]) as engine:
        session = await engine.session("s")
        await works(session)
        await (await session.send("otherwise", mode="rollback")).result()
        (told,) = await the(session, FilesRolledBack)
        assert "No space left" in told.error
        assert told.files == FilesUndone()
        words = await read_by_the_model(session, "t2")
        assert "could not be put back: the files cannot be written" in words
        with pytest.raises(TooLate):
            await session.redo()
        await check(session)


async def test_without_snapshots_a_rollback_leaves_files_and_says_so(workspace: Path) -> None:
    config = load_config({"BARGEIN_CHECKPOINTS_ENABLED": "0"})
    model = ScriptedModel([[shell(WORK)], [Say("done")]])
    agent = Agent(model, workspace=workspace, mode="full")
    async with Engine(agent, store="memory", config=config) as engine:
        session = await engine.session("s")
        await works(session)
        await (await session.send("otherwise", mode="rollback")).result()
        assert (workspace / "kept.txt").read_text() == "theirs\n"
        assert await the(session, FilesRolledBack) == []
        assert "What it did was not undone" in await read_by_the_model(session, "t2")
        await check(session)


async def test_a_rollback_when_no_turn_runs_touches_no_file(workspace: Path) -> None:
    script = [[shell("echo theirs > kept.txt")], [Say("done")], [Say("again")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await (await session.send("go")).result()
        await (await session.send("otherwise", mode="rollback")).result()
        assert (workspace / "kept.txt").read_text() == "theirs\n"
        assert await the(session, FilesRolledBack) == []
        await check(session)


async def test_a_turn_without_calls_is_rolled_back_without_an_undo(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    async with engine_of(workspace, [[Say("well"), Pause(60)], [Say("done")]]) as engine:
        session = await engine.session("s")
        await session.send("go")
        await shows(session, TextDelta, AnswerSoFar)
        await (await session.send("otherwise", mode="rollback")).result()
        assert not undo.begun.is_set()
        await check(session)


async def test_what_two_sessions_may_have_changed_is_kept(workspace: Path) -> None:
    script = [[shell("echo ready; sleep 60")], [shell(WORK)], [Say("done")]]
    async with engine_of(workspace, script) as engine:
        other, session = await engine.session("other"), await engine.session("s")
        await works(other)
        await works(session)
        await (await session.send("otherwise", mode="rollback")).result()
        assert (workspace / "kept.txt").read_text() == "theirs\n"
        (told,) = await the(session, FilesRolledBack)
        assert sorted(each.path for each in told.files.kept) == ["deep", "kept.txt", "made"]
        assert told.files.changed == ()
        assert "No file was put back." in await read_by_the_model(session, "t2")
        await other.interrupt()
        await check(session)


@pytest.mark.parametrize("moment", ["stopping", "before", "after"])
async def test_a_killed_program_puts_the_files_back_once_at_the_next_start(
    workspace: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    undo.goes.set()
    with anyio.fail_after(4 * WITHIN_S):
        program = [sys.executable, "-m", "tests.checkpoints.killed_rollback", str(workspace)]
        died = await anyio.run_process([*program, moment], check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert (workspace / "made").exists() == (moment != "after")
    async with engine_of(workspace, [[Say("done")]]) as engine:
        session = await engine.session("s")
        with anyio.fail_after(WITHIN_S):
            await session.settled()
        assert (workspace / "kept.txt").read_text() == "mine\n"
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        assert [each.turn for each in await the(session, TurnStarted)] == ["t1", "t2"]
        words = await read_by_the_model(session, "t2")
        as_before = "Its files are as they were" if moment == "after" else "were put back: "
        assert as_before in words
        assert words.endswith("otherwise")
        assert undo.count == 1
        await check(session)


async def test_the_end_of_the_program_keeps_the_message_and_the_restore(workspace: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        undo = HeldUndo(patch)
        async with engine_of(workspace, [[shell(WORK)]]) as engine:
            session = await engine.session("s")
            await works(session)
            await session.send("otherwise", mode="rollback")
            await undo.begun.wait()
    assert (workspace / "made").exists()
    async with engine_of(workspace, [[Say("done")]]) as engine:
        session = await engine.session("s")
        await session.settled()
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        assert (await the(session, TurnSettled))[-1].outcome == "completed"
        await check(session)


async def test_a_restore_that_hangs_does_not_hold_up_the_end_of_the_program(
    workspace: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        exchange = Keeper._exchange
        hangs = anyio.Event()

        async def hang(keeper: Keeper, line: bytes) -> bytes:
            if b'"do": "undo"' in line:
                hangs.set()
                await anyio.sleep_forever()
            return await exchange(keeper, line)

        patch.setattr(Keeper, "_exchange", hang)
        model = ScriptedModel([[shell(WORK)]])
        agent = Agent(model, workspace=workspace, mode="full")
        limits = msgspec.structs.replace(SOON, store_s=0.5)
        async with Engine(agent, home=workspace.parent / "home", limits=limits) as engine:
            session = await engine.session("s")
            await works(session)
            await session.send("otherwise", mode="rollback")
            await hangs.wait()
            began_at = anyio.current_time()
        assert anyio.current_time() - began_at < WITHIN_S
    assert (workspace / "made").exists()
    async with engine_of(workspace, [[Say("done")]]) as engine:
        session = await engine.session("s")
        await session.settled()
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        await check(session)


async def test_a_session_that_gets_a_folder_meanwhile_saves_its_files_there(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    other = workspace.parent / "other"
    other.mkdir()
    model = ScriptedModel([[shell("echo b > b")], [Say("done")]])
    there = Agent(model, workspace=other, mode="full")
    here = Agent(ScriptedModel([[shell(WORK)]]), workspace=workspace, mode="full")
    home = workspace.parent / "home"
    config = load_config({"BARGEIN_HOME": str(home), "PATH": os.environ["PATH"]})
    async with Engine(
        here, home=home, agent_of=lambda place, environment: PlacedAgent(there, config)
    ) as engine:
        session = await engine.session("s")
        await works(session)
        sent = await session.send("otherwise", mode="rollback")
        await undo.begun.wait()
        await session.set_place(SessionPlace(str(other)))
        undo.goes.set()
        assert (await sent.result()).turn == "t2"
        assert (workspace / "kept.txt").read_text() == "mine\n"
        assert os.listdir(other) == ["b"]
        undone = await session.undo()
        assert undone.files is not None
        assert [each.path for each in undone.files.changed] == ["b"]
        assert os.listdir(other) == []
        await check(session)
