"""Piped input of `bargein run` reaches the model, or is refused with a sentence; nothing hangs."""

import os
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from bargein.cli.piped import FIRST_BYTE_S, PIPED_BYTES_MAX, with_piped
from bargein.contracts.event import MessageAccepted
from bargein.runtime.data_directory import SESSIONS_FILE
from tests.cli.screen import PROGRAM, Screen
from tests.cli.test_race import events_of

SCRIPT = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "the answer" }]
"""
NOTHING_CAME = f"nothing arrived within {FIRST_BYTE_S:g} s"


def run(home: Path, *arguments: str, given: bytes | int) -> "subprocess.CompletedProcess[bytes]":
    """`given` is what is piped in, or a descriptor to read from."""
    (home / "script.toml").write_text(SCRIPT)
    piped, source = (given, None) if isinstance(given, bytes) else (None, given)
    return subprocess.run(
        [PROGRAM, "run", *arguments],
        input=piped,
        stdin=source,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "BARGEIN_HOME": str(home / "data"),
            "BARGEIN_CHAT_HOST": "0",
            "BARGEIN_MODEL": f"scripted:{home / 'script.toml'}",
        },
        cwd=home,
        capture_output=True,
        timeout=30,
        check=False,
    )


def said(home: Path) -> str:
    log = anyio.run(events_of, home / "data" / SESSIONS_FILE)
    (words,) = [e.event.message.text for e in log if isinstance(e.event, MessageAccepted)]
    return words


def test_what_is_piped_in_comes_below_the_prompt(tmp_path: Path) -> None:
    done = run(tmp_path, "review", "this", given="+ naïve\n".encode())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"the answer\n", b"")
    assert said(tmp_path) == "review this\n\n<stdin>\n+ naïve\n</stdin>"


def test_a_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "diff").write_text("+ one line without an end")
    with (tmp_path / "diff").open() as file:
        assert run(tmp_path, "review", given=file.fileno()).returncode == 0
    assert said(tmp_path) == "review\n\n<stdin>\n+ one line without an end\n</stdin>"


@pytest.mark.parametrize("arguments", [["-"], []])
def test_without_a_prompt_it_is_the_message(tmp_path: Path, arguments: list[str]) -> None:
    assert run(tmp_path, *arguments, given=b"do this\nand that").returncode == 0
    assert said(tmp_path) == "do this\nand that"


def test_an_empty_input_adds_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "hello", given=b"").returncode == 0
    assert said(tmp_path) == "hello"
    assert with_piped("hello", " \n") == "hello"


@pytest.mark.parametrize("arguments", [["look"], ["-"]])
@pytest.mark.parametrize("body", [b"\x7fELF\x02\0\0", bytes(range(128, 256))])
def test_what_is_not_text_is_refused(tmp_path: Path, arguments: list[str], body: bytes) -> None:
    done = run(tmp_path, *arguments, given=body)
    assert done.returncode == 2
    assert b"standard input is not text" in done.stderr


def test_some_letters_of_an_older_character_set_are_no_reason(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "look", given="das Käsebrot und der Rest".encode("latin-1")).returncode == 0
    )
    assert "K�sebrot" in said(tmp_path)


def test_too_much_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as endless:
        done = run(tmp_path, "look", given=endless.fileno())
    assert done.returncode == 2
    assert f"more than {PIPED_BYTES_MAX >> 20} MiB".encode() in done.stderr


def test_a_pipe_that_nobody_writes_to_does_not_hang_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    began_at = time.monotonic()
    done = run(tmp_path, "hello", given=reading)
    assert time.monotonic() - began_at >= FIRST_BYTE_S
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"the answer\n")
    assert NOTHING_CAME.encode() in done.stderr
    assert said(tmp_path) == "hello"


def test_a_terminal_is_not_read_from(tmp_path: Path) -> None:
    screen = Screen("run", "hello", home=tmp_path, script=SCRIPT)
    assert screen.exit_code() == 0
    assert screen.text == "the answer"


def test_a_terminal_is_read_from_if_asked_to(tmp_path: Path) -> None:
    screen = Screen("run", "-", home=tmp_path, script=SCRIPT)
    screen.wait_for("Ctrl-D ends it")
    screen.type("typed here\r\x04")
    screen.wait_for("the answer")
    assert screen.exit_code() == 0
    assert said(tmp_path) == "typed here\n"


def test_ctrl_c_ends_it_while_it_reads(tmp_path: Path) -> None:
    screen = Screen("run", "-", home=tmp_path, script=SCRIPT)
    screen.wait_for("Ctrl-D ends it")
    os.kill(screen.pid, signal.SIGINT)
    assert screen.exit_code() == 130
