"""Undo through the whole engine: real tools, real processes, a real store."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from bargein import Agent, Engine
from bargein.contracts.checkpoint import FileFate
from bargein.contracts.event import FilesChanged, FilesRestored
from bargein.contracts.live import CallOutput, OutputSoFar
from bargein.errors import UserError
from bargein.models.script import Pause, Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import load_config
from bargein.session.reply import SessionGone
from bargein.session.session import Session, TooLate
from tests.checkpoints.engines import engine_of, shell
from tests.checkpoints.test_rollback import HeldUndo
from tests.session.world import WITHIN_S, wait_for

pytestmark = pytest.mark.anyio


async def said(session: Session[str], words: str) -> None:
    result = await (await session.send(words)).result()
    assert result.outcome == "completed", result


async def test_an_undo_puts_back_what_a_shell_did_and_a_redo_takes_that_back(
    workspace: Path,
) -> None:
    script = [[shell("echo new > made; echo theirs > kept.txt; mkdir -p deep/er")], [Say("done")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await said(session, "go")
        preview = await session.preview_undo()
        assert preview.files is not None
        assert {each.path: each.fate for each in preview.files.files} == {
            "kept.txt": FileFate.CHANGED_BACK,
            "made": FileFate.REMOVED,
        }
        assert (workspace / "made").read_text() == "new\n"
        assert "+theirs" in await session.diff()
        undone = await session.undo(files=True)
        assert undone.files is not None
        assert len(undone.files.changed) == 2
        assert "were put back" in undone.note
        assert (workspace / "kept.txt").read_text() == "mine\n"
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        await session.redo()
        assert (workspace / "kept.txt").read_text() == "theirs\n"
        assert (workspace / "deep/er").is_dir()
        with pytest.raises(TooLate, match="no undo of files"):
            await session.redo()


async def test_what_the_user_changed_since_is_kept_and_named_unless_overruled(
    workspace: Path,
) -> None:
    script = [[shell("echo theirs > kept.txt; echo b > b")], [Say("done")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await said(session, "go")
        (workspace / "kept.txt").write_text("mine again\n")
        preview = await session.preview_undo()
        assert preview.files is not None
        assert [(each.path, each.why) for each in preview.files.kept] == [
            ("kept.txt", "changed since")
        ]
        await session.undo(files=True, overrule=["kept.txt"])
        assert (workspace / "kept.txt").read_text() == "mine\n"


async def test_what_a_user_changes_while_the_model_thinks_is_the_users(workspace: Path) -> None:
    script = [[shell("echo a > a")], [Pause(0.5), shell("echo b > b")], [Say("done")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        sent = await session.send("go")
        await wait_for(session, FilesChanged)
        (workspace / "users").write_text("mine")
        await sent.result()
        await session.undo(files=True)
        assert sorted(os.listdir(workspace)) == ["kept.txt", "users"]


async def test_an_undo_works_after_a_restart_and_so_does_a_redo(workspace: Path) -> None:
    script = [[shell("echo one > f")], [Say("1")], [shell("echo two > f")], [Say("2")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await said(session, "first")
        await said(session, "second")
    async with engine_of(workspace, []) as engine:
        session = await engine.session("s")
        undone = await session.undo(files=True)
        assert undone.text == "second"
        assert (workspace / "f").read_text() == "one\n"
    async with engine_of(workspace, []) as engine:
        session = await engine.session("s")
        await session.redo()
        assert (workspace / "f").read_text() == "two\n"
        log = [each.event for each in await session.events()]
        assert [type(each) for each in log if isinstance(each, FilesChanged | FilesRestored)] == [
            FilesChanged,
            FilesChanged,
            FilesRestored,
            FilesRestored,
        ]


async def test_a_rewind_takes_back_files_conversation_or_both(workspace: Path) -> None:
    script = [[shell("echo one > f")], [Say("1")], [shell("echo two > f; touch g")], [Say("2")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await said(session, "first")
        await said(session, "second")
        await session.rewind("t1", "files")
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        assert len(await session.transcript()) > 0
        await session.redo()
        assert (workspace / "f").read_text() == "two\n"
        undone = await session.rewind("t1", "both")
        assert undone.text == "first"
        assert sorted(os.listdir(workspace)) == ["kept.txt"]
        assert len(await session.transcript()) == 0
        with pytest.raises(UserError, match="no rewind"):
            await session.rewind("t1", "everything")
        with pytest.raises(TooLate, match="no turn t9"):
            await session.rewind("t9")


async def test_a_stopped_call_is_undone_too_and_its_receipt_waits_for_no_snapshot(
    workspace: Path,
) -> None:
    async with engine_of(workspace, [[shell("echo half > half; echo ready; sleep 60")]]) as engine:
        session = await engine.session("s")
        await session.send("go")
        with anyio.fail_after(WITHIN_S):
            async with aclosing(session.watch()) as events:
                async for event in events:
                    if isinstance(event, CallOutput | OutputSoFar):
                        break
        receipt = await session.interrupt()
        assert receipt.status == "stopped"
        undone = await session.undo(files=True)
        assert undone.files is not None
        assert not (workspace / "half").exists()


async def test_without_snapshots_an_undo_of_files_says_so(workspace: Path) -> None:
    config = load_config({"BARGEIN_CHECKPOINTS_ENABLED": "0"})
    agent = Agent(ScriptedModel([[Say("hello")]]), workspace=workspace)
    async with Engine(agent, store="memory", config=config) as engine:
        session = await engine.session("s")
        await said(session, "go")
        with pytest.raises(UserError, match=r"checkpoints\.enabled"):
            await session.undo(files=True)
        assert (await session.undo()).turn == "t1"


async def test_only_the_owner_can_read_snapshots(workspace: Path) -> None:
    async with engine_of(workspace, [[shell("echo a > a")], [Say("done")]]) as engine:
        session = await engine.session("s")
        await said(session, "go")
        await session.diff()
    kept = workspace.parent / "home" / "checkpoints"
    found = [Path(folder) / name for folder, _, names in os.walk(kept) for name in names]
    assert found
    assert [path for path in (kept, *found) if path.stat().st_mode & 0o077] == []


async def test_a_turn_that_comes_while_files_are_put_back_stays_in_the_conversation(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two people: one takes the last turn back, the other sends a message."""
    undo = HeldUndo(monkeypatch)
    script = [[shell("echo one > f")], [Say("1")], [Say("2")]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await said(session, "first")

        told: list[str] = []

        async def take_back() -> None:
            try:
                told.append((await session.undo()).turn)
            except TooLate as error:
                told.append(str(error))

        async with anyio.create_task_group() as group:
            group.start_soon(take_back)
            await undo.begun.wait()
            await said(session, "second")
            undo.goes.set()
        back = "the files were put back, and a redo takes that back"
        assert told == [f"another turn came after t1; {back}"]
        assert not (workspace / "f").exists()
        shown = str(await session.transcript())
        assert "first" in shown
        assert "second" in shown
        await session.redo()
        assert (workspace / "f").read_text() == "one\n"
        assert (await session.undo()).turn == "t2"


async def test_an_undo_that_the_end_of_the_session_overtakes_changes_no_inbox(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = HeldUndo(monkeypatch)
    script = [[shell("echo one > f")], [Say("1")], [Say("2"), Pause(60)]]
    async with engine_of(workspace, script) as engine:
        session = await engine.session("s")
        await said(session, "first")
        await session.send("second")
        later = await session.send("later", mode="queue")
        await session.interrupt()
        told: list[str] = []

        async def take_back() -> None:
            try:
                told.append((await session.rewind("t1")).turn)
            except SessionGone as error:
                told.append(str(error))

        async with anyio.create_task_group() as group:
            group.start_soon(take_back)
            await undo.begun.wait()
            await session.end()
            undo.goes.set()
        assert told == ["s has left memory"]
        assert [item.message.id for item in await session.inbox()] == [later.message]
