"""Terminals that attach to the owner of the data directory, or to a server elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.screen import CTRL_D, ESCAPE, PROGRAM, Screen
from tests.server.program import Program

COUNTING = """
repeat = true
[[answers]]
when = "quick"
steps = [{ do = "say", text = "done already" }]
[[answers]]
steps = [{ do = "say", text = "for ever and ever" }, { do = "pause", seconds = 600.0 }]
"""


CRASHING = """
repeat = true
[[answers]]
when = "before"
steps = [{ do = "say", text = "Never written down." }, { do = "pause", seconds = 600.0 }]
[[answers]]
steps = [
    { do = "say", text = "Once a second " }, { do = "pause", seconds = 1.1 },
    { do = "say", text = "it is kept. " }, { do = "pause", seconds = 0.1 },
    { do = "say", text = "This is not." }, { do = "pause", seconds = 600.0 },
]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def test_two_terminals_see_the_same_session_and_either_stops_it(home: Path) -> None:
    with Program(home / "data", COUNTING):
        one = Screen(home=home, script="")
        one.wait_for("attached to the server")
        one.type("count\r")
        one.wait_for("for ever and ever")
        two = Screen("-c", home=home, script="")
        two.wait_for("for ever and ever")
        two.type("and this\t")
        one.wait_for("1 waiting")
        two.type(ESCAPE)
        two.wait_for("stopped")
        one.wait_for("stopped")
        one.wait_for("1 held")
        one.type("\r")
        two.wait_for("and this")
        two.wait_until(
            lambda: two.text.count("for ever and ever") >= 2, "for ever and ever, 2 times"
        )
        two.type("/stop\r")
        one.wait_until(lambda: one.text.count("stopped") >= 2, "stopped, 2 times")
        for each in (one, two):
            each.wait_ready()
            each.type(CTRL_D)
            assert each.exit_code() == 0


def test_leaving_ends_nothing_and_one_comes_back_to_it(home: Path) -> None:
    with Program(home / "data", COUNTING):
        one = Screen(home=home, script="")
        one.wait_for("attached to the server")
        one.type("count\r")
        one.wait_for("for ever and ever")
        one.type(CTRL_D)
        one.wait_for("it goes on without you")
        one.type(CTRL_D)
        one.wait_for("the answer goes on")
        assert one.exit_code() == 0
        back = Screen("-c", home=home, script="")
        back.wait_for("for ever and ever")
        back.type(ESCAPE)
        back.wait_for("stopped")
        back.wait_ready()
        back.type(CTRL_D)
        assert back.exit_code() == 0


def test_a_killed_server_is_waited_for(home: Path) -> None:
    with Program(home / "data", COUNTING) as program:
        one = Screen(home=home, script="")
        one.wait_for("attached to the server")
        one.type("count\r")
        one.wait_for("for ever and ever")
        program.kill()
        one.wait_for("the connection is lost")
        with Program(home / "data", COUNTING):
            one.wait_for("unanswered")
            one.type("quick\r")
            one.wait_for("done already")
            one.wait_ready()
            one.type(CTRL_D)
            assert one.exit_code() == 0


def test_words_that_were_on_the_screen_when_the_server_died_are_marked(home: Path) -> None:
    with Program(home / "data", CRASHING) as program:
        some, none = Screen(home=home, script=""), Screen(home=home, script="")
        for screen, words, shown in ((none, "before", "written down."), (some, "Talk", "is not.")):
            screen.wait_for("attached to the server")
            screen.type(f"{words}\r")
            screen.wait_for(shown)
        program.kill()
        for screen in (some, none):
            screen.wait_for("the connection is lost")
    with Program(home / "data", CRASHING):
        for screen, unkept in ((some, "This is not."), (none, "Never written down.")):
            screen.wait_for("the program ended before this was answered")
            screen.wait_for(f"shown, but not stored: {unkept}")
            # It was on the screen once, and is there still.
            assert screen.text.count(unkept) == 2
            screen.type(CTRL_D)
            assert screen.exit_code() == 0
        # The log has only the rest.
        back = Screen("-c", home=home, script="")
        back.wait_for("the program ended before this was answered")
        assert "not stored" not in back.text
        back.type(CTRL_D)
        assert back.exit_code() == 0


def test_a_server_elsewhere_is_joined_with_a_token(home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    with Program(elsewhere, COUNTING) as program:
        token = program.headers["authorization"].removeprefix("Bearer ")
        one = Screen("attach", f"{program.url}/#token={token}", home=home, script="")
        one.wait_for(f"attached to {program.url}")
        one.type("quick\r")
        one.wait_for("done already")
        one.wait_ready()
        one.type(CTRL_D)
        assert one.exit_code() == 0
    told = subprocess.run(
        [PROGRAM, "attach", "http://127.0.0.1:1/"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, "which token?" in told.stderr) == (2, True)


def test_the_doctor_says_who_owns_the_data(home: Path) -> None:
    environment = {**os.environ, "BARGEIN_HOME": str(home / "data"), "HOME": str(home)}

    def doctor() -> str:
        command = [str(PROGRAM), "doctor", "--model", "local"]
        done = subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, check=False
        )
        return done.stdout

    assert "ok  owner: nobody has the data directory now" in doctor()
    with Program(home / "data", COUNTING) as program:
        assert f"ok  owner: process {program.process.pid} " in (told := doctor())
        assert "`bargein` attaches to it" in told
