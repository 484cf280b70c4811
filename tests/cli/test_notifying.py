"""Notifications of the terminal: by which means, when, and that nothing gets out of them."""

from __future__ import annotations

import pytest

from bargein.cli.chat.notifying import means_of, sequence, worth_telling
from bargein.contracts.event import TurnOutcome
from bargein.contracts.tool import Question
from bargein.view import QuestionOpened, ShownQuestion, ShownTurn, TurnClosed


@pytest.mark.parametrize(
    ("environment", "means"),
    [
        ({"TERM_PROGRAM": "iTerm.app"}, "osc9"),
        ({"TERM": "xterm-kitty"}, "osc9"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, "osc777"),
        ({"TERM": "foot"}, "osc777"),
        ({"TERM": "xterm-256color"}, "bell"),
        ({"TERM_PROGRAM": "iTerm.app", "TMUX": "/tmp/x"}, "bell"),
    ],
)
def test_the_means_of_a_terminal(environment: dict[str, str], means: str) -> None:
    assert means_of("auto", environment) == means
    assert means_of("off", environment) == "off"


def test_what_is_written() -> None:
    assert sequence("bell", "done") == "\a"
    assert sequence("off", "done") == ""
    assert sequence("osc9", "done") == "\x1b]9;Bargein: done\a"
    assert sequence("osc777", "done; really") == "\x1b]777;notify;Bargein;done, really\a"


def test_words_of_a_session_cannot_end_the_sequence() -> None:
    for means in ("osc9", "osc777"):
        written = sequence(means, "a\x07b\x1b]0;title\x1b\\\n\u202ec")
        assert written.count("\a") == 1
        assert written.count("\x1b") == 1
        assert "\u202e" not in written


def test_what_is_worth_telling() -> None:
    turn = ShownTurn("t1", 100.0, outcome=TurnOutcome.COMPLETED)
    assert worth_telling(TurnClosed(turn), 110.0, 20.0) == ""
    assert worth_telling(TurnClosed(turn), 130.0, 20.0).startswith("completed")
    question = Question("Red or blue?")
    opened = QuestionOpened(ShownQuestion("q1", "t1", question, 100.0))
    assert worth_telling(opened, 100.0, 20.0) == "waits for you: Red or blue?"
