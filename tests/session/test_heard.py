"""What the user heard of an answer: the model sees no more of it, and the log keeps every word."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bargein.contracts.event import (
    AnswerHeard,
    AssistantSaid,
    CallEnded,
    Compressed,
    Event,
    Recorded,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import HeardSoFar
from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from bargein.contracts.receipt import ReceiptStatus
from bargein.contracts.tool import CallResult, CallStatus
from bargein.errors import UserError
from bargein.models.script import Call, Say, Wait
from bargein.session.results import TurnResult
from bargein.session.token_estimate import tokens_of_message
from bargein.session.transcript import Transcript, check_history
from bargein.stores.memory import MemoryStore
from bargein.view import Picture
from tests.session.laws import events_of
from tests.session.world import WITHIN_S, Gate, HeldStore, Script, World, a_world, completes

pytestmark = pytest.mark.anyio

SEA = "The sea is wide and the wind is strong."
HEARD = len("The sea is wide")


def said(messages: tuple[ModelMessage, ...]) -> list[str]:
    """The words of the assistant as the model sees them."""
    return [
        part.text
        for message in messages
        if isinstance(message, AssistantMessage)
        for part in message.content
        if isinstance(part, Text)
    ]


def last_words(messages: tuple[ModelMessage, ...]) -> str:
    last = messages[-1]
    assert isinstance(last, UserMessage)
    return "\n".join(part.text for part in last.content if isinstance(part, Text))


async def asked(world: World, number: int = -1) -> tuple[ModelMessage, ...]:
    return world.model.requests[number].messages


class TestInASession:
    async def test_a_stop_says_what_was_heard(self) -> None:
        async with a_world([[Say(SEA), Wait("hold")], [Say("Yes.")]]) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            receipt = await session.interrupt(heard=HeardSoFar("t1", HEARD))
            assert receipt.status is ReceiptStatus.STOPPED
            assert receipt.stored
            await completes(session, "go on")
            assert said(await asked(world)) == ["The sea is wide"]
            # The log keeps every word.
            (whole,) = [
                e
                for e in events_of(await world.log())
                if isinstance(e, AssistantSaid) and e.turn == "t1"
            ]
            assert whole.message.content == (Text(SEA),)
            assert said(await session.transcript()) == ["The sea is wide", "Yes."]
            await world.check()

    async def test_after_the_turn_settled(self) -> None:
        """Speech lags behind text."""
        async with a_world([[Say(SEA)], [Say("Yes.")]]) as world:
            session = await world.session()
            await completes(session, "go")
            receipt = await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", HEARD))
            assert receipt.status is ReceiptStatus.TOO_LATE
            assert receipt.stored
            await completes(session, "go on")
            assert said(await asked(world)) == ["The sea is wide"]
            assert "cut off" in last_words(await asked(world))
            await world.check()

    async def test_with_the_message_that_barges_in(self) -> None:
        async with a_world([[Say(SEA), Wait("hold")], [Say("Yes.")]]) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            await completes(session, "rather this", mode="interrupt", heard=HeardSoFar("t1", HEARD))
            assert said(await asked(world)) == ["The sea is wide"]
            await world.check()

    async def test_with_a_steer_the_rest_of_the_turn_is_heard(self) -> None:
        script: Script = [[Say(SEA), Wait("hold")], [Say("The wind, then.")], [Say("Yes.")]]
        async with a_world(script) as world:
            session = await world.session()
            sent = await session.send("go")
            await world.model.gate("hold").reached()
            await session.send("the wind?", heard=HeardSoFar("t1", HEARD))
            with anyio.fail_after(WITHIN_S):
                await sent.result()
            assert said(await asked(world)) == ["The sea is wide"]
            await completes(session, "go on")
            assert said(await asked(world)) == ["The sea is wide", "The wind, then."]
            # And of that, counted on from what was heard before.
            count = HEARD + len("The wind")
            await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", count))
            assert said(await session.transcript()) == ["The sea is wide", "The wind", "Yes."]
            await world.check()

    async def test_calls_and_results_stay(self) -> None:
        async def work() -> str:
            """Work."""
            return "worked"

        script: Script = [[Say("I work."), Call("work")], [Say(SEA)], [Say("Yes.")]]
        async with a_world(script, tools=[work]) as world:
            session = await world.session()
            await completes(session, "go")
            await completes(session, "and?", heard=HeardSoFar("t1", 0))
            messages = await asked(world)
            assert said(messages) == []
            kinds = [type(message) for message in messages]
            assert kinds == [UserMessage, AssistantMessage, ToolMessage, UserMessage]
            assert isinstance(messages[1], AssistantMessage)
            assert [type(part) for part in messages[1].content] == [ToolCall]
            await world.check()

    async def test_code_points_are_counted(self) -> None:
        async with a_world([[Say("Ça va 👋🏽 là-bas")], [Say("Oui.")]]) as world:
            session = await world.session()
            await completes(session, "go")
            await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", 8))
            assert said(await session.transcript()) == ["Ça va 👋🏽"]

    async def test_more_than_was_said_changes_nothing(self) -> None:
        async with a_world([[Say(SEA)]]) as world:
            session = await world.session()
            await completes(session, "go")
            await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", 10_000))
            assert said(await session.transcript()) == [SEA]

    async def test_a_message_that_names_no_turn_is_refused_and_a_stop_is_not(self) -> None:
        async with a_world([[Say("half"), Wait("hold")]]) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            with pytest.raises(UserError, match="does not have"):
                await session.send("no", heard=HeardSoFar("t9", 1))
            receipt = await session.interrupt(heard=HeardSoFar("t9", 1))
            assert receipt.status is ReceiptStatus.STOPPED
            assert not [e for e in events_of(await world.log()) if isinstance(e, AnswerHeard)]

    async def test_wrong_values_are_refused(self) -> None:
        async with a_world() as world:
            session = await world.session()
            wrong: Any = 3
            with pytest.raises(TypeError, match="HeardSoFar"):
                await session.interrupt(heard=wrong)
            with pytest.raises(ValueError, match="give 0 to"):
                await session.send("hi", heard=HeardSoFar("t1", -1))

    async def test_it_survives_a_restart(self) -> None:
        store = HeldStore()
        async with a_world([[Say(SEA), Wait("hold")]], store=store) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            await session.interrupt(heard=HeardSoFar("t1", HEARD))
        async with a_world([[Say("Yes.")]], store=store) as world:
            await completes(await world.session(), "go on")
            assert said(await asked(world)) == ["The sea is wide"]

    async def test_while_the_next_turn_reads_the_log(self) -> None:
        """A turn of a session that has just come back reads the log, and misses nothing that comes
        meanwhile."""
        store = ReadStore()
        async with a_world([[Say(SEA)]], store=store) as world:
            await completes(await world.session(), "go")
        async with a_world([[Say("Yes.")]], store=store) as world:
            session = await world.session()
            first, second = store.hold_readings(2)
            results: list[TurnResult] = []

            async def talk() -> None:
                results.append(await completes(session, "go on"))

            with anyio.fail_after(WITHIN_S):
                async with anyio.create_task_group() as group:
                    group.start_soon(talk)
                    await first.reached.wait()
                    # Something new in the log, so that the turn reads it again.
                    await session.rename("the sea")
                    first.opened.set()
                    await second.reached.wait()
                    for characters in (len(SEA), HEARD, HEARD + 5):
                        heard = HeardSoFar("t1", characters)
                        await session.interrupt(expected_turn="t1", heard=heard)
                    second.opened.set()
            assert said(await asked(world)) == ["The sea is wide"]

    async def test_reports_without_a_turn_between_take_no_memory(self) -> None:
        store = HeldStore()
        async with a_world([[Say(SEA)]], store=store) as world:
            await completes(await world.session(), "go")
        async with a_world([[Say("Yes.")]], store=store) as world:
            session = await world.session()
            for characters in range(50):
                await session.interrupt(heard=HeardSoFar("t1", HEARD + characters))
            actor = world.engine.core.actor_in_memory("alice")
            assert actor is not None
            assert len(actor.logbook._heard) == 1
            await completes(session, "go on")
            assert said(await asked(world)) == ["The sea is wide"]

    async def test_undo_takes_back_the_turn_with_what_was_heard(self) -> None:
        async with a_world([[Say(SEA)], [Say("One.")], [Say("Two.")]]) as world:
            session = await world.session()
            await completes(session, "go")
            await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", HEARD))
            await completes(session, "more")
            await session.undo()
            assert said(await session.transcript()) == ["The sea is wide"]
            await session.undo()
            assert said(await session.transcript()) == []
            await completes(session, "anew")
            await world.check()

    async def test_a_fork_respects_it_also_if_it_was_told_later(self) -> None:
        async with a_world([[Say(SEA)], [Say("One.")]]) as world:
            session = await world.session()
            await completes(session, "go")
            await completes(session, "more")
            await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", HEARD))
            for turn, words in (("t1", ["The sea is wide"]), (None, ["The sea is wide", "One."])):
                forked = await world.engine.session(await session.fork(turn))
                assert said(await forked.transcript()) == words

    async def test_the_picture_marks_it(self) -> None:
        async with a_world([[Say(SEA), Wait("hold")]]) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            await session.interrupt(heard=HeardSoFar("t1", HEARD))
            picture = Picture.of(await session.events())
            (answer,) = picture.turns["t1"].answers
            assert (answer.text, answer.heard) == (SEA, HEARD)


class ReadStore(MemoryStore):
    """Its next readings of a log can be held, each with what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: list[Gate] = []

    def hold_readings(self, count: int) -> list[Gate]:
        self._gates = [Gate() for _ in range(count)]
        return list(self._gates)

    async def events(self, *args: Any, **options: Any) -> list[Recorded]:
        found = await super().events(*args, **options)
        if self._gates:
            await self._gates.pop(0)()
        return found


# The transcript alone


def transcript_of(*events: Event) -> Transcript:
    return Transcript.of(Recorded(seq, 0.0, event) for seq, event in enumerate(events, 1))


def turn(number: int, *events: Event, settled: bool = True) -> tuple[Event, ...]:
    name = f"t{number}"
    begins = (TurnStarted(name, (f"m{number}",)), UserSaid(name, (Text(f"ask {number}"),)))
    ends = (TurnSettled(name, TurnOutcome.COMPLETED),) if settled else ()
    return (*begins, *events, *ends)


def says(number: int, text: str, *calls: str, partial: bool = False) -> AssistantSaid:
    content: tuple[Text | ToolCall, ...] = (
        Text(text),
        *(ToolCall(call, "work", "{}") for call in calls),
    )
    return AssistantSaid(f"t{number}", AssistantMessage(content), partial=partial)


def ended(number: int, call: str) -> CallEnded:
    return CallEnded(f"t{number}", call, CallResult(CallStatus.FINISHED, (Text("worked"),)))


def test_only_the_named_turn_is_shortened() -> None:
    transcript = transcript_of(
        *turn(1, says(1, "first")), *turn(2, says(2, "second")), AnswerHeard("t1", 2, "user")
    )
    assert said(transcript.messages()) == ["fi", "second"]


def test_words_said_while_calls_run_are_shortened_in_order() -> None:
    transcript = transcript_of(
        *turn(
            1,
            says(1, "one", "c1"),
            says(1, "two"),
            AnswerHeard("t1", 4, "user"),
            ended(1, "c1"),
            settled=False,
        )
    )
    assert said(transcript.messages()) == ["one", "t"]


def test_signed_thoughts_go_with_the_last_word_and_stay_with_a_call() -> None:
    thought = Reasoning("hm", "signed")
    plain = AssistantSaid("t1", AssistantMessage((thought, Text("words"))))
    transcript = transcript_of(*turn(1, plain), AnswerHeard("t1", 0, "user"))
    assert [type(each) for each in transcript.messages()] == [UserMessage]
    calling = AssistantSaid(
        "t1", AssistantMessage((thought, Text("words"), ToolCall("c1", "work", "{}")))
    )
    transcript = transcript_of(*turn(1, calling, ended(1, "c1")), AnswerHeard("t1", 0, "user"))
    kept = transcript.messages()[1]
    assert isinstance(kept, AssistantMessage)
    assert kept.content == (thought, ToolCall("c1", "work", "{}"))


def test_a_summary_of_unheard_words_is_given_up() -> None:
    past = (*turn(1, says(1, "first words")), *turn(2, says(2, "second")))
    summed = Compressed("t3", len(past) + 1, "they talked about secret words")
    with_summary = transcript_of(*past, *turn(3, summed, says(3, "third")))
    assert "secret" in str(with_summary.messages())
    heard = transcript_of(*past, *turn(3, summed, says(3, "third")), AnswerHeard("t1", 5, "user"))
    assert "secret" not in str(heard.messages())
    assert said(heard.messages()) == ["first", "second", "third"]
    # A summary that comes later replaces what was heard, and undoing that turn takes it back.
    again = Compressed("t4", len(past) + 1, "anew")
    later = (
        *past,
        *turn(3, summed, says(3, "third")),
        AnswerHeard("t1", 5, "user"),
        *turn(4, again, says(4, "fourth")),
    )
    assert "anew" in str(transcript_of(*later).messages())
    undone = transcript_of(*later, TurnHidden("t4", "user"))
    assert said(undone.messages()) == ["first", "second", "third"]


def test_a_summary_of_heard_words_stays() -> None:
    past = (*turn(1, says(1, "first")), *turn(2, says(2, "second")))
    summed = Compressed("t3", len(past) + 1, "the summary")
    transcript = transcript_of(
        *past, *turn(3, summed, says(3, "third")), AnswerHeard("t3", 2, "user")
    )
    assert "the summary" in str(transcript.messages())
    assert said(transcript.messages()) == ["th"]


def test_token_sums_follow() -> None:
    transcript = transcript_of(*turn(1, says(1, "word " * 500)))
    before = transcript.tokens_of(transcript.messages())
    transcript.apply(AnswerHeard("t1", 4, "user"), 99)
    after = transcript.tokens_of(transcript.messages())
    assert after < before / 2


TURNS = st.lists(
    st.lists(st.sampled_from(["say", "call", "heard 0", "heard 3", "heard 7", "sum"]), max_size=6),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(TURNS, st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=4))
def test_whatever_was_heard_the_transcript_is_well_formed(
    turns: list[list[str]], late: list[tuple[int, int]]
) -> None:
    """After each event that closes the calls; and what is heard never grows."""
    transcript, seq, calls = Transcript(), 0, 0

    def tell(event: Event) -> None:
        nonlocal seq
        seq += 1
        transcript.apply(event, seq)

    def check() -> None:
        messages = transcript.messages()
        check_history(messages)
        assert all(message.content for message in messages if not isinstance(message, ToolMessage))
        expected = sum(map(tokens_of_message, messages))
        # An answer of which nothing was heard still counts for a few tokens.
        assert expected - 0.01 < transcript.tokens_of(messages) < expected + 10 * seq

    for number, steps in enumerate(turns, 1):
        name = f"t{number}"
        tell(TurnStarted(name, (f"m{number}",)))
        tell(UserSaid(name, (Text("ask"),)))
        for step in steps:
            if step == "say":
                tell(says(number, "words"))
            elif step == "call":
                calls += 1
                tell(says(number, "calling", f"c{calls}"))
                tell(ended(number, f"c{calls}"))
            elif step == "sum":
                tell(Compressed(name, seq + 1, "a summary"))
            else:
                tell(AnswerHeard(name, int(step.split()[1]), "user"))
            check()
        tell(TurnSettled(name, TurnOutcome.COMPLETED))
    for number, characters in late:
        before = "".join(said(transcript.messages()))
        tell(AnswerHeard(f"t{number}", characters, "user"))
        check()
        if not any("sum" in steps for steps in turns):
            assert len("".join(said(transcript.messages()))) <= len(before)


@pytest.mark.parametrize("turn", ["t" + "9" * 5000, "t01", "t0", "t-1", "t1 ", "x1"])
async def test_a_turn_that_cannot_exist_does_not_keep_a_stop_from_landing(turn: str) -> None:
    async with a_world([[Say(SEA), Wait("more")]]) as world:
        session = await world.session()
        sent = await session.send("Tell me of the sea")
        await world.model.gate("more").reached()
        with anyio.fail_after(WITHIN_S):
            receipt = await session.interrupt(heard=HeardSoFar(turn, 3))
        assert (receipt.status, receipt.by) == (ReceiptStatus.STOPPED, "user")
        await sent.result()
        with pytest.raises(UserError, match="does not have"):
            await session.send("And?", heard=HeardSoFar(turn, 3))
        await world.check()


@pytest.mark.parametrize("characters", [2**53, 2**64, 2**200])
async def test_more_characters_than_any_log_can_keep_are_refused(characters: int) -> None:
    async with a_world([[Say(SEA)], [Say("Yes.")]]) as world:
        session = await world.session()
        await completes(session, "Tell me of the sea")
        with pytest.raises(ValueError, match="characters"):
            await session.interrupt(heard=HeardSoFar("t1", characters))
        await completes(session, "And?", heard=HeardSoFar("t1", 2**53 - 1))
        await world.check()


async def test_a_store_that_fails_is_in_the_receipt_and_no_error() -> None:
    store = HeldStore()
    async with a_world([[Say(SEA)], [Say("Yes.")]], store=store) as world:
        session = await world.session()
        await completes(session, "Tell me of the sea")
        await session.settled()
        store.fail_next(AnswerHeard)
        with anyio.fail_after(WITHIN_S):
            receipt = await session.interrupt(heard=HeardSoFar("t1", 3))
        assert receipt.status is ReceiptStatus.TOO_LATE
        assert not receipt.stored
        await completes(session, "And?")


def test_white_space_alone_is_not_left_of_an_answer() -> None:
    transcript = Transcript()
    events: list[Event] = [
        TurnStarted("t1", ("m1",)),
        UserSaid("t1", (Text("hi"),)),
        AssistantSaid("t1", AssistantMessage((Text("\n\nHello."),)), "model"),
        TurnSettled("t1", TurnOutcome.COMPLETED),
        AnswerHeard("t1", 2, "user"),
    ]
    for seq, event in enumerate(events, 1):
        transcript.apply(event, seq)
    assert said(transcript.messages()) == []


async def test_it_counts_for_a_session_that_left_memory_before_the_loop_learned_of_the_stop() -> (
    None
):
    store = HeldStore()
    async with a_world([[Say(SEA)], [Say("Yes.")]], store=store) as world:
        session = await world.session()
        await completes(session, "Tell me of the sea")
        await session.settled()
        stop = session.interrupt_now(heard=HeardSoFar("t1", HEARD))
        world.engine.core.let_go("alice")
        assert world.in_memory == ()
        with anyio.fail_after(WITHIN_S):
            receipt = await stop.receipt()
        assert (receipt.status, receipt.stored) == (ReceiptStatus.TOO_LATE, True)
        assert said(await session.transcript()) == [SEA[:HEARD]]
        await completes(session, "And?")
        await world.check()
