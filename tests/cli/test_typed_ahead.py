"""Input typed before the prompt appears means what it would mean afterwards."""

from pathlib import Path

import anyio

from bargein.contracts.event import MessageAccepted
from bargein.runtime.data_directory import SESSIONS_FILE
from tests.cli.conftest import Open
from tests.cli.screen import CTRL_D, Screen
from tests.cli.test_race import events_of

SCRIPT = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "answered it" }]
"""


def said(home: Path) -> list[str]:
    log = anyio.run(events_of, home / "data" / SESSIONS_FILE)
    return [e.event.message.text for e in log if isinstance(e.event, MessageAccepted)]


def type_ahead(screen: Screen, keys: str) -> None:
    screen.type(keys)
    # The terminal has taken them as it does for a shell.
    assert screen.is_cooked


def leave(screen: Screen) -> None:
    screen.wait_ready()
    screen.type(CTRL_D)
    assert screen.exit_code() == 0


def test_a_line_is_sent(chat: Open, tmp_path: Path) -> None:
    screen = chat(script=SCRIPT)
    type_ahead(screen, "hello there\r")
    screen.wait_for("answered it")
    leave(screen)
    assert said(tmp_path) == ["hello there"]


def test_lines_are_sent_in_their_order_and_the_rest_stays_in_the_line(
    chat: Open, tmp_path: Path
) -> None:
    screen = chat(script=SCRIPT)
    type_ahead(screen, "first\rzwäite\rthird\ronly beg")
    screen.wait_until(lambda: screen.line == "only beg", "the rest in the line")
    screen.enter("un")
    screen.wait_until(lambda: "> only begun" in screen.text and not screen.line, "sent")
    leave(screen)
    assert said(tmp_path) == ["first", "zwäite", "third", "only begun"]


def test_an_end_of_input_after_a_line_leaves(chat: Open, tmp_path: Path) -> None:
    screen = chat(script=SCRIPT)
    type_ahead(screen, f"/help\r{CTRL_D}")
    assert screen.exit_code() == 0


def test_a_line_is_sent_before_the_end_of_input_leaves(chat: Open, tmp_path: Path) -> None:
    screen = chat(script=SCRIPT)
    type_ahead(screen, f"hello there\r{CTRL_D}")
    assert screen.exit_code() == 0
    assert said(tmp_path) == ["hello there"]


def test_a_line_is_sent_before_the_next_key_leaves(chat: Open, tmp_path: Path) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.type(f"hello there\r{CTRL_D}")
    assert screen.exit_code() == 0
    assert said(tmp_path) == ["hello there"]


def test_a_command_waits_for_the_session_it_needs(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    type_ahead(screen, "/status\r")
    screen.wait_for("session")
    assert "still starting" not in screen.text
    leave(screen)
