"""Long conversations: the older part is summarised, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from bargein.calls.words import SUMMARY_BEGINS
from bargein.cancel import Cause
from bargein.contracts.budget import Purpose
from bargein.contracts.event import (
    Compressed,
    ModelUsed,
    Recorded,
    TurnOutcome,
    UserSaid,
)
from bargein.contracts.live import StepBegan, StepOver
from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallStatus
from bargein.errors import UserError
from bargein.models.script import Answer, Call, Count, Expect, Fail, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.session.compress import cut_of, record_of
from bargein.session.session import Busy, TurnFailed
from bargein.session.transcript import Transcript
from bargein.stores.memory import MemoryStore
from tests.session.laws import check_transcript, events_of
from tests.session.world import (
    CONFIG,
    LIMITS,
    HeldStore,
    World,
    completes,
    until_idle,
    watching,
)

pytestmark = pytest.mark.anyio

LONG = "word " * 330
"""About 400 tokens by our count."""
SUMMARY = Answer([Expect(system="record of a conversation"), Say("They talked about words.")])


@asynccontextmanager
async def a_long_world(
    *answers: Answer,
    context_tokens: int | None = 2000,
    tools: Sequence[Any] = (),
    store: MemoryStore | None = None,
) -> AsyncIterator[World]:
    model = ScriptedModel(answers, context_tokens=context_tokens)
    store = store or HeldStore()
    agent = Agent(model=model, tools=tools)
    async with Engine(agent, store=store, config=CONFIG, limits=LIMITS) as engine:
        yield World(engine, model, store)


async def talk(world: World, turns: int) -> None:
    session = await world.session()
    for number in range(turns):
        await completes(session, f"{number}: {LONG}")


def talking(turns: int) -> list[Answer]:
    return [Answer([Say(f"answer {number}")]) for number in range(turns)]


async def compressed(world: World) -> list[Compressed]:
    return [e for e in events_of(await world.log()) if isinstance(e, Compressed)]


def texts(messages: Sequence[ModelMessage]) -> str:
    return "\n".join(
        part.text
        for message in messages
        if not isinstance(message, ToolMessage)
        for part in message.content
        if isinstance(part, Text)
    )


async def test_the_older_part_is_summarised_when_the_next_request_would_not_fit() -> None:
    async with a_long_world(*talking(3), SUMMARY, Answer([Say("short again")])) as world:
        session = await world.session()
        await talk(world, 3)
        assert not await compressed(world)
        async with watching(session) as seen:
            await completes(session, f"the last: {LONG}")
        (event,) = await compressed(world)
        assert event.summary == "They talked about words."
        assert event.tokens_after < event.tokens_before
        asked = world.model.requests[-1].messages
        assert SUMMARY_BEGINS in texts(asked)
        assert "They talked about words." in texts(asked)
        assert "0: word" not in texts(asked)
        assert f"the last: {LONG}" in texts(asked)
        steps = [each for each in seen if isinstance(each, StepBegan | StepOver)]
        kinds = [(type(each), each.kind) for each in steps]
        assert kinds[:2] == [
            (StepBegan, StepKind.COMPRESSION),
            (StepOver, StepKind.COMPRESSION),
        ]
        await world.check()


async def test_what_was_said_stays_in_the_log_and_the_same_is_shown_after_a_restart() -> None:
    store = HeldStore()
    async with a_long_world(*talking(3), SUMMARY, Answer([Say("ok")]), store=store) as world:
        await talk(world, 4)
        shown = await (await world.session()).transcript()
        inside = world.engine._engine
        assert inside is not None
        actor = inside.actor_in_memory("alice")
        assert actor is not None
        assert actor.logbook.transcript.messages() == shown
    said = [e for e in events_of(await store.events("alice")) if isinstance(e, UserSaid)]
    assert len(said) == 4
    async with a_long_world(Answer([Say("again")]), store=store) as world:
        await completes(await world.session(), "and now?")
        assert world.model.requests[0].messages[: len(shown)] == shown
        await world.check()


async def test_a_stop_during_the_summary_leaves_the_transcript_as_it_was() -> None:
    summary = Answer([Say("They "), Wait("hold"), Say("never")])
    async with a_long_world(*talking(3), summary, SUMMARY, Answer([Say("ok")])) as world:
        session = await world.session()
        await talk(world, 3)
        before = await session.transcript()
        await session.send(f"the last: {LONG}")
        await world.model.gate("hold").reached()
        receipt = await session.interrupt()
        assert [(s.kind, s.status) for s in receipt.steps] == [
            (StepKind.COMPRESSION, CallStatus.STOPPED)
        ]
        assert not await compressed(world)
        after = await session.transcript()
        assert after[: len(before)] == before
        used = [e for e in events_of(await world.log()) if isinstance(e, ModelUsed)]
        assert used[-1].purpose is Purpose.SUMMARY
        assert used[-1].usage.input_tokens > 0
        await completes(session, "go on")
        assert len(await compressed(world)) == 1
        await world.check()


async def test_a_crash_during_the_summary_leaves_the_transcript_as_it_was() -> None:
    store = HeldStore()
    summary = Answer([Wait("hold"), Say("never")])
    async with a_long_world(*talking(3), summary, store=store) as world:
        session = await world.session()
        await talk(world, 3)
        await session.send(f"the last: {LONG}")
        await world.model.gate("hold").reached()
        durable = store.snapshot()
        before = await session.transcript()
    crashed = HeldStore()
    crashed.restore(durable)
    async with a_long_world(SUMMARY, Answer([Say("ok")]), store=crashed) as world:
        session = await world.session()
        await until_idle(session)
        assert (await session.transcript()) == before
        await completes(session, "go on")
        await world.check()


async def test_a_summary_that_is_not_durable_yet_is_not_used() -> None:
    async with a_long_world(*talking(3), SUMMARY, Answer([Say("ok")])) as world:
        session = await world.session()
        await talk(world, 3)
        world.held_store.hold(Compressed)
        sent = await session.send(f"the last: {LONG}")
        await world.held_store.reached.wait()
        assert len(world.model.requests) == 4
        world.held_store.release()
        await sent.result()
        assert len(world.model.requests) == 5


async def test_a_message_that_comes_during_the_summary_is_heard_right_after_it() -> None:
    summary = Answer([Wait("hold"), Say("They talked.")])
    heard = Answer([Say("heard")])
    async with a_long_world(*talking(3), summary, heard) as world:
        session = await world.session()
        await talk(world, 3)
        await session.send(f"the last: {LONG}")
        await world.model.gate("hold").reached()
        await session.send("and this")
        world.model.gate("hold").open()
        await until_idle(session)
        assert len(world.model.requests) == 5
        assert "and this" in texts(world.model.requests[-1].messages)
        await world.check()


async def test_calls_and_their_results_stay_together() -> None:
    def read() -> str:
        """Read something long."""
        return LONG

    working = Answer([Call("read")])
    script = [*[working] * 4, SUMMARY, working, Answer([Say("done")])]
    async with a_long_world(*script, tools=[read]) as world:
        session = await world.session()
        await completes(session, "Work through it.")
        (event,) = await compressed(world)
        asked = world.model.requests[-1].messages
        assert texts(asked).count("Work through it.") == 1
        assert any(isinstance(message, ToolMessage) for message in asked)
        check_transcript(asked)
        assert event.keeps is not None
        await world.check()


async def test_a_summary_is_summarised_with_the_rest() -> None:
    again = Answer([Expect(user="They talked about words."), Say("Of words, and more words.")])
    script = [*talking(3), SUMMARY, *talking(3), again, *talking(1)]
    async with a_long_world(*script) as world:
        await talk(world, 7)
        first, second = await compressed(world)
        assert second.before > first.before
        asked = texts(world.model.requests[-1].messages)
        assert "more words" in asked
        assert "They talked about words." not in asked
        await world.check()


async def test_taking_a_turn_back_takes_its_compression_back() -> None:
    async with a_long_world(
        *talking(3), SUMMARY, Answer([Wait("hold")]), Answer([Say("ok")])
    ) as world:
        session = await world.session()
        await talk(world, 3)
        before = await session.transcript()
        await session.send(f"the last: {LONG}")
        await world.model.gate("hold").reached()
        assert len(await compressed(world)) == 1
        sent = await session.send("no, this", mode="rollback")
        await sent.result()
        shown = await session.transcript()
        assert shown[: len(before)] == before
        assert SUMMARY_BEGINS not in texts(shown)
        await world.check()


class TestTooLong:
    """The provider says that it is too long, though nobody had told us its limit."""

    TOO_LONG = Answer(
        [Fail(status=400, message='{"error": {"message": "maximum context length exceeded"}}')]
    )

    async def test_one_compression_and_one_more_try(self) -> None:
        script = [*talking(4), self.TOO_LONG, SUMMARY, Answer([Say("now it fits")])]
        async with a_long_world(*script, context_tokens=None) as world:
            session = await world.session()
            await talk(world, 4)
            result = await completes(session, "go")
            assert result.text == "now it fits"
            assert len(await compressed(world)) == 1
            await world.check()

    async def test_not_more_than_one(self) -> None:
        script = [*talking(4), self.TOO_LONG, SUMMARY, self.TOO_LONG, Answer([Say("next")])]
        async with a_long_world(*script, context_tokens=None) as world:
            session = await world.session()
            await talk(world, 4)
            with pytest.raises(TurnFailed, match="maximum context"):
                await (await session.send("go")).result()
            assert len(await compressed(world)) == 1
            await completes(session, "next")
            await world.check()

    async def test_without_a_summary_the_older_part_is_left_out_and_that_is_said(self) -> None:
        refused = Answer([Fail(status=400, message="against our policy")])
        script = [*talking(4), self.TOO_LONG, refused, Answer([Say("now it fits")])]
        async with a_long_world(*script, context_tokens=None) as world:
            session = await world.session()
            await talk(world, 4)
            await completes(session, "go")
            (event,) = await compressed(world)
            assert event.dropped
            shown = texts(world.model.requests[-1].messages)
            assert "left out" in shown
            assert "0: word" not in shown
            assert SUMMARY_BEGINS not in shown
            await world.check()

    async def test_a_single_message_that_is_too_long_is_an_error_that_says_so(self) -> None:
        async with a_long_world(self.TOO_LONG, context_tokens=None) as world:
            session = await world.session()
            with pytest.raises(TurnFailed, match="maximum context"):
                await (await session.send(LONG)).result()


async def test_without_a_summary_it_goes_on_as_long_as_it_fits() -> None:
    script = [*talking(3), Answer([Say(" ")]), Answer([Say("no summary, no matter")])]
    async with a_long_world(*script) as world:
        session = await world.session()
        await talk(world, 3)
        await completes(session, f"the last: {LONG}")
        assert not await compressed(world)
        assert "0: word" in texts(world.model.requests[-1].messages)


async def test_a_model_that_cannot_be_reached_fails_the_turn_and_nothing_is_lost() -> None:
    gone = Answer([Fail(status=529)])
    script = [*talking(3), *[gone] * 4, SUMMARY, Answer([Say("back")])]

    async def at_once(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    model = ScriptedModel(script, context_tokens=2000, sleep=at_once)
    store = HeldStore()
    async with Engine(Agent(model=model), store=store, config=CONFIG, limits=LIMITS) as engine:
        world = World(engine, model, store)
        session = await world.session()
        await talk(world, 3)
        with pytest.raises(TurnFailed):
            await (await session.send(f"the last: {LONG}")).result()
        assert not await compressed(world)
        await completes(session, "again")
        await world.check()


async def test_the_providers_own_count_corrects_ours() -> None:
    counted = Answer([Say("a"), Count(input_tokens=1900, output_tokens=1)])
    async with a_long_world(counted, SUMMARY, Answer([Say("b")]), talking(1)[0]) as world:
        session = await world.session()
        await completes(session, f"1: {LONG}")
        # By our own count there would be room for several of these.
        await completes(session, f"2: {LONG}")
        assert len(world.model.requests) == 3
        assert len(await compressed(world)) == 1


class TestCompact:
    async def test_a_turn_of_its_own_without_a_message(self) -> None:
        async with a_long_world(
            *talking(4), SUMMARY, Answer([Say("ok")]), context_tokens=None
        ) as world:
            session = await world.session()
            await talk(world, 4)
            result = await session.compact()
            assert result.outcome is TurnOutcome.COMPLETED
            assert len(await compressed(world)) == 1
            await completes(session, "next")
            assert "They talked about words." in texts(world.model.requests[-1].messages)
            await world.check()

    async def test_it_can_be_interrupted(self) -> None:
        summary = Answer([Wait("hold"), Say("never")])
        async with a_long_world(*talking(3), summary, Answer([Say("ok")])) as world:
            session = await world.session()
            await talk(world, 3)
            before = await session.transcript()
            results = []

            async def compact() -> None:
                results.append(await session.compact())

            async with anyio.create_task_group() as group:
                group.start_soon(compact)
                await world.model.gate("hold").reached()
                receipt = await session.interrupt()
            assert receipt.reason is not None
            assert receipt.reason.root.cause is Cause.USER_STOP
            assert results[0].outcome is TurnOutcome.STOPPED
            assert await session.transcript() == before
            await completes(session, "next")
            assert "stopped" not in texts(world.model.requests[-1].messages)
            await world.check()

    async def test_what_is_held_stays_held_and_a_note_is_told_later(self) -> None:
        hold = Answer([Wait("hold")], when="hold")
        async with a_long_world(*talking(3), hold, SUMMARY, *talking(2)) as world:
            session = await world.session()
            await talk(world, 3)
            await session.send("hold")
            await world.model.gate("hold").reached()
            await session.send("later", mode="queue")
            await session.interrupt()
            await session.compact()
            assert (await session.state()).held
            assert [item.message.text for item in await session.inbox()] == ["later"]
            await completes(session, "next")
            asked = world.model.requests[5].messages
            assert "previous turn was stopped" in texts(asked[-1:])
            await until_idle(session)
            await world.check()

    async def test_not_while_a_turn_runs(self) -> None:
        async with a_long_world(Answer([Wait("hold"), Say("a")])) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            with pytest.raises(Busy):
                await session.compact()
            world.model.gate("hold").open()
            await until_idle(session)

    async def test_with_little_to_summarise_nothing_happens(self) -> None:
        async with a_long_world(Answer([Say("hello")])) as world:
            session = await world.session()
            await completes(session, "hi")
            assert (await session.compact()).outcome is TurnOutcome.COMPLETED
            assert not await compressed(world)

    async def test_an_agent_of_ones_own_says_that_it_cannot(self) -> None:
        async def agent(turn: object) -> str:
            return "done"

        async with Engine(agent, store="memory", config=CONFIG) as engine:
            session = await engine.session("alice")
            with pytest.raises(UserError, match="cannot compress"):
                await session.compact()


# What is kept, without an engine


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def said(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),))


def called(call: str) -> AssistantMessage:
    return AssistantMessage((ToolCall(call, "read", "{}"),))


def result(call: str, text: str) -> ToolMessage:
    return ToolMessage((ToolResult(call, (Text(text),)),))


def shown(*messages: ModelMessage) -> list[tuple[ModelMessage, int]]:
    return [(message, 10 * number) for number, message in enumerate(messages, 1)]


@pytest.mark.parametrize("keep_tokens", range(0, 1700, 50))
async def test_wherever_it_is_cut_what_is_kept_is_valid(keep_tokens: int) -> None:
    every = shown(
        user(LONG),
        said(LONG),
        user("the task"),
        called("a"),
        result("a", LONG),
        called("b"),
        result("b", LONG),
        called("c"),
        result("c", "short"),
    )
    cut = cut_of(every, keep_tokens=keep_tokens)
    assert cut is not None
    kept = [message for message, seq in every if seq == cut.keeps or seq >= cut.before]
    assert user("the task") in kept
    check_transcript([user("summary"), *kept])
    assert len(kept) + len(cut.older) == len(every)


async def test_nothing_is_cut_if_all_of_it_may_stay() -> None:
    assert cut_of(shown(user("a"), said("b")), keep_tokens=1000) is None
    assert cut_of(shown(user(LONG)), keep_tokens=10) is None


async def test_the_record_has_a_bound() -> None:
    messages: list[ModelMessage] = [user(LONG), *[said(LONG)] * 50, result("a", LONG * 10)]
    record = record_of("before", messages, characters_max=10_000)
    assert len(record) < 10_200
    assert "left out" in record
    assert record.startswith("Summary of what was said before:\nbefore")


async def test_the_transcript_shows_what_the_event_says() -> None:
    summary = Compressed("t1", 3, "both", keeps=None)
    log = [
        Recorded(1, 0.0, UserSaid("t1", (Text("first"),))),
        Recorded(2, 0.0, UserSaid("t1", (Text("second"),))),
        Recorded(3, 0.0, summary),
    ]
    transcript = Transcript.of(log)
    (message,) = transcript.messages()
    assert "both" in texts([message])
    assert "first" not in texts([message])
    dropped = msgspec.structs.replace(summary, summary="[gone]", dropped=True)
    transcript.apply(dropped, 4)
    assert texts(transcript.messages()) == "[gone]"
