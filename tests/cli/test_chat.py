"""The terminal program as fingers know it: typed into through a real PTY."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.screen import ALT_UP, CTRL_C, CTRL_D, ESCAPE, Screen

SLOW = """
repeat = true
[[answers]]
when = "slow"
steps = [{ do = "say", text = "one two three four five six seven eight nine ten", pace_s = 0.3 }]
[[answers]]
when = "wait"
steps = [{ do = "say", text = "waiting" }, { do = "pause", seconds = 600 }]
[[answers]]
steps = [{ do = "say", text = "answered it" }]
"""

Open = Callable[..., Screen]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Open]:
    opened: list[Screen] = []

    def open_screen(*arguments: str, script: str = SLOW, **options: object) -> Screen:
        screen = Screen("chat", *arguments, home=tmp_path, script=script, **options)  # type: ignore[arg-type]
        opened.append(screen)
        return screen

    yield open_screen
    for screen in opened:
        screen.close()


def test_what_is_typed_is_answered(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("hello")
    screen.wait_for("answered it")
    screen.wait_for("ready")


def test_words_typed_before_it_is_ready_are_sent_when_it_is(chat: Open) -> None:
    screen = chat()
    screen.wait_for(">")
    screen.enter("early words")
    screen.wait_for("answered it")


def test_escape_stops_and_the_receipt_comes_once_settled(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type(ESCAPE)
    screen.wait_for("stopped in")
    screen.wait_for("ready")
    screen.enter("next")
    screen.wait_for("answered it")


def test_enter_while_busy_steers_and_what_was_said_is_kept(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.enter("another way")
    text = screen.wait_for("answered it")
    assert "waiting" in text
    assert "> another way" in text


def test_tab_queues_and_escape_holds_the_queue_until_enter(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type("later words\t")
    screen.wait_for("queued")
    screen.type(ESCAPE)
    screen.wait_for("1 held")
    screen.wait_for("held · Enter continues")
    screen.enter("")
    screen.wait_for("answered it")


def test_escape_with_a_steer_pending_sends_it_now(chat: Open) -> None:
    script = """
repeat = true
[[answers]]
when = "tool"
steps = [{ do = "say", text = "working" }, { do = "pause", seconds = 600 }]
[[answers]]
steps = [{ do = "say", text = "answered it" }]
"""
    screen = chat(script=script)
    screen.wait_for("ready")
    screen.enter("tool")
    screen.wait_for("working")
    screen.enter("now")
    screen.wait_for("answered it")


def test_alt_up_takes_the_last_queued_message_back_into_the_line(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type("queued words\t")
    screen.wait_for("queued ·")
    screen.type(ALT_UP)
    screen.wait_for("queued ·", gone=True)
    screen.wait_for("> queued words")


def test_ctrl_c_clears_the_line_and_nothing_else(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type("half a thought")
    screen.wait_for("half a thought")
    screen.type(CTRL_C)
    text = screen.wait_for("half a thought", gone=True)
    assert "stopped" not in text
    assert "working" in text


def test_ctrl_c_on_an_empty_line_stops_what_runs(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type(CTRL_C)
    screen.wait_for("stopped in")


def test_ctrl_c_twice_when_idle_leaves(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.type(CTRL_C)
    screen.wait_for("Ctrl-C again leaves")
    screen.type(CTRL_C)
    assert screen.exit_code() == 0
    assert "Shutting down" in screen.text


def test_ctrl_d_leaves_while_something_runs_within_the_bound(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type(CTRL_D)
    assert screen.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_leave_cleanly(chat: Open, number: signal.Signals) -> None:
    screen = chat()
    screen.wait_for("ready")
    os.kill(screen.pid, number)
    assert screen.exit_code() == 0


def test_an_unsent_draft_is_there_again_after_a_kill(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.type("a thought that was not sent yet")
    screen.wait_for("not sent yet")
    os.kill(screen.pid, signal.SIGKILL)
    screen.exit_code()
    again = chat()
    again.wait_for("a thought that was not sen")


def test_nothing_a_model_says_commands_the_terminal(chat: Open) -> None:
    words = "safe\\u001b]0;owned\\u0007 \\u001b[2Jstill"
    script = f'[[answers]]\nsteps = [{{ do = "say", text = "{words}" }}]'
    screen = chat(script=script)
    screen.wait_for("ready")
    screen.enter("hello")
    screen.wait_for("safe still")


@pytest.mark.parametrize("columns", [24, 40])
def test_a_narrow_window_is_enough(chat: Open, columns: int) -> None:
    screen = chat(columns=columns)
    screen.wait_for(">")
    screen.enter("hello")
    screen.wait_for("answered it")


def test_without_colour_nothing_is_coloured(chat: Open) -> None:
    screen = chat(NO_COLOR="1")
    screen.wait_for("ready")
    screen.enter("hello")
    screen.wait_for("answered it")


def test_a_dumb_terminal_gets_plain_lines(chat: Open) -> None:
    screen = chat(TERM="dumb")
    screen.wait_for("· /help")
    screen.enter("hello")
    screen.wait_for("answered it")
    screen.enter("/exit")
    assert screen.exit_code() == 0


def test_an_unknown_command_says_so_and_loses_nothing(chat: Open) -> None:
    screen = chat()
    screen.wait_for("ready")
    screen.enter("/dance")
    screen.wait_for("no such command: /dance")
