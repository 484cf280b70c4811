"""A store that is slow, fails or never answers: nothing acknowledged is lost, nobody hangs, and the
session comes back by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from bargein.contracts.event import (
    AgentEvent,
    AssistantSaid,
    Event,
    InterruptLanded,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    MessageWithdrawn,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.message import Disposition
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.contracts.tool import CallStatus
from bargein.models.script import Call, Say, Wait
from bargein.session.journal import JournalBroken
from bargein.session.reply import SessionGone
from bargein.session.session import Session
from bargein.session.turn import Turn
from tests.session.laws import events_of, outcomes
from tests.session.world import (
    LIMITS,
    SOON,
    WITHIN_S,
    Gate,
    HeldStore,
    Script,
    a_while,
    a_world,
    answered,
    completes,
)

pytestmark = pytest.mark.anyio

HOLD: Script = [[Say("One "), Wait("hold"), Say("two")], [Say("next")], [Say("last")]]


async def test_a_message_that_could_not_be_stored_is_refused_and_the_next_one_is_taken() -> None:
    async with a_world([[Say("Hello")]]) as world:
        session = await world.session()
        world.held_store.fail_next(MessageAccepted)
        with anyio.fail_after(WITHIN_S), pytest.raises(JournalBroken, match="the disk is full"):
            await session.send("lost, and told so")
        assert (await completes(session, "Hi")).turn == "t1"
        await world.check()


async def test_the_same_id_can_be_sent_again_after_a_failure() -> None:
    async with a_world([[Say("Hello")]]) as world:
        session = await world.session()
        world.held_store.fail_next(MessageAccepted)
        with anyio.fail_after(WITHIN_S), pytest.raises(JournalBroken):
            await session.send("Hi", client_id="c1")
        again = await session.send("Hi", client_id="c1")
        assert again.disposition is Disposition.STARTED
        assert (await answered(again)).text == "Hello"
        await world.check()


async def test_a_turn_whose_end_could_not_be_stored_is_settled_as_crashed_once() -> None:
    async with a_world([[Say("Hello")], [Say("Again")]]) as world:
        session = await world.session()
        world.held_store.fail_next(TurnSettled)
        sent = await session.send("Hi")
        result = await answered(sent)
        assert result.outcome is TurnOutcome.CRASHED
        assert (await completes(session, "Hi again")).turn == "t2"
        assert outcomes(await session.events()) == {
            "t1": TurnOutcome.CRASHED,
            "t2": TurnOutcome.COMPLETED,
        }
        await world.check()


async def test_what_was_acknowledged_is_answered_though_nobody_touches_the_session() -> None:
    async with a_world(HOLD) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        third = await session.send("3", mode="queue")
        world.held_store.fail_next(AssistantSaid)
        world.model.gate("hold").open()
        assert (await answered(first)).outcome is TurnOutcome.CRASHED
        assert (await answered(second)).text == "next"
        assert (await answered(third)).text == "last"
        await world.check()


async def test_a_session_comes_back_when_the_store_does() -> None:
    store = BrokenForAWhile()
    async with a_world(HOLD, store=store) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        store.broken = True
        world.model.gate("hold").open()
        await store.failed_often.wait()
        store.broken = False
        assert (await answered(first)).outcome is TurnOutcome.CRASHED
        assert (await answered(second)).text == "next"
        await world.check()


class BrokenForAWhile(HeldStore):
    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.failures = 0
        self.failed_often = anyio.Event()
        self.before_commit = self._fail

    async def _fail(self, operation: str, session: str) -> None:
        if self.broken:
            self.failures += 1
            if self.failures >= 4:
                self.failed_often.set()
            raise OSError("the disk is not there")


async def test_the_old_turn_is_over_before_the_session_comes_back() -> None:
    running: list[str] = []
    most = 0
    gate = Gate()

    async def agent(turn: Turn) -> str:
        nonlocal most
        running.append(turn.id)
        most = max(most, len(running))
        try:
            if turn.id == "t1":
                await gate()
                await turn.keep("anything", b"")
        except JournalBroken:
            # A turn that is being ended cleans up first.
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            raise
        finally:
            running.remove(turn.id)
        return "done"

    store = HeldStore()
    async with a_world(agent=agent, store=store) as world:
        session = await world.session()
        first = await session.send("1")
        await gate.reached.wait()
        second = await session.send("2", mode="queue")
        store.fail_next(AgentEvent)
        gate.opened.set()
        assert (await answered(first)).outcome is TurnOutcome.CRASHED
        assert (await answered(second)).text == "done"
        assert (await completes(session, "3")).text == "done"
        assert most == 1, "two turns of one session at once"
        await world.check()


Change = Callable[[Session], Awaitable[object]]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda s: s.withdraw("m2"), MessageWithdrawn),
        (lambda s: s.edit("m2", "other words"), MessageEdited),
        (lambda s: s.send("3", mode="interrupt"), MessageAccepted),
    ],
    ids=["withdraw", "edit", "send"],
)
async def test_nobody_waits_for_ever_for_a_failed_store(change: Change, kind: type[Event]) -> None:
    async with a_world(HOLD) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        await session.send("2", mode="queue")
        world.held_store.fail_next(kind)
        with anyio.fail_after(WITHIN_S), pytest.raises(JournalBroken):
            await change(session)
        world.model.gate("hold").open()
        assert (await completes(session, "4")).outcome is TurnOutcome.COMPLETED
        await world.check()


async def test_a_steer_that_could_not_be_taken_is_answered_later() -> None:
    async with a_world([[Say("One "), Wait("hold")], [Say("next")]]) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        world.held_store.fail_next(MessagesTaken)
        steer = await session.send("2")
        assert (await answered(first)).outcome is TurnOutcome.CRASHED
        assert (await answered(steer)).text == "next"
        await world.check()


async def test_a_receipt_is_in_time_though_the_store_never_answers() -> None:
    async with a_world(HOLD, store_s=0.1) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        world.held_store.hold(InterruptLanded)
        with anyio.fail_after(LIMITS.settle_s):
            receipt = await session.interrupt()
        assert receipt.status is ReceiptStatus.STOPPED
        assert not receipt.stored
        assert [step.name for step in receipt.steps] == ["scripted"]
        world.held_store.release()
        assert (await completes(session, "2")).text == "next"
        await world.check()


async def test_a_stop_of_a_turn_whose_start_could_not_be_stored_is_told_at_once() -> None:
    async with a_world([[Say("next")]], settle_s=30.0, store_s=30.0) as world:
        session = await world.session()
        world.held_store.hold(TurnStarted)
        receipts: list[Receipt] = []

        async def send() -> None:
            with pytest.raises(JournalBroken):
                await session.send("1")

        async def stop() -> None:
            receipts.append(await session.interrupt())

        with anyio.fail_after(25):
            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await world.held_store.reached.wait()
                group.start_soon(stop)
                await a_while()
                world.held_store.fail_next(TurnStarted)
                world.held_store.release()
        assert not receipts[0].stored
        assert (await completes(session, "2")).text == "next"
        await world.check()


async def test_a_duplicate_is_not_acknowledged_before_the_first_is_durable() -> None:
    async with a_world([[Say("Hello")]]) as world:
        session = await world.session()
        world.held_store.hold(MessageAccepted)
        acknowledged: list[Disposition] = []

        async def send() -> None:
            sent = await session.send("Hi", client_id="c1")
            acknowledged.append(sent.disposition)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            group.start_soon(send)
            await world.held_store.reached.wait()
            await a_while()
            assert acknowledged == []
            world.held_store.release()
        assert sorted(acknowledged) == [Disposition.DUPLICATE, Disposition.STARTED]


async def test_a_duplicate_of_what_could_not_be_stored_is_told_so_too() -> None:
    async with a_world([[Say("Hello")]]) as world:
        session = await world.session()
        world.held_store.hold(MessageAccepted)
        errors: list[Exception] = []

        async def send() -> None:
            try:
                await session.send("Hi", client_id="c1")
            except JournalBroken as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            group.start_soon(send)
            await world.held_store.reached.wait()
            await a_while()
            world.held_store.fail_next(MessageAccepted)
            world.held_store.release()
        assert len(errors) == 2
        assert not [e for e in events_of(await session.events()) if isinstance(e, MessageAccepted)]


async def test_other_sessions_do_not_feel_it() -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate()
        return "worked"

    async with a_world([[Call("work")], [Say("A")], [Say("B")]], tools=[work]) as world:
        a, b = await world.session("a"), await world.session("b")
        sent = await a.send("1")
        await gate.reached.wait()
        world.held_store.fail_next(MessageAccepted)
        with pytest.raises(JournalBroken):
            await b.send("2")
        gate.opened.set()
        assert (await answered(sent)).text == "A"
        await world.check("a")
        await world.check("b")


class HeldReads(HeldStore):
    """Its next look at a log is held: at `looking` before it is taken, at `looked` with what it has
    found, there whatever is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.looking: Gate | None = None
        self.looked: Gate | None = None

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        looking, self.looking = self.looking, None
        looked, self.looked = self.looked, None
        if looking is not None:
            await looking()
        found = await super().events(session, after=after, limit=limit, bytes_max=bytes_max)
        if looked is not None:
            with anyio.CancelScope(shield=True):
                await looked()
        return found


async def test_a_log_that_comes_too_late_for_its_turn_is_not_taken_for_the_newest() -> None:
    store = HeldReads()
    async with a_world([[Say("three")], [Say("four")]], store=store, limits=SOON) as world:
        session = await world.session()
        gate = store.looked = Gate()
        await session.send("2")
        await gate.reached.wait()
        receipt = await session.interrupt()
        assert [step.status for step in receipt.steps] == [CallStatus.ABANDONED]
        await completes(session, "3")
        gate.opened.set()
        await a_while()
        await completes(session, "4")
        assert world.model.requests[-1].messages == (await session.transcript())[:-1]
        await world.check()


async def test_a_log_that_is_not_read_in_time_keeps_nobody_from_sending() -> None:
    store = HeldReads()
    async with a_world([[Say("one")]], store=store) as world:
        await completes(await world.session(), "1")
    async with a_world([[Say("two")]], store=store, store_s=0.05) as world:
        session = await world.session()
        gate = store.looking = Gate()
        with anyio.fail_after(WITHIN_S):
            sent = await session.send("2")
        gate.opened.set()
        assert (await answered(sent)).text == "two"
        await world.check()


async def test_a_log_that_another_owner_has_gone_on_with_is_not_shown_to_a_model() -> None:
    store = HeldReads()
    async with a_world([[Say("from the past")]], store=store) as old:
        session = await old.session()
        gate = store.looking = Gate()
        sent = await session.send("1")
        await gate.reached.wait()
        async with a_world([[Say("two")]], store=store) as new:
            await completes(await new.session(), "2")
            gate.opened.set()
            with pytest.raises(SessionGone):
                await answered(sent)
            assert old.model.requests == []
            await new.check()
