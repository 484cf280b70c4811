"""A project's settings are asked about at the start, and only a person at a terminal approves."""

from pathlib import Path

from tests.cli.conftest import Open
from tests.cli.screen import CTRL_D, Screen

CTRL_X = "\x18"
OTHER_KEYS = '[keys]\nstop = "ctrl-x"\n'
ASKED = "Use it?"


def wait_for_stop_key(screen: Screen, key: str) -> None:
    screen.wait_ready()
    screen.enter("wait for me")
    screen.wait_status(f"{key} stops")


def leave(screen: Screen) -> None:
    screen.wait_ready()
    screen.type(CTRL_D)
    assert screen.exit_code() == 0


def test_what_a_project_sets_is_asked_about_once_and_again_when_it_changes(chat: Open) -> None:
    screen = chat(project=OTHER_KEYS)
    shown = screen.wait_for(ASKED)
    assert 'keys.stop = ["ctrl-x"]' in shown
    screen.type("y\r")
    wait_for_stop_key(screen, "Ctrl-X")
    screen.type(CTRL_X)
    screen.wait_for("stopped in")
    leave(screen)
    screen = chat(project=OTHER_KEYS)
    wait_for_stop_key(screen, "Ctrl-X")
    assert ASKED not in screen.text
    screen.close()
    screen = chat(project=OTHER_KEYS.replace("ctrl-x", "f12"))
    screen.wait_for('keys.stop = ["f12"]')
    screen.wait_for(ASKED)
    screen.type("n\r")
    wait_for_stop_key(screen, "Esc")
    screen.close()
    screen = chat(project=OTHER_KEYS.replace("ctrl-x", "f12"))
    screen.wait_for("left out until you approve them by  bargein config trust")
    wait_for_stop_key(screen, "Esc")


def test_what_was_typed_before_is_no_answer(chat: Open) -> None:
    screen = chat(project=OTHER_KEYS)
    screen.type("y\r")
    screen.wait_for(ASKED)
    screen.type("maybe\r")
    screen.wait_for("'maybe' is not an answer")
    screen.type("\r")
    wait_for_stop_key(screen, "Esc")


def test_a_verdict_is_made_listed_and_revoked_by_a_command(tmp_path: Path) -> None:
    def command(*words: str) -> Screen:
        return Screen("config", "trust", *words, home=tmp_path, script="", project=OTHER_KEYS)

    screen = command()
    screen.wait_for(ASKED)
    screen.type("y\r")
    assert screen.exit_code() == 0
    screen = command("--list")
    listed = screen.wait_for("  approved  ")
    assert screen.exit_code() == 0
    (line,) = [each for each in listed.splitlines() if "  approved  " in each]
    screen = command("--revoke", line.split()[0])
    screen.wait_for("revoked: you will be asked again")
    assert screen.exit_code() == 0
    screen = command()
    screen.wait_for(ASKED)
    screen.close()
