"""What a chat program reads of a receipt, and of an approval."""

from collections.abc import Callable

import pytest

from bargein.calls.receipt_words import PROCESSES_MAX, STEPS_MAX
from bargein.cancel import Cause, Reason
from bargein.channels import words
from bargein.cli.receipts import in_words
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind, StoppedStep
from bargein.contracts.tool import CallStatus, Effect, ProcessEnd, StopDetail

REASON = Reason(Cause.USER_STOP, "anna")
HIDDEN = "\u202e"


def stopped(*details: StopDetail, stored: bool = True, held: tuple[str, ...] = ()) -> Receipt:
    steps = tuple(
        StoppedStep(StepKind.TOOL, "terminal", CallStatus.STOPPED, 5.0, detail=detail)
        for detail in details
    )
    return Receipt(
        ReceiptStatus.STOPPED,
        Scope.TURN,
        "alice",
        "t1",
        REASON,
        elapsed_ms=12.0,
        steps=steps,
        stored=stored,
        held=held,
    )


def left(command: str = "sleep 100", count: int = 1) -> StopDetail:
    survivors = tuple(ProcessEnd(4000 + number, command, "", 0.0) for number in range(count))
    return StopDetail(900.0, "process group", False, survivors=survivors)


def test_a_stop_that_promises_everything_is_said_in_one_sentence() -> None:
    over = StopDetail(5.0, "cgroup", processes=(ProcessEnd(7, "make", "SIGINT", 5.0),))
    assert words.receipt_in_short(stopped(over)) == "Stopped in 12 ms."


def test_a_receipt_that_is_not_stored_says_so() -> None:
    said = words.receipt_in_short(stopped(stored=False))
    assert "not stored" in said
    assert "a restart may show it as crashed" in said


def test_a_process_that_survived_is_named_with_its_pid() -> None:
    said = words.receipt_in_short(stopped(left()))
    assert "Could not be ended, still running: sleep 100 (pid 4000)." in said


def test_a_stop_that_nobody_confirmed_says_so() -> None:
    said = words.receipt_in_short(stopped(StopDetail(5.0, "process group", confirmed=False)))
    assert "Not confirmed that no process of terminal is left." in said
    elsewhere = StopDetail(5.0, confirmed=False, told="MCP server x did not answer")
    assert "Not confirmed: MCP server x did not answer." in words.receipt_in_short(
        stopped(elsewhere)
    )


@pytest.mark.parametrize("surface", [words.receipt_in_short, in_words])
def test_what_survived_is_bounded_and_hides_nothing(surface: Callable[[Receipt], str]) -> None:
    command = f"sleep{HIDDEN}\x1b[2J\n{'x' * 10_000}"
    said = surface(stopped(*[left(command, 100)] * 50))
    assert "<U+202E>" in said
    assert "<U+001B>" in said
    assert not {HIDDEN, "\x1b", "\n"} & set(said)
    assert f"and {100 - PROCESSES_MAX} more" in said
    assert f"the same of {50 - STEPS_MAX} more" in said.casefold()
    assert len(said) < 4000


def test_the_terminal_says_the_same() -> None:
    said = in_words(stopped(left(), stored=False))
    assert "could not be ended, still running: sleep 100 (pid 4000)" in said
    assert "a restart may show it as crashed" in said


def test_what_happened_half_is_bounded() -> None:
    half = StoppedStep(
        StepKind.TOOL, "send", CallStatus.STOPPED, 5.0, effect=Effect.UNKNOWN, summary="x" * 9000
    )
    receipt = Receipt(ReceiptStatus.STOPPED, Scope.TURN, "alice", "t1", REASON, steps=(half,) * 100)
    assert len(words.receipt_in_short(receipt)) < 1000


def test_the_longest_reply_to_a_stop_fits_into_one_message_of_each_platform() -> None:
    survivors = left("x" * 9000, 100)
    step = StoppedStep(
        StepKind.TOOL,
        "n" * 9000,
        CallStatus.ABANDONED,
        5.0,
        effect=Effect.UNKNOWN,
        summary="s" * 9000,
        detail=survivors,
    )
    held = tuple(f"m{number}" for number in range(1000))
    receipt = Receipt(
        ReceiptStatus.STOPPED,
        Scope.TURN,
        "alice",
        "t1",
        REASON,
        steps=(step,) * 100,
        stored=False,
        held=held,
    )
    said = words.receipt_in_short(receipt)
    assert said.endswith("your next message.")
    assert len(said) < 1800


def test_a_stop_before_anything_ran_says_what_is_held_and_how_it_goes_on() -> None:
    receipt = Receipt(ReceiptStatus.STOPPED, Scope.TURN, "alice", "", held=("m1",))
    assert words.receipt_in_short(receipt) == (
        "Nothing was running. What was just sent is held (1 message): /continue lets it go on, "
        "and so does your next message."
    )


def test_what_waits_behind_a_stopped_turn_is_counted() -> None:
    said = words.receipt_in_short(stopped(held=("m1", "m2")))
    assert said == (
        "Stopped in 12 ms. 2 held: /continue lets them go on, and so does your next message."
    )
