"""A session as it is shown, event by event."""

from __future__ import annotations

import time

import pytest

from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    CallEnded,
    CallStarted,
    ChildEnded,
    ChildStarted,
    Event,
    InterruptLanded,
    MessageAccepted,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import (
    AnswerSoFar,
    AnswerVoid,
    CallOutput,
    Live,
    OutputSoFar,
    StepBegan,
    StepOver,
    Stopping,
    TextDelta,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import AssistantMessage, Text, ToolCall
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallResult, CallStatus, Effect, Question
from bargein.view import (
    AnswerReplaced,
    CallClosed,
    CallOpened,
    CallState,
    Change,
    Picture,
    Tail,
    TurnState,
    TurnStopping,
    WaitsFor,
    WordsAdded,
)

CALL = ToolCall("c1", "terminal", '{"command": "make"}')


class Feed:
    """Applies events to a picture, and numbers those of the log."""

    def __init__(self) -> None:
        self.picture = Picture("s")
        self.changes: list[Change] = []

    def __call__(self, *events: Event | Live) -> list[Change]:
        fresh: list[Change] = []
        for event in events:
            if isinstance(event, Live):
                fresh += self.picture.apply(event)
            else:
                seq = self.picture.seq + 1
                fresh += self.picture.apply(Recorded(seq, float(seq), event))
        self.changes += fresh
        return fresh

    def told(self, kind: type[Change]) -> int:
        return sum(isinstance(change, kind) for change in self.changes)


def said(text: str, *calls: ToolCall, partial: bool = False, model: str = "m") -> AssistantSaid:
    parts: tuple[Text | ToolCall, ...] = (Text(text), *calls) if text else calls
    return AssistantSaid("t1", AssistantMessage(parts), model, partial=partial)


def words(changes: list[Change]) -> str:
    return "".join(change.text for change in changes if isinstance(change, WordsAdded))


MODEL = StepBegan("t1", StepKind.MODEL, "m")


def test_an_answer_streams_and_is_then_said_and_no_word_comes_twice() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), MODEL, TextDelta("t1", "One "), TextDelta("t1", "two"))
    assert feed.picture.turns["t1"].saying[0].text == "One two"
    assert words(feed(said("One two"))) == ""
    assert feed.picture.turns["t1"].saying == []
    assert feed.picture.turns["t1"].text == "One two"


def test_the_next_answer_may_stream_before_the_log_has_the_last() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), MODEL, TextDelta("t1", "I read"))
    feed(StepOver("t1", StepKind.MODEL, "m", "finished"), MODEL, TextDelta("t1", "I read on"))
    feed(said("I read", CALL))
    assert [each.text for each in feed.picture.turns["t1"].saying] == ["I read on"]
    feed(said("I read on"))
    assert [each.text for each in feed.picture.turns["t1"].answers] == ["I read", "I read on"]
    assert words(feed.changes) == "I readI read on"


def test_what_was_never_streamed_is_told_late() -> None:
    feed = Feed()
    (change, *_) = feed(TurnStarted("t1", ()), said("All of it"))[1:]
    assert isinstance(change, WordsAdded)
    assert (change.text, change.late) == ("All of it", True)


def test_who_comes_back_is_told_the_rest() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), MODEL, TextDelta("t1", "One "))
    feed.picture.rejoin()
    assert words(feed(AnswerSoFar("t1", "One two "), TextDelta("t1", "three"))) == "two three"
    feed.picture.rejoin()
    assert words(feed(said("One two three four"))) == " four"
    assert len(feed.picture.turns["t1"].answers) == 1


def test_the_whole_answer_of_an_own_agent_takes_the_place_of_what_it_emitted() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), TextDelta("t1", "Draft"))
    changes = feed(said("Final", model=""))
    assert any(isinstance(change, AnswerReplaced) for change in changes)
    assert feed.picture.turns["t1"].saying == []
    assert feed.picture.turns["t1"].text == "Final"


def test_what_a_crash_lost_of_an_answer_is_known_to_who_saw_it() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), MODEL, TextDelta("t1", "One two"))
    feed(said("One", partial=True, model=""), TurnSettled("t1", TurnOutcome.CRASHED))
    (answer,) = feed.picture.turns["t1"].answers
    assert (answer.text, answer.unkept) == ("One", " two")


def test_a_call_that_a_crash_kept_out_of_the_log_ends_with_its_turn() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), MODEL, StepBegan("t1", StepKind.TOOL, "ask", "c1", "Which?"))
    assert list(feed.picture.calls) == ["c1"]
    feed(TurnSettled("t1", TurnOutcome.CRASHED))
    assert feed.picture.calls == {}
    assert feed.picture.turns["t1"].calls == []


def test_a_void_answer_begins_anew() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), MODEL, TextDelta("t1", "Wro"), AnswerVoid("t1", "503", 0.1, "m"))
    feed(TextDelta("t1", "Right"))
    assert [each.text for each in feed.picture.turns["t1"].saying] == ["Right"]
    assert words(feed(said("Right"))) == ""


@pytest.mark.parametrize("live", [True, False])
def test_a_call_begins_and_ends_once_whichever_way_it_is_told(live: bool) -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()))
    if live:
        feed(StepBegan("t1", StepKind.TOOL, "terminal", "c1", "make all"))
        feed(CallOutput("t1", "c1", "out"))
    feed(said("", CALL), CallStarted("t1", CALL, Effect.UNKNOWN, "make all"))
    if live:
        feed(StepOver("t1", StepKind.TOOL, "terminal", "finished", "c1", "made"))
    feed(CallEnded("t1", "c1", CallResult(CallStatus.FINISHED, (Text("ok"),), "made")))
    call = feed.picture.calls["c1"]
    assert (str(call), call.state, call.summary) == ("terminal  make all", CallState.OVER, "made")
    assert (feed.told(CallOpened), feed.told(CallClosed)) == (1, 1)
    feed(TurnSettled("t1", TurnOutcome.COMPLETED))
    assert not call.output


def test_a_call_in_the_background_outlives_its_turn() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), said("", CALL), CallStarted("t1", CALL, Effect.UNKNOWN, "make"))
    feed(CallDetached("t1", "c1"), CallEnded("t1", "c1", CallResult(CallStatus.DETACHED, ())))
    feed(TurnSettled("t1", TurnOutcome.COMPLETED), CallOutput("t1", "c1", "more"))
    assert [call.id for call in feed.picture.background_calls] == ["c1"]
    assert not feed.picture.is_at_rest
    assert str(feed.picture.calls["c1"].output) == "more"
    feed(StepOver("t1", StepKind.TOOL, "terminal", "finished", "c1"))
    assert feed.told(CallClosed) == 0
    feed(BackgroundEnded("c1", CallResult(CallStatus.FINISHED, (), "made")))
    assert feed.picture.is_at_rest
    result = feed.picture.calls["c1"].result
    assert result is not None
    assert result.status is CallStatus.DETACHED


def test_a_question_makes_its_call_wait_until_it_is_closed() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), said("", CALL), QuestionAsked("t1", "q1", Question("?"), "c1"))
    assert feed.picture.calls["c1"].asking
    assert [each.id for each in feed.picture.open_questions] == ["q1"]
    feed(QuestionClosed("q1"), QuestionClosed("q1", "too late"))
    assert not feed.picture.calls["c1"].asking
    assert not feed.picture.open_questions


def test_a_stop_is_told_once_and_late_words_of_its_turn_go_nowhere() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), Stopping("t1"), InterruptLanded("t1", "user_stop", "user"))
    assert feed.told(TurnStopping) == 1
    assert feed.picture.turn is not None
    assert feed.picture.turn.state is TurnState.STOPPING
    feed(TurnSettled("t1", TurnOutcome.STOPPED), TurnStarted("t2", ()))
    assert feed(TextDelta("t1", "ghost")) == []
    assert feed.picture.turn is feed.picture.turns["t2"]


def accepted(message: str, mode: Mode, disposition: Disposition, sender: str = "user") -> Event:
    return MessageAccepted(Message(message, sender, mode, (Text(message),)), disposition)


def test_what_waits_is_in_the_order_in_which_it_is_taken() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()))
    feed(accepted("later", Mode.QUEUE, Disposition.QUEUED))
    feed(accepted("news", Mode.STEER, Disposition.QUEUED, "background"))
    feed(accepted("too late to stop it", Mode.INTERRUPT, Disposition.QUEUED))
    feed(accepted("steer", Mode.STEER, Disposition.STEERING))
    assert [(each.id, each.waits_for) for each in feed.picture.waiting] == [
        ("news", WaitsFor.STEER),
        ("too late to stop it", WaitsFor.NEXT),
        ("steer", WaitsFor.STEER),
        ("later", WaitsFor.QUEUE),
    ]
    feed(TurnSettled("t1", TurnOutcome.COMPLETED))
    assert [each.waits_for for each in feed.picture.waiting][:3] == [WaitsFor.NEXT] * 3


def test_a_sub_agent_has_a_picture_below_that_of_its_parent() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), ChildStarted("t1", "c1", "s/c1.1", "look"))
    below = feed.picture.below("s/c1.1")
    below.apply(Recorded(1, 0.0, ChildStarted("t1", "c1", "s/c1.1/c1.1", "look closer")))
    deep = feed.picture.below("s/c1.1/c1.1")
    assert deep.session == "s/c1.1/c1.1"
    assert feed.picture.children["s/c1.1"].below is below
    with pytest.raises(KeyError):
        feed.picture.below("s/c9.1")
    feed(ChildEnded("s/c1.1", TurnOutcome.COMPLETED, "seen"))
    assert feed.picture.running_children == []


def test_one_who_joins_learns_which_calls_run() -> None:
    feed = Feed()
    feed(TurnStarted("t1", ()), said("", CALL))
    assert feed.picture.calls["c1"].state is CallState.ASKED
    feed(OutputSoFar("t1", "c1", "the end", 100))
    call = feed.picture.calls["c1"]
    assert (call.state, str(call.output), call.output.skipped) == (
        CallState.RUNNING,
        "the end",
        100,
    )


def test_a_tail_keeps_the_end_and_counts_the_rest() -> None:
    tail = Tail(characters_max=10)
    for number in range(100):
        tail.add(f"{number:02}")
    assert (str(tail), tail.skipped) == ("9596979899", 190)
    tail.add("x" * 1000)
    assert (len(str(tail)), tail.skipped) == (10, 1190)


def test_a_long_stream_costs_the_same_for_each_delta() -> None:
    """Ten times the deltas take about ten times as long, not a hundred times."""

    def seconds(deltas: int) -> float:
        feed = Feed()
        feed(TurnStarted("t1", ()), MODEL)
        event = TextDelta("t1", "x" * 500)
        began = time.process_time()
        for _ in range(deltas):
            feed.picture.apply(event)
        return time.process_time() - began

    short = min(seconds(10_000) for _ in range(5))
    assert min(seconds(100_000) for _ in range(3)) < 40 * short
