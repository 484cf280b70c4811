"""The transcript as it is kept up event by event, against one that is made anew each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.calls.words import CUT_OFF
from bargein.contracts.event import (
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
from bargein.contracts.model import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage
from bargein.contracts.tool import CallResult, CallStatus
from bargein.session.token_estimate import tokens_of_message
from bargein.session.transcript import Transcript, check_history

MOVES = (
    "user",
    "assistant",
    "cut off",
    "settle",
    "settle hidden",
    "hide",
    "compress",
    "compress, keep",
)


class Log:
    """What happens in turns, one after the other, as an engine would write it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._turns = 0
        self._open = False
        self._said: list[int] = []

    def happens(self, move: str, text: str) -> None:
        turn = f"t{self._turns}"
        if move == "hide":
            if not self._open and self._turns:
                self.events.append(TurnHidden(turn, "user"))
            return
        if not self._open:
            self._turns += 1
            self._open = True
            turn = f"t{self._turns}"
            self.events.append(TurnStarted(turn, ()))
        match move:
            case "user":
                self._said.append(len(self.events) + 1)
                self.events.append(UserSaid(turn, (Text(text),)))
            case "assistant":
                self.events.append(AssistantSaid(turn, AssistantMessage((Text(text),))))
            case "cut off":
                said = AssistantMessage((Text(text),))
                self.events.append(AssistantSaid(turn, said, partial=True))
            case "settle" | "settle hidden":
                hidden = move == "settle hidden"
                self.events.append(TurnSettled(turn, TurnOutcome.COMPLETED, hidden=hidden))
                self._open = False
            case _:
                keeps = self._said[-1] if self._said and move == "compress, keep" else None
                before = len(self.events) + 1
                self.events.append(Compressed(turn, before, f"Summary: {text}", keeps))


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.text("ab 1", min_size=1, max_size=9))))
def test_it_and_its_count_of_tokens_are_as_if_made_anew(moves: list[tuple[str, str]]) -> None:
    log, kept_up, told = Log(), Transcript(), 0
    for move, text in moves:
        log.happens(move, text)
        for seq, event in enumerate(log.events[told:], told + 1):
            kept_up.apply(event, seq)
        told = len(log.events)
        made_anew = Transcript.of(
            Recorded(seq, 0.0, event) for seq, event in enumerate(log.events, 1)
        )
        messages = kept_up.messages()
        assert messages == made_anew.messages()
        assert kept_up.messages() is messages
        counted = sum(map(tokens_of_message, messages))
        assert kept_up.tokens_of(messages) == pytest.approx(counted)
        assert kept_up.tokens_of((*messages,)) == pytest.approx(counted)


@given(st.permutations(["first", "second", "user", "user", "assistant"]))
def test_a_result_is_right_after_its_call_whatever_is_said_meanwhile(order: list[str]) -> None:
    calls = (ToolCall("first", "look", "{}"), ToolCall("second", "look", "{}"))
    transcript = Transcript()
    said: list[str] = []
    transcript.apply(TurnStarted("t1", ()), 1)
    transcript.apply(UserSaid("t1", (Text("Hi"),)), 2)
    transcript.apply(AssistantSaid("t1", AssistantMessage(calls)), 3)
    for seq, what in enumerate(order, 4):
        if what == "user":
            said.append(f"u{seq}")
            transcript.apply(UserSaid("t1", (Text(said[-1]),)), seq)
        elif what == "assistant":
            said.append(f"a{seq}")
            transcript.apply(AssistantSaid("t1", AssistantMessage((Text(said[-1]),))), seq)
        else:
            result = CallResult(CallStatus.FINISHED, (Text(what),))
            transcript.apply(CallEnded("t1", what, result), seq)
    messages = transcript.messages()
    check_history(messages)
    assert isinstance(messages[2], ToolMessage)
    after = [part for m in messages[3:] if not isinstance(m, ToolMessage) for part in m.content]
    assert [part.text for part in after if isinstance(part, Text)] == said
    places = [place for _, place in transcript.shown()[1]]
    assert places == sorted(places)
    counted = transcript.tokens_of(messages)
    assert counted == pytest.approx(sum(map(tokens_of_message, messages)))


def test_that_an_answer_was_cut_off_is_told_in_the_users_next_words_and_not_in_the_answer() -> None:
    log = Log()
    for move, text in [
        ("user", "Count"),
        ("cut off", "One, two"),
        ("settle", ""),
        ("user", "Go on"),
        ("user", "please"),
        ("assistant", "three"),
        ("user", "Thanks"),
    ]:
        log.happens(move, text)
    transcript = Transcript.of(Recorded(seq, 0.0, each) for seq, each in enumerate(log.events, 1))
    assert transcript.messages() == (
        UserMessage((Text("Count"),)),
        AssistantMessage((Text("One, two"),)),
        UserMessage((Text(CUT_OFF), Text("Go on"), Text("please"))),
        AssistantMessage((Text("three"),)),
        UserMessage((Text("Thanks"),)),
    )


def test_a_turn_that_is_taken_back_takes_the_word_of_its_cut_with_it() -> None:
    log = Log()
    for move, text in [("cut off", "One"), ("settle hidden", ""), ("user", "Hello")]:
        log.happens(move, text)
    transcript = Transcript.of(Recorded(seq, 0.0, each) for seq, each in enumerate(log.events, 1))
    assert transcript.messages() == (UserMessage((Text("Hello"),)),)
