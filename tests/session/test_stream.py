"""`session.stream`: a message and its turn, from the event that takes it to its last one."""

from __future__ import annotations

import inspect
from contextlib import aclosing

import anyio
import pytest

from bargein.contracts.message import Mode
from bargein.contracts.receipt import ReceiptStatus
from bargein.contracts.tool import CallResult, CallStatus, Question
from bargein.errors import BargeinError
from bargein.events import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    CallEnded,
    ChildEnded,
    ChildStarted,
    MessagesTaken,
    MessageWithdrawn,
    QuestionAsked,
    QuestionClosed,
    SessionTitled,
    StepBegan,
    TextDelta,
    TurnEvent,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.models.script import Call, Say, Step, Wait
from bargein.session.journal import JournalBroken
from bargein.session.results import MessageGone
from bargein.session.session import Busy, Session, TurnFailed
from bargein.session.streaming import EventsOfTurn
from tests.session.world import WITHIN_S, World, a_while, a_world, completes, until, wait_for

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


async def read(session: Session, text: str, into: list[TurnEvent], mode: Mode = Mode.STEER) -> None:
    with anyio.fail_after(WITHIN_S):
        async for event in session.stream(text, mode=mode):
            into.append(event)  # noqa: PERF401 - looked at while it grows


def words(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def is_watched(world: World, name: str = "alice") -> bool:
    actor = world.engine.core.actor_in_memory(name)
    return actor is not None and actor.broadcast.is_watched


async def test_a_stream_has_all_of_its_turn_from_the_first_event_to_the_last() -> None:
    async with a_world([HOLD]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        async with anyio.create_task_group() as group:
            group.start_soon(read, session, "Hi", seen)
            await world.model.gate("hold").reached()
            await until(lambda: words(seen) == "One ")
            world.model.gate("hold").open()
        assert seen[0] == TurnStarted("t1", ("m1",))
        assert isinstance(seen[-1], TurnSettled)
        assert seen[-1].outcome is TurnOutcome.COMPLETED
        assert words(seen) == "One two"
        assert any(isinstance(event, StepBegan) for event in seen)
        assert not is_watched(world)


async def test_a_message_that_waits_streams_its_own_turn_alone() -> None:
    async with a_world([HOLD, [Say("three")]]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        async with anyio.create_task_group() as group:
            group.start_soon(read, session, "2", seen, Mode.QUEUE)
            while not await session.inbox():
                await a_while()
            world.model.gate("hold").open()
        assert str(await first.result()) == "One two"
        assert words(seen) == "three"
        assert {event.turn for event in seen if hasattr(event, "turn")} == {"t2"}


async def test_a_steer_streams_the_turn_that_it_joins_from_there_on() -> None:
    async with a_world([HOLD, [Say("so be it")]]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        await session.send("1")
        await world.model.gate("hold").reached()
        await read(session, "rather this", seen)
        assert seen[0] == MessagesTaken("t1", ("m2",))
        assert words(seen) == "so be it"
        assert isinstance(seen[-1], TurnSettled)


async def test_leaving_the_loop_stops_nothing() -> None:
    async with a_world([HOLD, [Say("again")]]) as world:
        session = await world.session()
        async with aclosing(session.stream("Hi")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        assert not is_watched(world)
        world.model.gate("hold").open()
        (settled,) = await wait_for(session, TurnSettled)
        assert isinstance(settled.event, TurnSettled)
        assert settled.event.outcome is TurnOutcome.COMPLETED
        await completes(session, "and now?")


async def test_cancelling_the_reader_ends_only_the_reading() -> None:
    async with a_world([HOLD]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        async with anyio.create_task_group() as group:
            group.start_soon(read, session, "Hi", seen)
            await world.model.gate("hold").reached()
            group.cancel_scope.cancel()
        assert (await session.state()).turn == "t1"
        world.model.gate("hold").open()
        (settled,) = await wait_for(session, TurnSettled)
        assert getattr(settled.event, "outcome", None) is TurnOutcome.COMPLETED


async def test_a_stop_ends_the_stream_with_its_receipt() -> None:
    async with a_world([HOLD]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        async with anyio.create_task_group() as group:
            group.start_soon(read, session, "Hi", seen)
            await world.model.gate("hold").reached()
            await session.interrupt()
        last = seen[-1]
        assert isinstance(last, TurnSettled)
        assert last.outcome is TurnOutcome.STOPPED
        assert last.receipt is not None
        assert last.receipt.status is ReceiptStatus.STOPPED


async def test_a_turn_that_fails_is_raised_after_its_last_event() -> None:
    async def broken(turn: object) -> str:
        raise RuntimeError("as the test says")

    async with a_world(agent=broken) as world:
        session, seen = await world.session(), list[TurnEvent]()
        with pytest.raises(TurnFailed, match="as the test says"):
            await read(session, "Hi", seen)
        assert isinstance(seen[-1], TurnSettled)
        assert seen[-1].outcome is TurnOutcome.FAILED


async def test_a_message_that_is_withdrawn_ends_its_stream() -> None:
    async with a_world([HOLD]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        await session.send("1")
        await world.model.gate("hold").reached()

        async def read_gone() -> None:
            with pytest.raises(MessageGone):
                await read(session, "2", seen, Mode.QUEUE)

        async with anyio.create_task_group() as group:
            group.start_soon(read_gone)
            while not await session.inbox():
                await a_while()
            await session.withdraw("m2")
        assert seen == []
        world.model.gate("hold").open()


async def test_the_same_message_again_streams_the_same_turn_from_the_log() -> None:
    async with a_world([[Say("once")], [Say("twice")]]) as world:
        session = await world.session()
        await completes(session, "Hi", client_id="c1")
        await completes(session, "another")
        seen = [event async for event in session.stream("Hi", client_id="c1")]
        assert seen[0] == TurnStarted("t1", ("m1",))
        assert isinstance(seen[-1], TurnSettled)
        assert {event.turn for event in seen if hasattr(event, "turn")} == {"t1"}
        assert len(world.model.requests) == 2


async def test_a_stream_goes_on_when_the_store_failed_and_the_session_came_back() -> None:
    async with a_world([HOLD, [Say("again")]]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        async with anyio.create_task_group() as group:
            group.start_soon(read, session, "Hi", seen)
            await world.model.gate("hold").reached()
            world.held_store.fail_next(AssistantSaid)
            world.model.gate("hold").open()
        last = seen[-1]
        assert isinstance(last, TurnSettled)
        assert last.outcome is TurnOutcome.CRASHED
        await completes(session, "and now?")


async def test_a_stream_takes_no_session_back_from_another_owner() -> None:
    async with a_world([HOLD]) as world:
        session, seen = await world.session(), list[TurnEvent]()

        async def read_lost() -> None:
            with pytest.raises(BargeinError):
                await read(session, "Hi", seen)

        async with anyio.create_task_group() as group:
            group.start_soon(read_lost)
            await world.model.gate("hold").reached()
            taken = await world.store.claim("alice")
            with pytest.raises(JournalBroken):
                await session.send("one more")
        now = await world.store.head("alice")
        assert taken is not None
        assert now is not None
        assert now.epoch == taken.epoch
        assert not isinstance(seen[-1], TurnSettled)


async def test_a_message_that_is_refused_leaves_no_watcher() -> None:
    async with a_world([HOLD]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        await session.send("1")
        await world.model.gate("hold").reached()
        with pytest.raises(Busy):
            await read(session, "2", seen, Mode.REJECT)
        assert not is_watched(world)
        world.model.gate("hold").open()


async def test_calls_are_in_the_stream() -> None:
    def look() -> str:
        """Look around."""
        return "a lake"

    async with a_world([[Call("look")], [Say("I see a lake")]], tools=[look]) as world:
        session, seen = await world.session(), list[TurnEvent]()
        await read(session, "Look", seen)
        (ended,) = [event for event in seen if isinstance(event, CallEnded)]
        assert ended.result.status is CallStatus.FINISHED
        assert words(seen) == "I see a lake"


def test_what_ends_without_naming_its_turn_belongs_to_the_turn_that_began_it() -> None:
    result = CallResult(CallStatus.FINISHED, ())
    mine: list[TurnEvent] = [
        TurnStarted("t2", ("m2",)),
        QuestionAsked("t2", "q2", Question("which?")),
        QuestionClosed("q2", "this"),
        ChildStarted("t2", "c1", "alice.1", "look"),
        ChildEnded("alice.1", TurnOutcome.COMPLETED),
        CallDetached("t2", "c2"),
        BackgroundEnded("c2", result),
        TurnSettled("t2", TurnOutcome.COMPLETED),
    ]
    others: list[TurnEvent] = [
        QuestionClosed("q1", "that"),
        ChildEnded("alice.0", TurnOutcome.STOPPED),
        BackgroundEnded("c0", result),
        SessionTitled("a title", "model"),
        MessageWithdrawn("m3", "user"),
        TextDelta("t1", "of another turn"),
    ]
    events = EventsOfTurn("m2")
    told = [*others, mine[0]]
    for each in mine[1:]:
        told += [*others, each]
    told += others
    assert [each for each in told if events.include(each)] == mine
    assert events.are_over


def test_it_takes_what_send_takes() -> None:
    def parameters(function: object) -> list[inspect.Parameter]:
        assert callable(function)
        return list(inspect.signature(function).parameters.values())

    assert parameters(Session.stream) == parameters(Session.send)
