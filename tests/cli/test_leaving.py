"""Leaving is announced at once, bounded whatever refuses to end, and restores the terminal."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import ANSWERED, Open
from tests.cli.screen import CTRL_C, CTRL_D, Screen
from tests.process import zoo

BOUND_S = 1.0
# How much later than the bound a busy machine may be.
SLACK_S = 15.0

CALLS = """
[[answers]]
steps = [{{ do = "call", name = "{name}" }}]
"""


def wedge(home: Path, kind: str, leave_s: float = BOUND_S) -> Screen:
    name = {"thread": "deaf", "interpreter": "holder"}.get(kind, "deaf")
    script = CALLS.format(name=name)
    if kind == "store":
        script = '[[answers]]\nsteps = [{ do = "say", text = "x" }, { do = "pause", seconds = 99 }]'
    program = (sys.executable, str(Path(__file__).with_name("wedged.py")), kind)
    repository = str(Path(__file__).parents[2])
    screen = Screen(
        home=home,
        script=script,
        command=program,
        BARGEIN_CHAT_LEAVE_S=str(leave_s),
        PYTHONPATH=repository,
    )
    screen.wait_ready()
    screen.enter("go")
    screen.wait_for({"model": "thinking", "store": "x\n"}.get(kind, name))
    return screen


@pytest.mark.parametrize("kind", ["thread", "interpreter", "model", "store"])
def test_nothing_that_refuses_to_end_holds_it(tmp_path: Path, kind: str) -> None:
    screen = wedge(tmp_path, kind)
    began_at = time.monotonic()
    try:
        screen.type(CTRL_D)
        screen.wait_for("Shutting down")
        screen.exit_code()
        assert time.monotonic() - began_at < BOUND_S + SLACK_S
        assert screen.is_cooked
        assert "Traceback" not in screen.text
    finally:
        screen.close()


def test_the_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    screen = wedge(tmp_path, "store", leave_s=60)
    try:
        screen.type(CTRL_D)
        screen.wait_for("Shutting down: stopping the answer")
        screen.type(CTRL_C)
        assert screen.exit_code() == 130
        assert screen.is_cooked
    finally:
        screen.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_like_a_key_and_nothing_survives(chat: Open, number: signal.Signals) -> None:
    screen = chat()
    screen.wait_ready()
    screen.enter("run and stop")
    screen.wait_for("│ begun")
    below = psutil.Process(screen.pid).children(recursive=True)
    assert below
    screen.type("not sent")
    screen.wait_for("not sent")
    os.kill(screen.pid, number)
    assert screen.exit_code() == 0
    assert "Shutting down: stopping terminal" in screen.text
    assert screen.is_cooked
    assert [each for each in below if zoo.runs(each.pid)] == []
    again = chat("-c")
    again.wait_until(lambda: again.line == "not sent", "the draft")
    again.wait_for("stopped in")


def test_a_sigquit_ends_it_and_leaves_the_terminal_as_it_was(chat: Open) -> None:
    screen = chat()
    screen.wait_ready()
    screen.type("not sent")
    screen.wait_for("not sent")
    assert not screen.is_cooked
    os.kill(screen.pid, signal.SIGQUIT)
    assert screen.exit_code() == -signal.SIGQUIT
    assert screen.is_cooked
    assert not screen.display.cursor.hidden
    again = chat()
    again.wait_until(lambda: again.line == "not sent", "the draft")


def test_what_was_obeyed_or_cleared_is_not_in_the_line_of_the_next_start(
    chat: Open, tmp_path: Path
) -> None:
    draft = tmp_path / "data" / "draft" / "line"
    screen = chat()
    screen.wait_ready()
    for words, shown in (("/tools", "search_files"), ("stop", "nothing is"), ("!echo a", "exit 0")):
        screen.enter(words)
        screen.wait_for(shown)
        screen.wait_until(lambda: not draft.exists(), f"the end of {words}")
    screen.type("rather not")
    screen.wait_until(draft.exists, "the draft")
    screen.type(CTRL_C)
    screen.wait_until(lambda: not draft.exists(), "the end of the draft")
    screen.enter("/redirect")
    screen.wait_for("/redirect WORDS")
    screen.enter("/exit")
    assert screen.exit_code() == 0
    assert not draft.exists()


def test_a_kill_in_the_middle_leaves_the_message_unanswered_and_enter_asks_again(
    chat: Open,
) -> None:
    screen = chat()
    screen.wait_ready()
    screen.enter("write this down")
    screen.wait_for("it is written")
    screen.wait_ready()
    screen.enter("wait and see")
    screen.wait_for("waiting")
    screen.type("queued words\t")
    screen.wait_for("queued words  queued")
    screen.paste("\n".join(f"line {number}" for number in range(20)) + "\nlast of the lines")
    screen.wait_for("[pasted #1: 21 lines]")
    os.kill(screen.pid, signal.SIGKILL)
    screen.exit_code()
    again = chat("-c")
    text = again.wait_for("answered it")
    assert "> wait and see" in text
    assert "> queued words" in text
    again.wait_until(lambda: again.line == "[pasted #1: 21 lines]", "the draft")
    again.enter("")
    again.wait_for("all of it came")


def test_what_a_crash_left_unanswered_is_asked_again_by_one_key(chat: Open) -> None:
    screen = chat()
    screen.wait_ready()
    screen.enter("wait and see")
    screen.wait_for("waiting")
    os.kill(screen.pid, signal.SIGKILL)
    screen.exit_code()
    again = chat("-c", script=ANSWERED)
    again.wait_for("Enter asks again")
    again.enter("")
    assert again.wait_for("answered it").count("> wait and see") == 2
