"""What the model reads about calls and stops is in one place, and says what it should."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bargein.calls import words
from bargein.cancel import CancelSource, Cause, Reason
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind, StoppedStep
from bargein.contracts.tool import CallResult, CallStatus, Effect
from tests.tools.desk import text_of

SOURCE = Path(words.__file__).parent.parent
# What became of a sub-agent is told by a module of its own, from its turn's result.
TELLING = {SOURCE / "calls" / "words.py", SOURCE / "session" / "child_report.py"}
NOTES = (
    "[Your ",
    "[You ",
    "[The program",
    "[A turn",
    "Not started: ",
    "Outcome unknown",
    "Stopped ",
)


def texts_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings
    ]


def test_no_other_module_of_the_engine_and_the_tools_has_words_of_its_own_for_them() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {text!r}"
        for part in ("session", "calls", "tools")
        for path in sorted((SOURCE / part).rglob("*.py"))
        if path not in TELLING
        for text in texts_in(path)
        if text.startswith(NOTES)
    ]
    allowed = (
        "calls/pipeline.py: 'Not started: '",
        "tools/registry.py: 'Not started: the resources of '",
    )
    assert [each for each in found if each not in allowed] == []


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        (words.never_started(), "not_started", "Not started: the turn ended before this call"),
        (
            words.caller_over(),
            "not_started",
            "Not started: the work that this call belongs to has already ended",
        ),
        (words.not_approved("deny"), "not_started", "The user did not allow this call; nothing"),
        (words.not_answered(), "not_started", "The program ended before the user answered."),
        (words.left_behind(), "abandoned", "It did not stop in time and was given up."),
        (words.unknown_outcome(), "unknown", "Outcome unknown: the program ended while this ran."),
        (words.moved("c1"), "detached", "Moved to the background as c1."),
    ],
)
def test_each_result_says_what_is_known(result: CallResult, status: str, text: str) -> None:
    assert result.status == status
    assert text_of(result).startswith(text)
    assert result.is_error is (status != "detached")


def test_a_stop_before_the_call_began_says_who_and_that_nothing_happened() -> None:
    source = CancelSource("call")
    source.cancel(Reason(Cause.USER_STOP, "anna"))
    told = text_of(words.not_started(source.token))
    assert told == (
        "Not started: the user stopped it (anna) before this call began. Nothing happened."
    )


def test_a_refusal_is_whole_for_the_model_and_short_for_people() -> None:
    result = words.refused("why not\n" * 100)
    assert text_of(result) == "why not\n" * 100
    assert result.summary.startswith("refused: why not why not")
    assert len(result.summary) <= len("refused: ") + words.WHY_CHARACTERS_MAX


def test_a_stop_is_told_with_what_may_have_happened_half() -> None:
    steps = (
        StoppedStep(StepKind.MODEL, "m", CallStatus.STOPPED, 1.0),
        StoppedStep(StepKind.TOOL, "look", CallStatus.STOPPED, 1.0, "c1"),
        StoppedStep(StepKind.TOOL, "write", CallStatus.STOPPED, 1.0, "c2", Effect.UNKNOWN),
        StoppedStep(StepKind.TOOL, "send", CallStatus.FINISHED, 1.0, "c3", Effect.UNKNOWN),
    )
    receipt = Receipt(
        ReceiptStatus.STOPPED, Scope.TURN, "s", "t1", Reason(Cause.USER_STOP), steps=steps
    )
    assert words.stop_note(receipt).splitlines() == [
        "[Your previous turn was stopped before it ended (user_stop).]",
        "[look (c1): stopped]",
        "[write (c2): stopped; it may have happened half]",
        "[send (c3): finished]",
    ]
    assert words.hidden_note(steps).splitlines() == [
        words.TAKEN_BACK,
        "[write (c2): stopped; it may have happened half]",
        "[send (c3): finished]",
    ]
    assert words.hidden_note(steps[:2]) == ""
