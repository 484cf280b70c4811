"""What a reopened session shows of its past."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from bargein.cli.chat.activity import Activity
from bargein.cli.chat.before import Answered, Called, Noted, Piece, UserSpoke, said_before
from bargein.cli.chat.paint import Painter, harmless
from bargein.cli.chat.view import View
from bargein.cli.export import as_markdown
from bargein.cli.plain import PlainChat
from bargein.cli.receipts import in_full, in_words
from bargein.contracts.checkpoint import FileFate, FilesUndone, FileUndone
from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    CallEnded,
    CallStarted,
    Event,
    FilesRolledBack,
    HistoryImported,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    Recorded,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.live import AnswerSoFar, StepBegan, StepOver, TextDelta
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import (
    AssistantMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind, StoppedStep
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.runtime.config import load_config
from bargein.session.broadcast import Watched
from bargein.view import Picture


def accepted(message: str, words: str, sender: str = "user") -> Event:
    content = (Text(words),)
    return MessageAccepted(Message(message, sender, Mode.STEER, content), Disposition.STARTED)


def said(turn: str, *parts: Text | ToolCall) -> Event:
    return AssistantSaid(turn, AssistantMessage(parts), "m")


def ended(call: str, status: CallStatus, summary: str) -> Event:
    return CallEnded("t1", call, CallResult(status, (), summary))


def log(*events: Event) -> list[Recorded]:
    return [Recorded(number, 0.0, event) for number, event in enumerate(events, 1)]


def numbered(events: Sequence[Watched]) -> list[Watched]:
    """The same, as one log."""
    numbers = count(1)
    return [
        Recorded(next(numbers), each.at, each.event) if isinstance(each, Recorded) else each
        for each in events
    ]


RUN = ToolCall("c1", "terminal", '{"command": "make"}')
LOOK = ToolCall("c2", "read_file", '{"path": "gone.txt"}')
LOG = log(
    accepted("m1", "build it"),
    TurnStarted("t1", ("m1",)),
    UserSaid("t1", (Text("[Something was stopped.]"), Text("build it"))),
    said("t1", Text("Let me."), RUN, LOOK),
    CallStarted("t1", RUN, Effect.UNKNOWN, "make all"),
    accepted("m2", "quick"),
    MessageEdited("m2", (Text("quickly"),), "user"),
    ended("c2", CallStatus.FAILED, "failed: gone.txt does not exist."),
    CallDetached("t1", "c1"),
    ended("c1", CallStatus.DETACHED, "in the background"),
    MessagesTaken("t1", ("m2",)),
    said("t1", Text("It goes on.")),
    TurnSettled("t1", TurnOutcome.COMPLETED),
    BackgroundEnded("c1", CallResult(CallStatus.FINISHED, (), "make all finished")),
    accepted("bg-c1", "[The call c1 is over]", "background"),
    TurnStarted("t2", ("bg-c1",)),
    UserSaid("t2", (Text("[The call c1 is over]"),)),
    said("t2", Text("It is built.")),
    TurnSettled("t2", TurnOutcome.FAILED, error="no network"),
)
SHOWN: list[Piece] = [
    UserSpoke("build it", "user"),
    Answered("Let me."),
    Called("terminal", "make all", CallStatus.DETACHED, "in the background"),
    Called("read_file", "gone.txt", CallStatus.FAILED, "failed: gone.txt does not exist."),
    UserSpoke("quickly", "user"),
    Answered("It goes on."),
    Noted("note", "terminal  make all in the background: finished"),
    Answered("It is built."),
    Noted("bad", "failed: no network"),
]


def test_words_are_the_users_own_and_calls_are_told_by_what_they_did() -> None:
    assert said_before(Picture.of(LOG), turns=3) == SHOWN


def test_a_rollback_names_the_files_that_are_back_and_those_that_were_kept() -> None:
    files = FilesUndone(
        (FileUndone("one", FileFate.CHANGED_BACK), FileUndone("\x1btwo", FileFate.KEPT, "late")), 7
    )
    told = said_before(Picture.of(log(FilesRolledBack("t1", files, "ann"))), turns=1)
    assert told == [
        Noted("note", "the files of t1, which was rolled back (/redo takes that back):"),
        Noted("note", "  ~ one  changed back"),
        Noted("warn", f"  ! {harmless(chr(27))}two  kept: late"),
        Noted("dim", "  and 7 more files"),
    ]
    failed = FilesRolledBack("t1", FilesUndone(), "ann", "the disk is full")
    assert said_before(Picture.of(log(failed)), turns=1) == [
        Noted("bad", "the files of t1 could not be put back: the disk is full")
    ]


def test_only_the_last_turns_are_shown_whenever_their_messages_came() -> None:
    late = log(
        accepted("m1", "one"),
        accepted("m2", "two"),
        TurnStarted("t1", ("m1",)),
        TurnHidden("t1", "user"),
        TurnStarted("t2", ("m2",)),
        said("t2", RUN),
    )
    picture = Picture.of(late)
    assert said_before(picture, turns=1) == [UserSpoke("two", "user"), Called("terminal", "make")]
    assert said_before(picture, turns=2)[:2] == [
        UserSpoke("one", "user"),
        Noted("dim", "(taken back)"),
    ]
    assert said_before(Picture(), turns=2) == []


def test_a_call_that_ends_in_the_background_is_told_by_what_it_did() -> None:
    scrolled: list[str] = []
    view = View(Painter(colour=False), scrolled.append, Activity(lambda: 0.0), lambda: 0.0, {})
    view.show(StepBegan("t1", StepKind.TOOL, "terminal", "c1"))
    for recorded in LOG[3:14]:
        view.show(recorded)
    assert scrolled[-1].strip() == "terminal  make all in the background: finished"


def shown_of(events: Sequence[Watched]) -> str:
    scrolled: list[str] = []
    view = View(Painter(colour=False), scrolled.append, Activity(lambda: 0.0), lambda: 0.0, {})
    for event in numbered(events):
        view.show(event)
    return "".join(scrolled)


def test_an_answer_that_came_before_one_looked_is_shown_and_none_is_twice() -> None:
    answer = said("t1", Text("It is 4."), RUN, Text("Or 5."))
    missed = log(TurnStarted("t1", ()), answer, TurnSettled("t1", TurnOutcome.COMPLETED))
    heard: list[Watched] = [
        TextDelta("t1", "It is "),
        TextDelta("t1", "4."),
        TextDelta("t1", "Or 5."),
    ]
    joined: list[Watched] = [AnswerSoFar("t1", "It is 4.Or"), TextDelta("t1", " 5.")]
    first, rest = missed[:1], missed[1:]
    for events in ([*missed], [*first, *heard, *rest], [*first, *joined, *rest]):
        shown = shown_of(events)
        assert (shown.count("It is 4."), shown.count("Or 5.")) == (1, 1), events
    # What an earlier turn said is not taken for what this one says.
    again = log(TurnStarted("t2", ()), said("t2", Text("It is 4.")))
    assert shown_of([*first, *heard, *rest, *again]).count("It is 4.") == 2


PLAN = ToolCall("c1", "todo", '{"items": [{"text": "look around", "state": "doing"}]}')
# The log, which alone has the items of a plan, is behind the live parts of the next answer.
PLANNED: list[Watched] = [
    *log(accepted("m1", "mend it"), TurnStarted("t1", ("m1",))),
    StepBegan("t1", StepKind.MODEL, "m"),
    StepOver("t1", StepKind.MODEL, "m", CallStatus.FINISHED),
    StepBegan("t1", StepKind.TOOL, "todo", "c1", "0 of 1 done"),
    StepOver("t1", StepKind.TOOL, "todo", CallStatus.FINISHED, "c1", "finished"),
    StepBegan("t1", StepKind.MODEL, "m"),
    TextDelta("t1", "Look"),
    TextDelta("t1", "ing around.\n\nThe end.\n\n"),
    *log(said("t1", PLAN), ended("c1", CallStatus.FINISHED, "finished")),
    TextDelta("t1", "Bye."),
]


def test_a_plan_stands_above_the_answer_that_follows_it() -> None:
    shown = shown_of([*PLANNED, *log(TurnSettled("t1", TurnOutcome.COMPLETED))])
    lines = [line.strip() for line in shown.split("\n") if line.strip()]
    assert lines[:2] == ["> mend it", "✓ todo  0 of 1 done · 0.0 s"]
    assert lines[2].endswith("look around")
    assert lines[3:] == ["Looking around.", "The end.", "Bye."]


@pytest.mark.parametrize("end", [TurnSettled("t1", TurnOutcome.CRASHED), TurnStarted("t2", ())])
def test_a_turn_that_ends_without_the_result_of_a_plan_shows_what_followed(end: Event) -> None:
    ended_at = next(n for n, each in enumerate(PLANNED) if each == TextDelta("t1", "Look"))
    more = [TextDelta("t2", "Another.\n\n")] if isinstance(end, TurnStarted) else []
    shown = shown_of([*PLANNED[: ended_at + 1], *log(end), *more])
    assert "Look" in shown
    assert shown.index("Look") < shown.index("Another" if more else "the program ended")


def test_another_session_does_not_wait_for_a_plan_of_the_one_before() -> None:
    activity = Activity(lambda: 0.0)
    result_at = next(n for n, each in enumerate(PLANNED) if each == TextDelta("t1", "Look"))
    for event in numbered(PLANNED[:result_at]):
        activity.see(event)
    assert activity.see(TextDelta("t1", "Look")) == ()
    activity.forget()
    assert activity.see(TextDelta("t9", "Hello")) != ()


def test_the_plain_chat_shows_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = PlainChat(load_config({"BARGEIN_HOME": str(tmp_path), "BARGEIN_CHAT_HOST": "0"}))
    for recorded in log(TurnStarted("t1", ()), said("t1", Text("It is 4."))):
        chat.show(recorded)
    chat.show(TextDelta("t2", "It is 5.\n"))
    chat.show(Recorded(9, 0.0, said("t2", Text("It is 5.\n"))))
    chat.show(AnswerSoFar("t3", "It "))
    chat.show(TextDelta("t3", "is 6."))
    chat.show(Recorded(12, 0.0, said("t3", Text("It is 6."))))
    assert capsys.readouterr().out == "It is 4.\nIt is 5.\nIt is 6."


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (SHOWN[2], "✓ terminal  make all · in the background\n"),
        (SHOWN[3], "✗ read_file  gone.txt · failed: gone.txt does not exist.\n"),
        (Called("terminal", "make", CallStatus.STOPPED, "make killed"), "■ terminal  make\n"),
        (Called("terminal", "make", CallStatus.FINISHED, "finished"), "✓ terminal  make\n"),
        (Called("terminal", "make"), "  terminal  make\n"),
        (
            Called("edit_file", "edit a", CallStatus.FINISHED, changed=(("bad", "- 1"),)),
            "✓ edit_file  edit a\n  │ - 1\n",
        ),
        (Called("terminal", "make", CallStatus.NOT_STARTED), "✗ terminal  make · not started\n"),
        (Called("terminal", "make", CallStatus.UNKNOWN), "✗ terminal  make · unknown\n"),
    ],
)
def test_a_call_of_before_is_drawn_like_one_of_now(piece: Piece, shown: str) -> None:
    scrolled: list[str] = []
    view = View(Painter(colour=False), scrolled.append, Activity(lambda: 0.0), lambda: 0.0, {})
    view.replay([piece])
    assert scrolled == [shown]


def test_a_page_to_read_tells_the_users_words_from_what_the_model_was_told() -> None:
    page = as_markdown(LOG)
    assert page.startswith("*[Something was stopped.]*\n\n> build it\n\nLet me.\n")
    assert "\n*[The call c1 is over]*\n" in page
    assert "> [" not in page


def test_a_receipt_is_in_words() -> None:
    step = StoppedStep(StepKind.TOOL, "terminal", CallStatus.NOT_STARTED, 0.0)
    receipt = Receipt(ReceiptStatus.STOPPED, Scope.TURN, "s", "t1", steps=(step,), elapsed_ms=7.0)
    assert in_words(receipt) == "stopped in 7 ms · terminal: not started"
    assert "tool terminal: not started after" in in_full(receipt)


def test_a_session_that_began_with_another_conversation_shows_its_end() -> None:
    def said(*, turns: int) -> list[str]:
        messages = (
            UserMessage((Text("first"),)),
            AssistantMessage((Text("one"), ToolCall("c1", "look", "{}"))),
            ToolMessage((ToolResult("c1", (Text("seen"),)),)),
            AssistantMessage((Text("two"),)),
            UserMessage((Text("second"),)),
            AssistantMessage((Text("three"),)),
        )
        picture = Picture()
        picture.apply(Recorded(1, 0.0, HistoryImported(messages)))
        return [getattr(each, "words", "") for each in said_before(picture, turns=turns)]

    assert said(turns=3) == ["first", "one", "two", "second", "three"]
    assert said(turns=1) == ["second", "three"]


def test_what_the_engine_told_the_model_is_not_shown_as_the_users_words() -> None:
    told = "[Your previous turn was stopped.]\n[terminal (c1): killed]"
    messages = (
        UserMessage((Text("first"),)),
        AssistantMessage((Text("one"),)),
        UserMessage((Text(told), Text("[second]"))),
        UserMessage((Text("[third]"),)),
    )
    picture = Picture()
    picture.apply(Recorded(1, 0.0, HistoryImported(messages)))
    assert said_before(picture, turns=9) == [
        UserSpoke("first"),
        Answered("one"),
        Noted("dim", told),
        UserSpoke("[second]"),
        UserSpoke("[third]"),
    ]
