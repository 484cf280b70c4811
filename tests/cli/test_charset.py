"""In an ASCII terminal or locale nothing fails, and our own output is ASCII."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from bargein.cli.chat.paint import ASCII as ASCII_SIGNS
from bargein.cli.chat.paint import Symbols, symbols_for
from tests.cli.conftest import Open
from tests.cli.screen import CTRL_C, ESCAPE, PROGRAM

WORDS = "Grüße · 日本 …"
SCRIPT = f"""
repeat = true
[[answers]]
when = "^wait"
steps = [{{ do = "say", text = "waiting" }}, {{ do = "pause", seconds = 600 }}]
[[answers]]
when = "^list"
steps = [{{ do = "say", text = "- one\\n- two\\n\\n> so it goes\\n\\n---\\n" }}]
[[answers]]
when = "ü"
steps = [{{ do = "say", text = "that I can read" }}]
[[answers]]
steps = [{{ do = "say", text = "{WORDS}" }}]
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}


def run(folder: Path, *arguments: str | bytes, given: str = "") -> tuple[int, bytes, bytes]:
    (folder / "script.toml").write_text(SCRIPT, encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "BARGEIN_HOME": str(folder / "data"),
        "BARGEIN_CHAT_HOST": "0",
        "BARGEIN_MODEL": "scripted:script.toml",
        **ASCII,
    }
    done = subprocess.run(
        [PROGRAM, *arguments],
        input=given.encode(),
        env=environment,
        cwd=folder,
        capture_output=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_answer_is_written_as_far_as_the_terminal_can(tmp_path: Path) -> None:
    code, out, told = run(tmp_path, "run", "--session", "s", "hello")
    assert (code, out) == (0, b"Gr??e ? ?? ?\n"), told
    code, out, told = run(tmp_path, "--plain", given="hello\n")
    assert (code, out) == (0, b"Gr??e ? ?? ?\n"), told
    code, out, told = run(tmp_path, "sessions", "show", "s")
    assert (code, out) == (0, b"> hello\n\nGr??e ? ?? ?\n"), told


def test_what_is_for_programs_and_files_loses_nothing(tmp_path: Path) -> None:
    code, out, told = run(tmp_path, "run", "--json", "--session", "s", "hello")
    assert code == 0, told
    events = [json.loads(line) for line in out.decode().splitlines()]
    assert WORDS in "".join(each.get("text", "") for each in events)
    _, out, _ = run(tmp_path, "sessions", "export", "s")
    assert WORDS in out.decode()
    _, out, _ = run(tmp_path, "sessions", "export", "s", "--format", "json")
    assert WORDS in out.decode()
    _, _, told = run(tmp_path, "--plain", "--resume", "s", given="/export page.md\n")
    assert WORDS in (tmp_path / "page.md").read_text(encoding="utf-8"), told


@pytest.mark.parametrize("words", ["Grüße", b"\xff gr\xc3\xbcn"])
def test_a_prompt_is_read_as_utf8_whatever_the_locale(tmp_path: Path, words: str | bytes) -> None:
    assert run(tmp_path, "run", words)[:2] == (0, b"that I can read\n")


# Python itself takes UTF-8 where the locale is C, unless told otherwise.
@pytest.mark.parametrize("more", [ASCII, {"LC_ALL": "C"}])
def test_the_plain_chat_says_its_own_words_in_ascii(chat: Open, more: dict[str, str]) -> None:
    screen = chat(TERM="dumb", **more)
    screen.wait_for("- /help")
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.type(CTRL_C)
    screen.wait_for("ms - stream closed")
    screen.enter("!echo mine")
    screen.wait_for("- only you have seen this")
    screen.enter("/exit")
    assert screen.exit_code() == 0
    assert bytes(screen.raw).isascii()


@pytest.mark.parametrize("more", [ASCII, {"LC_ALL": "C"}])
def test_the_drawn_chat_draws_in_ascii(chat: Open, more: dict[str, str]) -> None:
    screen = chat(script=SCRIPT, **more)
    screen.wait_for("- /help")
    screen.wait_ready()
    screen.enter("list")
    screen.wait_for("one")
    screen.wait_ready()
    screen.enter("wait for me")
    screen.wait_for("waiting")
    screen.enter("/queue later")
    screen.wait_for("queued - Alt-Up edits")
    screen.type(ESCAPE)
    screen.wait_for("ms - stream closed")
    screen.wait_for("held - Enter continues")
    assert bytes(screen.raw).isascii()


def test_a_run_says_its_receipt_in_ascii(tmp_path: Path) -> None:
    code, _, told = run(tmp_path, "run", "--timeout", "0.2", "wait")
    assert code == 124
    assert b"ms - stream closed" in told


@pytest.mark.parametrize(
    ("encoding", "environment", "symbols"),
    [
        ("utf-8", {}, Symbols()),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, Symbols()),
        ("utf-8", {"LC_ALL": "C.UTF-8"}, Symbols()),
        ("utf-8", {"LC_ALL": "POSIX"}, ASCII_SIGNS),
        ("utf-8", {"LC_ALL": "C", "PYTHONUTF8": "1"}, Symbols()),
        ("utf-8", {"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, Symbols()),
        ("iso8859-1", {"LC_ALL": "de_DE"}, ASCII_SIGNS),
    ],
)
def test_signs_are_those_of_the_locale(
    encoding: str, environment: dict[str, str], symbols: Symbols
) -> None:
    assert symbols_for(encoding, environment) == symbols
