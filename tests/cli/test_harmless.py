"""Nothing that a model says or asks for can control the terminal, wherever it is shown."""

import os
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Open
from tests.cli.screen import Screen

NAMED = "<U+001B>]0;owned<U+0007><U+001B>[2J<U+009B>5n"
EVIL = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b5n"
SCRIPT = f"""
repeat = true
[[answers]]
when = "^do"
steps = [
    {{ do = "say", text = "safe {EVIL} words" }},
    {{ do = "call", name = "read_file", arguments = {{ path = "gone {EVIL} file" }} }},
]
[[answers]]
when = "^do"
steps = [
    {{ do = "call", name = "terminal", arguments = {{ command = ": {EVIL} ; sleep 60" }} }},
]
"""


def is_harmless(screen: Screen) -> bool:
    return not any(each in screen.raw for each in (b"\x1b]", b"\x1b[2J", b"\xc2\x9b", b"\x07"))


def done(home: Path, *arguments: str) -> Screen:
    screen = Screen(*arguments, home=home, script=SCRIPT)
    assert screen.exit_code() == 0, screen.text
    return screen


def test_a_run_on_a_terminal_and_what_is_kept_of_it(tmp_path: Path) -> None:
    run = Screen("run", "--session", "it", "--timeout", "3", "do it", home=tmp_path, script=SCRIPT)
    assert run.exit_code() == 124
    assert is_harmless(run)
    assert "safe 5n words" in run.text
    assert f"read_file  gone {NAMED} file ..." in run.text
    assert f"terminal  : {NAMED} ; sleep 60 ..." in run.text
    for arguments in (("show", "it"), ("search", "safe"), ("list",), ("export", "it")):
        assert is_harmless(done(tmp_path, "sessions", *arguments)), arguments


@pytest.mark.parametrize("terminal", ["dumb", "xterm-256color"])
def test_a_chat_and_its_end(chat: Open, terminal: str) -> None:
    screen = chat(script=SCRIPT, TERM=terminal)
    screen.wait_for("/help")
    screen.enter("do it")
    screen.wait_for(f"terminal  : {NAMED} ; sleep 60")
    os.kill(screen.pid, signal.SIGTERM)
    screen.wait_for("Shutting down")
    screen.exit_code()
    assert is_harmless(screen), screen.raw
