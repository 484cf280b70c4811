"""A stop on a full disk: its receipt says that it is not stored, and nothing read later, in this
process or after a restart, contradicts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bargein.contracts.event import (
    AssistantSaid,
    MessageAccepted,
    QueueHeld,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.model import Text
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.store import Commit, SessionHead, StoreFailed
from bargein.contracts.tool import CallStatus
from bargein.errors import BargeinError
from bargein.models.script import Call, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.engine import SessionEngine
from bargein.session.journal import JournalBroken
from bargein.session.session import Session
from bargein.stores.reserve import SLOT_BYTES, SLOTS, FileReserve
from bargein.tools import ToolRegistry
from tests.session.laws import check_log, outcomes
from tests.session.world import LIMITS, WITHIN_S, Gate, HeldStore, Script

pytestmark = pytest.mark.anyio

HOLD: Script = [[Say("One "), Wait("hold"), Say("two")], [Say("next")], [Say("last")]]


class SmallDisk(HeldStore):
    """Full while `full` is set: no write of any kind, reading goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.refused = anyio.Event()
        self.before_commit = self._refuse

    async def _refuse(self, operation: str, session: str) -> None:
        if self.full:
            self.refused.set()
            raise StoreFailed("the disk is full, as the test says", retryable=True)


class AlmostFullDisk(HeldStore):
    """Takes claims, and no events while `full` is set. Counts the claims."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.claims = 0

    async def claim(self, session: str) -> SessionHead | None:
        self.claims += 1
        return await super().claim(session)

    async def commit_one(self, commit: Commit) -> None:
        if self.full:
            raise StoreFailed("the disk is full, as the test says", retryable=True)
        await super().commit_one(commit)


class Life:
    def __init__(self, engine: SessionEngine, model: ScriptedModel) -> None:
        self.engine = engine
        self.model = model

    async def session(self) -> Session:
        return await self.engine.session("alice")


@asynccontextmanager
async def a_life(
    store: HeldStore,
    path: Path | None,
    script: Script = HOLD,
    tools: tuple[Callable[..., object], ...] = (),
) -> AsyncIterator[Life]:
    """One process. `path` is where its reserve is."""
    model = ScriptedModel(script)
    reserve = FileReserve.open(path) if path is not None else None
    agent = loop_agent(model, ToolRegistry(tools), LoopSettings())
    try:
        async with SessionEngine(agent, store, limits=LIMITS, reserve=reserve) as engine:
            with anyio.fail_after(WITHIN_S):
                yield Life(engine, model)
    finally:
        if reserve is not None:
            reserve.close()


async def stopped_on_a_full_disk(life: Life, store: SmallDisk) -> Receipt:
    session = await life.session()
    await session.send("1")
    await life.model.gate("hold").reached()
    await session.send("2", mode="queue")
    store.full = True
    receipt = await session.interrupt(by="anna")
    assert (receipt.status, receipt.stored) == (ReceiptStatus.STOPPED, False)
    assert receipt.held == ("m2",)
    return receipt


def stop_in(events: list[object]) -> TurnSettled:
    (settled,) = [each for each in events if isinstance(each, TurnSettled)]
    return settled


async def reads_as_stopped(session: Session, told: Receipt, words: str = "") -> None:
    log = await session.events()
    settled = stop_in([each.event for each in log])
    assert settled.outcome is TurnOutcome.STOPPED
    assert settled.receipt is not None
    assert (settled.receipt.status, settled.receipt.by) == (told.status, told.by)
    assert settled.receipt.stored
    assert settled.receipt.steps == told.steps
    assert settled.receipt.held == told.held
    if words:
        said = [each.event for each in log if isinstance(each.event, AssistantSaid)]
        assert [(each.partial, str(each.message.content[0])) for each in said] == [(True, words)]
    assert any(isinstance(each.event, QueueHeld) for each in log)
    assert [(item.message.id, item.held) for item in await session.inbox()] == [("m2", True)]
    check_log(log, waiting=["m2"])


async def test_a_disk_with_room_again_has_the_stop_as_it_was_told(tmp_path: Path) -> None:
    store = SmallDisk()
    async with a_life(store, tmp_path / "reserve") as life:
        told = await stopped_on_a_full_disk(life, store)
        store.full = False
        session = await life.session()
        await session.settled()
        await reads_as_stopped(session, told, str(Text("One ")))
        await session.continue_()
        await session.settled()
        assert outcomes(await session.events())["t2"] is TurnOutcome.COMPLETED
        told_again = life.model.requests[-1].messages
        assert "stopped before it ended" in str(told_again)
        assert "program ended" not in str(told_again)


async def test_a_restart_has_the_stop_as_it_was_told(tmp_path: Path) -> None:
    store = SmallDisk()
    async with a_life(store, tmp_path / "reserve") as life:
        told = await stopped_on_a_full_disk(life, store)
    store.full = False
    async with a_life(store, tmp_path / "reserve", [[Say("next")]]) as life:
        session = await life.session()
        await reads_as_stopped(session, told)
        await session.settled()
    # It is in the log now, and is not looked up a second time.
    reserve = FileReserve.open(tmp_path / "reserve")
    assert reserve is not None
    assert reserve._slots == {}
    reserve.close()


async def test_without_a_reserve_the_same_process_does_not_contradict_itself() -> None:
    store = SmallDisk()
    async with a_life(store, None) as life:
        told = await stopped_on_a_full_disk(life, store)
        store.full = False
        session = await life.session()
        await session.settled()
        await reads_as_stopped(session, told)


async def test_a_second_stop_and_every_change_are_answered_while_the_disk_is_full(
    tmp_path: Path,
) -> None:
    store = SmallDisk()
    async with a_life(store, tmp_path / "reserve") as life:
        await stopped_on_a_full_disk(life, store)
        session = Session(life.engine, "alice")
        again = await session.interrupt()
        assert (again.status, again.stored) == (ReceiptStatus.TOO_LATE, False)
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: session.send("3"),
            lambda: session.send("3", mode="interrupt"),
            lambda: session.edit("m2", "other words"),
            lambda: session.withdraw("m2"),
            lambda: session.move("m2"),
            session.undo,
            session.continue_,
            lambda: session.rename("a title"),
            lambda: session.answer("q1", "yes"),
            lambda: session.detach("c1"),
        ]
        for change in changes:
            with pytest.raises(BargeinError, match="the disk is full"):
                await change()
        store.full = False
        sent = await session.send("3", mode="interrupt")
        await sent.result()
        accepted = [e.event for e in await session.events() if isinstance(e.event, MessageAccepted)]
        assert [each.message.text for each in accepted] == ["1", "2", "3"]


@pytest.mark.parametrize("change", ["edit", "withdraw", "move", "detach", "steer"])
async def test_a_change_that_a_full_disk_refuses_has_no_effect(tmp_path: Path, change: str) -> None:
    """The first write that fails ends the turn; what is read afterwards says why, and the change
    that was refused has not happened."""
    gate = Gate()

    async def work() -> str:
        """Work for a while."""
        await gate()
        return "done"

    # One more than there are turns: a detached call lets its turn ask again before it ends.
    script: Script = [[Call("work")], [Say("two")], [Say("three")], [Say("four")]]
    store = SmallDisk()
    async with a_life(store, tmp_path / "reserve", script, (work,)) as life:
        session = await life.session()
        await session.send("1")
        await gate.reached.wait()
        for number in (2, 3):
            await session.send(str(number), mode="queue")
        store.full = True
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "edit": lambda: session.edit("m2", "other words"),
            "withdraw": lambda: session.withdraw("m2"),
            "move": lambda: session.move("m2"),
            "detach": lambda: session.detach("t1_1_1"),
            "steer": lambda: session.send("now", mode="steer"),
        }
        with pytest.raises(JournalBroken, match="the disk is full"):
            await changes[change]()
        store.full = False
        await life.engine.recovery.returned("alice")
        await session.settled()
        log = await session.events()
        ends = [each.event for each in log if isinstance(each.event, TurnSettled)]
        assert ends[0].outcome is TurnOutcome.CRASHED
        assert "could not be stored" in ends[0].error
        assert [each.outcome for each in ends[1:]] == [TurnOutcome.COMPLETED] * 2
        check_log(log)
        words = [m.event.message.text for m in log if isinstance(m.event, MessageAccepted)]
        assert words == ["1", "2", "3"]


async def test_a_stop_of_one_call_says_whether_it_is_stored(tmp_path: Path) -> None:
    gate = Gate()

    async def work() -> str:
        """Work for a while."""
        await gate()
        return "done"

    script: Script = [[Call("work")], [Say("two")], [Call("work")], [Say("two")]]
    store = SmallDisk()
    async with a_life(store, tmp_path / "reserve", script, (work,)) as life:
        session = await life.session()
        await session.send("1")
        await gate.reached.wait()
        receipt = await session.interrupt(scope=Scope.CALL, target="t1_1_1")
        assert receipt.stored
        await session.settled()
        gate.reached = anyio.Event()
        await session.send("2")
        await gate.reached.wait()
        store.full = True
        receipt = await session.interrupt(scope=Scope.CALL, target="t2_1_1")
        assert [step.status for step in receipt.steps] == [CallStatus.STOPPED]
        assert not receipt.stored
        store.full = False


async def test_who_watches_is_told_of_the_end_when_the_disk_has_room(tmp_path: Path) -> None:
    """A watcher does not end, fail or claim the session while the disk is full."""
    store = SmallDisk()
    async with a_life(store, tmp_path / "reserve") as life:
        session = await life.session()
        seen: list[TurnSettled] = []

        async def watch(scope: anyio.CancelScope) -> None:
            async for event in session.watch(after=0):
                settled = getattr(event, "event", None)
                if isinstance(settled, TurnSettled):
                    seen.append(settled)
                    scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            await stopped_on_a_full_disk(life, store)
            store.full = False
        assert [each.outcome for each in seen] == [TurnOutcome.STOPPED]


async def test_a_disk_that_takes_a_claim_and_nothing_else_is_not_asked_without_a_pause(
    tmp_path: Path,
) -> None:
    """A claim changes a row in place, so a disk may have room for it and not for the events. The
    session comes back, fails at its first write, and must not come back at once for ever."""
    store = AlmostFullDisk()
    async with a_life(store, tmp_path / "reserve") as life:
        session = await life.session()
        await session.send("1")
        await life.model.gate("hold").reached()
        store.full = True
        assert not (await session.interrupt()).stored
        claims = store.claims
        await anyio.sleep(0.5)
        assert (await session.state()).turn is None
        assert store.claims - claims < 20
        store.full = False
        await session.settled()
        assert stop_in([each.event for each in await session.events()]).outcome is (
            TurnOutcome.STOPPED
        )


# --- the file itself


def test_a_reserve_is_full_size_from_the_start_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = FileReserve.open(path)
    assert reserve is not None
    assert path.stat().st_size == SLOTS * SLOT_BYTES
    assert path.stat().st_blocks * 512 >= SLOTS * SLOT_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    reserve.close()


def test_records_that_are_damaged_or_of_another_version_are_empty_slots(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = FileReserve.open(path)
    assert reserve is not None
    reserve.close()
    path.write_bytes(b"\xff" * (SLOTS * SLOT_BYTES))
    reserve = FileReserve.open(path)
    assert reserve is not None
    assert reserve._slots == {}
    reserve.close()
