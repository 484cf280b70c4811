"""`--plain`: the same conversation line by line, for screen readers, dumb terminals and pipes."""

import io
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bargein.cli import plain
from bargein.contracts.live import StepBegan, TextDelta
from bargein.contracts.receipt import StepKind
from bargein.models.settings import ModelSettings
from bargein.runtime.config import Config
from bargein.session.limits import Limits
from tests.cli.conftest import ANSWERED, SCRIPT, Open
from tests.cli.screen import CTRL_C, PROGRAM
from tests.session.world import a_while, until


def test_a_dumb_terminal_gets_plain_lines_and_every_command(chat: Open) -> None:
    screen = chat(TERM="dumb")
    screen.wait_for("· /help")
    screen.enter("hello")
    screen.wait_for("answered it")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.enter("/queue later words")
    screen.enter("/inbox")
    screen.wait_for("m3 (queue): later words")
    screen.type(CTRL_C)
    screen.wait_for("an empty line continues with it")
    assert re.search(r"stopped in \d+ ms · stream closed · 1 held", screen.text)
    screen.enter("")
    screen.wait_until(lambda: screen.text.count("answered it") == 2, "the second answer")
    screen.enter("danger")
    screen.wait_for("answer with /answer allow or deny")
    screen.enter("1")
    screen.wait_for("(joins what runs)")
    screen.enter("/answer 2")
    screen.wait_for("not approved")
    screen.enter("!echo mine")
    screen.wait_for("/tell sends it")
    screen.enter("/dance")
    screen.wait_for("no such command: /dance")
    screen.enter("/exit")
    assert screen.exit_code() == 0
    assert b"\x1b" not in screen.raw


def piped(folder: Path, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """The chat with pipes for a terminal, to its end."""
    (folder / "script.toml").write_text(SCRIPT)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "BARGEIN_HOME": str(folder / "data"),
        "BARGEIN_CHAT_HOST": "0",
        "BARGEIN_MODEL": "scripted:script.toml",
    }
    return subprocess.run(
        [PROGRAM, *arguments],
        input=given,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_pipe_is_answered_to_its_end(tmp_path: Path) -> None:
    done = piped(tmp_path, given="hello\n/status\n")
    assert done.returncode == 0
    assert done.stdout == "answered it\n"
    assert "kept in" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_after_a_steer_begins_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = plain.PlainChat(Config(tmp_path, ModelSettings(), {}))
    for text in ("", "One.", "Two.\n", "Three."):
        chat.show(StepBegan("t1", StepKind.MODEL, "scripted"))
        chat.show(TextDelta("t1", text))
    assert capsys.readouterr().out == "One.\nTwo.\nThree."


def test_a_question_after_the_end_of_the_input_is_not_waited_on(tmp_path: Path) -> None:
    done = piped(tmp_path, given="danger\n")
    assert (done.returncode, done.stdout) == (0, "so be it\n")
    assert "question: Allow this call" in done.stderr
    assert "(nobody is there to answer)" in done.stderr
    assert "[terminal: not approved]" in done.stderr


def test_what_cannot_begin_is_refused_as_by_every_command(tmp_path: Path) -> None:
    done = piped(tmp_path, "--plain", "--resume", "nobody")
    assert done.returncode == 2
    assert done.stderr == (
        "bargein chat: there is no session 'nobody'; `bargein sessions` lists them\n"
    )


def test_a_bare_stop_stops_as_it_does_everywhere(chat: Open) -> None:
    screen = chat(TERM="dumb")
    screen.wait_for("· /help")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.enter("Stop!")
    screen.wait_for("stopped in")
    screen.enter("stop")
    screen.wait_for("nothing is running")
    screen.enter("/exit")
    assert screen.exit_code() == 0


def test_an_empty_line_asks_again_what_a_crash_left_unanswered(chat: Open) -> None:
    screen = chat(TERM="dumb")
    screen.wait_for("· /help")
    screen.enter("wait and see")
    screen.wait_for("waiting")
    os.kill(screen.pid, signal.SIGKILL)
    screen.exit_code()
    again = chat("-c", TERM="dumb", script=ANSWERED)
    again.wait_for("Enter asks again")
    again.wait_for("· /help")
    again.enter("")
    again.wait_for("answered it")
    again.enter("")
    again.enter("/exit")
    assert again.exit_code() == 0
    assert again.text.count("answered it") == 1


class Endless:
    """An input that always has another line, until it is ended."""

    def __init__(self) -> None:
        self.lines_read = 0
        self.over = False

    def has_read(self, lines: int) -> bool:
        return self.lines_read >= lines

    def readline(self, _: int) -> str:
        if self.over:
            return ""
        self.lines_read += 1
        return "x\n"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_endless_input_is_not_read_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(sys, "stdin", endless)
    lines = plain._read_lines()
    for taken in (0, 50):
        for _ in range(taken):
            assert await lines.get() == "x"
        # One more is in its hand.
        most = plain.READ_AHEAD_LINES + taken + 1
        await until(partial(endless.has_read, most))
        await a_while()
        assert endless.lines_read == most
    endless.over = True
    lines.room.release()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_a_line_that_is_too_long_no_more_is_kept_than_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "LINE_CHARACTERS_MAX", 10)
    typed = "x" * 35 + "\nshort\n" + "y" * 10 + "\n" + "z" * 9 + "\nlast"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    lines = plain._read_lines()
    assert [await lines.get() for _ in range(6)] == [
        *("x" * 10, "short", "y" * 10, "z" * 9, "last"),
        None,
    ]


def test_a_line_that_is_cut_is_too_long_for_any_session() -> None:
    assert Limits().message_bytes_max < plain.LINE_CHARACTERS_MAX
