"""When snapshots are taken around calls, and who waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from bargein.contracts.checkpoint import CheckpointError, FilesUndone, Span
from bargein.contracts.event import CallStarted, FilesChanged, TurnSettled
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.engine import SessionEngine
from bargein.session.session import Session
from bargein.tools import ToolRegistry
from tests.session.laws import events_of
from tests.session.world import LIMITS, WITHIN_S, Gate, HeldStore, Script, completes, wait_for

pytestmark = pytest.mark.anyio


class Folder:
    """Snapshots that are numbers, and take as long as a test likes."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.fails = False
        self.before_end: Gate | None = None
        self.stored = HeldStore()

    async def save(self) -> str:
        return "0"

    def work(self) -> Folder.Work:
        return Folder.Work(self)

    class Work:
        def __init__(self, folder: Folder) -> None:
            self._folder = folder

        async def begins(self) -> None:
            self._folder.did.append("begins")
            if self._folder.fails:
                raise CheckpointError("no room")

        async def ends(self) -> tuple[Span, ...]:
            settled = [
                each
                for each in events_of(await self._folder.stored.events("alice"))
                if isinstance(each, TurnSettled)
            ]
            self._folder.did.append(f"ends, {len(settled)} settled")
            if self._folder.before_end is not None:
                await self._folder.before_end()
            return () if self._folder.fails else (Span("1", "2"), Span("2", "3", shared=True))

    async def preview(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        return FilesUndone()

    async def undo(self, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
        return FilesUndone()

    async def diff(self, spans: Sequence[Span]) -> str:
        return ""


@asynccontextmanager
async def session_in(
    folder: Folder, script: Script, gate: Gate | None = None
) -> AsyncIterator[Session[str]]:
    async def write() -> str:
        """Write."""
        folder.did.append("write")
        if gate is not None:
            await gate()
        return "written"

    agent = loop_agent(ScriptedModel(script), ToolRegistry([write]), LoopSettings())
    with anyio.fail_after(WITHIN_S):
        async with SessionEngine(agent, folder.stored, limits=LIMITS, checkpoints=folder) as engine:
            yield await engine.session("alice")


async def test_a_group_has_a_snapshot_on_each_side_and_the_next_waits_for_it() -> None:
    folder = Folder()
    script: Script = [[Call("write"), Call("write")], [Call("write")], [Say("Done.")]]
    async with session_in(folder, script) as session:
        await completes(session, "go")
        log = events_of(await session.events())
    assert folder.did == [
        "begins",
        "write",
        "write",
        "ends, 0 settled",
        "begins",
        "write",
        "ends, 0 settled",
    ]
    changed = [each for each in log if isinstance(each, FilesChanged)]
    assert [each.span for each in changed] == [Span("1", "2"), Span("2", "3", shared=True)] * 2
    assert [len(each.calls) for each in changed] == [2, 2, 1, 1]


async def test_the_next_group_waits_for_the_snapshot_and_the_model_does_not() -> None:
    folder = Folder()
    folder.before_end = Gate()
    script: Script = [[Call("write")], [Call("write")], [Say("Done.")]]
    async with session_in(folder, script) as session:
        sent = await session.send("go")
        await folder.before_end.reached.wait()
        # The model has asked for the second call, which is not started.
        await anyio.wait_all_tasks_blocked()
        started = [e for e in events_of(await session.events()) if isinstance(e, CallStarted)]
        assert folder.did.count("begins") == len(started) == 1
        folder.before_end.opened.set()
        await sent.result()
        assert folder.did.count("begins") == 2


async def test_the_snapshot_after_a_stop_waits_for_the_receipt_and_not_the_reverse() -> None:
    folder, gate = Folder(), Gate()
    folder.before_end = Gate()
    async with session_in(folder, [[Call("write")]], gate) as session:
        await session.send("go")
        await gate.reached.wait()
        receipt = await session.interrupt()
        assert receipt.status == "stopped"
        await folder.before_end.reached.wait()
        assert folder.did[-1] == "ends, 1 settled"
        folder.before_end.opened.set()
        await wait_for(session, FilesChanged)


async def test_a_snapshot_that_fails_keeps_no_call_from_running() -> None:
    folder = Folder()
    folder.fails = True
    async with session_in(folder, [[Call("write")], [Say("Done.")]]) as session:
        await completes(session, "go")
        assert not [e for e in events_of(await session.events()) if isinstance(e, FilesChanged)]
    assert folder.did == ["begins", "write", "ends, 0 settled"]
