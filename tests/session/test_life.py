"""A session leaves memory and comes back, ends for good, and outlives its engine; an engine closes
within a bound whatever its tools do."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import anyio
import pytest

from bargein.contracts.event import (
    MessageAccepted,
    Recorded,
    SessionEnded,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.receipt import ReceiptStatus
from bargein.contracts.store import SessionHead
from bargein.errors import BargeinError, UserError
from bargein.models.script import Call, Expect, Say, Step, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.session.engine import EngineClosed
from bargein.session.journal import JournalBroken
from bargein.session.reply import SessionGone
from bargein.session.results import TurnResult
from bargein.session.session import Sent, TooLate
from bargein.session.turn import Turn
from tests.session.laws import check_log, events_of, outcomes, said
from tests.session.world import (
    CONFIG,
    LIMITS,
    SOON,
    WITHIN_S,
    Gate,
    HeldStore,
    Script,
    World,
    a_while,
    a_world,
    answered,
    completes,
    until,
    wait_for,
)

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


async def test_a_session_has_settled_when_the_end_of_its_turn_is_stored() -> None:
    async with a_world([[Say("a")]]) as world:
        session = await world.session()
        world.held_store.hold(TurnSettled)
        await session.send("1")
        await world.held_store.reached.wait()
        with anyio.move_on_after(0.02) as too_early:
            await session.settled()
        assert too_early.cancelled_caught
        world.held_store.release()
        with anyio.fail_after(WITHIN_S):
            await session.settled()
        await world.check()


# Leaving memory


class SlowReading(HeldStore):
    """The next reading of a log waits at the gate."""

    gate: Gate | None = None

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate()
        return await super().events(session, after=after, limit=limit, bytes_max=bytes_max)


async def test_a_session_that_leaves_memory_while_it_is_read_is_compressed_all_the_same() -> None:
    store = SlowReading()
    async with a_world([[Say("a")]], store=store) as world:
        session = await world.session()
        await completes(session, "1")
        await session.settled()
        world.engine.core.let_go("alice")
        await session.state()
        gate = store.gate = Gate()
        results: list[TurnResult] = []

        async def compress() -> None:
            results.append(await session.compact())

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(compress)
                await gate.reached.wait()
                world.engine.core.let_go("alice")
                assert world.in_memory == ()
                gate.opened.set()
        assert results[0].outcome is TurnOutcome.COMPLETED


async def test_an_idle_session_leaves_memory_and_comes_back_on_demand() -> None:
    async with a_world([[Say("a")], [Expect(messages=3), Say("b")]], idle_s=0.01) as world:
        session = await world.session()
        await completes(session, "1")
        await until(lambda: world.in_memory == ())
        assert (await completes(session, "2")).turn == "t2"
        await world.check()


@pytest.mark.parametrize("linger_s", [0.0, 60.0])
async def test_nothing_of_a_session_that_left_memory_stays_there(linger_s: float) -> None:
    async with a_world([[Say("a")]], idle_s=0.01, linger_s=linger_s) as world:
        session = await world.session()
        await completes(session, "1")
        inner = world.engine._engine
        assert inner is not None
        actor = weakref.ref(await inner.actor(session.id))
        await until(lambda: world.in_memory == ())

        def is_gone() -> bool:
            gc.collect()
            return actor() is None

        await until(is_gone)


@pytest.mark.parametrize("why", ["turn", "held", "album", "detached"])
async def test_one_with_something_to_do_stays(why: str) -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate()
        return "worked"

    script: Script = [[Call("work")], [Say("Moved")], [Say("last")]]
    gather_s = 30.0 if why == "album" else 0.0
    async with a_world(script, tools=[work], idle_s=0.01, gather_s=gather_s) as world:
        session = await world.session()
        await session.send("1", group="album" if why == "album" else None)
        if why != "album":
            await gate.reached.wait()
        if why == "held":
            await session.send("2", mode="queue")
            await session.interrupt()
        elif why == "detached":
            await session.detach("t1_1_1")
            await wait_for(session, TurnSettled)
        with anyio.move_on_after(0.1):
            await anyio.sleep_forever()
        assert world.in_memory == ("alice",)


async def test_a_session_does_not_leave_before_what_it_wrote_is_durable() -> None:
    async with a_world([[Say("a")], [Say("b")]], idle_s=0.01) as world:
        session = await world.session()
        world.held_store.hold(TurnSettled)
        sent = await session.send("1")
        await world.held_store.reached.wait()
        with anyio.move_on_after(0.1):
            await anyio.sleep_forever()
        assert world.in_memory == ("alice",)
        world.held_store.release()
        assert (await answered(sent)).outcome is TurnOutcome.COMPLETED
        await until(lambda: world.in_memory == ())
        assert (await completes(session, "2")).turn == "t2"
        await world.check()


# Closing the engine


async def test_closing_stops_the_turn_keeps_the_queue_and_the_next_engine_goes_on() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        third = await session.send("3", mode="queue", client_id="c3")
    stopped = await answered(first)
    assert (stopped.outcome, stopped.text) == (TurnOutcome.STOPPED, "One ")
    assert stopped.receipt is not None
    assert stopped.receipt.reason is not None
    assert stopped.receipt.reason.root.cause == "shutdown"
    for sent in (second, third):
        with pytest.raises(SessionGone):
            await answered(sent)
    async with a_world([[Say("b")], [Say("c")], [Say("d")]], store=world.store) as world:
        session = await world.session()
        again = await session.send("3", mode="queue", client_id="c3")
        assert (await answered(again)).text == "c"
        assert (await completes(session, "4")).text == "d"
        assert outcomes(await session.events())["t1"] is TurnOutcome.STOPPED
        await world.check()


async def test_closing_waits_for_what_was_accepted_to_be_durable() -> None:
    sent: list[Sent] = []
    async with anyio.create_task_group() as group, a_world([[Say("a")]]) as world:
        session = await world.session()
        world.held_store.hold(TurnSettled)

        async def send() -> None:
            sent.append(await session.send("1"))

        group.start_soon(send)
        await world.held_store.reached.wait()

        async def release_later() -> None:
            await anyio.sleep(0.05)
            world.held_store.release()

        group.start_soon(release_later)
    assert (await answered(sent[0])).outcome is TurnOutcome.COMPLETED
    assert said(await world.log()) == ["a"]


async def test_closing_is_bounded_though_the_store_never_answers_and_nobody_waits_on() -> None:
    errors: list[BargeinError] = []
    async with anyio.create_task_group() as group:
        async with a_world([HOLD], limits=SOON, store_s=0.1) as world:
            session = await world.session()
            first = await session.send("1")
            await world.model.gate("hold").reached()
            world.held_store.hold(MessageAccepted)
            world.held_store.hold(TurnSettled)

            async def send() -> None:
                try:
                    await session.send("2", mode="queue")
                except BargeinError as error:
                    errors.append(error)

            group.start_soon(send)
            await world.held_store.reached.wait()
            began = anyio.current_time()
        assert anyio.current_time() - began < LIMITS.settle_s
        await until(lambda: errors)
    assert "the engine is closed" in str(errors[0])
    with pytest.raises(BargeinError):
        await answered(first)
    world.held_store.release()


async def test_closing_is_bounded_with_wedged_tools() -> None:
    begun, deaf_begun, let_go = threading.Event(), anyio.Event(), threading.Event()

    def wedged() -> str:
        """Hang."""
        begun.set()
        let_go.wait()
        return ""

    async def deaf() -> str:
        """Swallow every cancel."""
        deaf_begun.set()
        while not let_go.is_set():
            try:
                await anyio.sleep(3600)
            except anyio.get_cancelled_exc_class():
                pass
        return ""

    script: Script = [[Call("wedged"), Call("deaf")]]
    try:
        async with a_world(script, tools=[wedged, deaf], limits=SOON) as world:
            session = await world.session()
            await session.send("1")
            await until(begun.is_set)
            await deaf_begun.wait()
            began = time.monotonic()
        assert time.monotonic() - began < LIMITS.settle_s
    finally:
        let_go.set()
    (settled,) = [e for e in events_of(await world.log()) if isinstance(e, TurnSettled)]
    assert settled.receipt is not None
    assert {step.name for step in settled.receipt.abandoned} == {"wedged", "deaf"}
    check_log(await world.log())


async def test_an_error_in_the_block_is_raised_as_it_is_and_the_engine_is_closed() -> None:
    async def fail_inside(world: World) -> None:
        await (await world.session()).send("1")
        await world.model.gate("hold").reached()
        raise LookupError("my own")

    store = HeldStore()

    async def run() -> None:
        async with a_world([HOLD], store=store) as world:
            await fail_inside(world)

    with pytest.raises(LookupError, match="my own"):
        await run()
    log = await store.events("alice")
    assert outcomes(log) == {"t1": TurnOutcome.STOPPED}
    check_log(log)


async def test_a_cancel_of_the_block_closes_the_engine_and_goes_on_its_way() -> None:
    with anyio.move_on_after(30) as scope:
        async with a_world([HOLD]) as world:
            session = await world.session()
            await session.send("1")
            await world.model.gate("hold").reached()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert outcomes(await world.log()) == {"t1": TurnOutcome.STOPPED}
    check_log(await world.log())


async def test_nothing_is_accepted_while_or_after_the_engine_closes() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
    with pytest.raises(UserError, match="the engine is closed"):
        await session.send("late")
    with pytest.raises(UserError, match="the engine is closed"):
        await world.engine.session("bob")


# Ending a session


async def test_a_session_that_ends_stops_its_turn_and_takes_no_more() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        await session.send("2", mode="queue")
        with anyio.fail_after(WITHIN_S):
            await session.end(by="anna")
            assert (await answered(first)).outcome is TurnOutcome.STOPPED
            with pytest.raises(TooLate, match="the session has ended"):
                await session.send("3")
            assert (await session.interrupt()).status is ReceiptStatus.TOO_LATE
            await session.end()
        log = events_of(await session.events())
        assert len([e for e in log if isinstance(e, SessionEnded)]) == 1
        assert [item.message.text for item in await session.inbox()] == ["2"]
        assert await session.transcript()
        began = anyio.current_time()
    assert anyio.current_time() - began < LIMITS.settle_s
    assert await world.store.unfinished() == []


async def test_a_session_that_ends_while_idle_with_a_call_in_the_background_stops_it() -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate()
        return "worked"

    async with a_world([[Call("work")], [Say("Moved")]], tools=[work]) as world:
        session = await world.session()
        await session.send("1")
        await gate.reached.wait()
        await session.detach("t1_1_1")
        await wait_for(session, TurnSettled)
        with anyio.fail_after(WITHIN_S):
            await session.end()
        log = events_of(await session.events())
        assert isinstance(log[-1], SessionEnded)
        assert (await session.state()).background == ()


# One owner


async def test_a_second_engine_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    model = ScriptedModel([[Say("a")], [Say("b")]])
    async with Engine(Agent(model=model), home=tmp_path, config=CONFIG) as engine:
        assert (await completes(await engine.session("alice"), "1")).text == "a"
        with pytest.raises(BargeinError, match=str(tmp_path)):
            async with Engine(Agent(model=model), home=tmp_path, config=CONFIG):
                pytest.fail("two owners")
    async with Engine(Agent(model=model), home=tmp_path, config=CONFIG) as engine:
        assert (await completes(await engine.session("alice"), "2")).turn == "t2"


async def test_a_session_that_another_owner_claimed_is_fenced() -> None:
    gate = Gate()

    async def agent(turn: Turn) -> str:
        await gate()
        return "late"

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("1")
        await gate.reached.wait()
        before = len(await world.log())
        await world.store.claim("alice")
        gate.opened.set()
        with pytest.raises(BargeinError):
            await answered(sent)
        assert len(await world.log()) == before


async def test_an_engine_that_is_not_open_says_so() -> None:
    engine = Engine(Agent(model=ScriptedModel([])), store="memory", config=CONFIG)
    with pytest.raises(UserError, match="async with Engine"):
        await engine.session("alice")


@pytest.mark.parametrize("name", ["", "x" * 201])
async def test_a_name_that_is_none_is_refused(name: str) -> None:
    async with a_world() as world:
        with pytest.raises(UserError, match="give it 1 to 200"):
            await world.engine.session(name)


class HeldClaims(HeldStore):
    """A claim waits at `gate` before anything is done."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None

    async def claim(self, session: str) -> SessionHead | None:
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate()
        return await super().claim(session)


async def test_a_session_that_was_deleted_does_not_come_back_by_itself() -> None:
    store = HeldClaims()
    async with a_world(store=store) as world:
        session = await world.session()
        gate = store.gate = Gate()
        store.fail_next(MessageAccepted)
        with pytest.raises(JournalBroken):
            await session.send("lost, and told so")
        await gate.reached.wait()
        await store.delete("alice")
        gate.opened.set()
        await a_while()
        assert await store.head("alice") is None
        assert world.in_memory == ()


async def test_a_closed_engine_claims_no_session_any_more() -> None:
    store = HeldClaims()
    gate = store.gate = Gate()

    async def open_late(world: World) -> None:
        with pytest.raises(EngineClosed):
            await world.session()

    async with anyio.create_task_group() as tasks:
        async with a_world(store=store, limits=SOON, store_s=0.1) as world:
            tasks.start_soon(open_late, world)
            await gate.reached.wait()
        async with a_world([[Say("Hello")], [Say("Again")]], store=store) as world:
            session = await world.session()
            await completes(session, "Hi")
            gate.opened.set()
            await a_while()
            await completes(session, "Hi again")
            await world.check()
