"""The screen shows how calls ended: refused ones with the reason, and unsuccessful commands with a
different mark."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Open
from tests.cli.screen import PROGRAM, Screen

REFUSED = "There is no tool named 'telepathy'"
SCRIPT = """
repeat = true
[[answers]]
when = "^fail"
steps = [{ do = "call", name = "terminal", arguments = { command = "echo seen; exit 3" } }]
[[answers]]
when = "^refuse"
steps = [{ do = "call", name = "telepathy", arguments = { to = "you" } }]
[[answers]]
when = "^succeed"
steps = [{ do = "call", name = "terminal", arguments = { command = "echo seen" } }]
[[answers]]
steps = [{ do = "say", text = "that is that" }]
"""


def line_with(screen: Screen, words: str) -> str:
    return next(line for line in screen.text.split("\n") if words in line)


def test_a_command_with_another_exit_code_than_0_is_marked_as_failed(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.enter("fail")
    screen.wait_for("exit code 3")
    assert line_with(screen, "exit code 3").startswith("✗ terminal  echo seen; exit 3")
    screen.enter("succeed")
    screen.wait_for("✓ terminal  echo seen")
    screen.type("\x04")
    screen.exit_code()
    again = chat("-c", script=SCRIPT)
    again.wait_for("✓ terminal  echo seen")
    assert line_with(again, "exit code 3").startswith("✗ terminal")


def test_a_call_that_is_refused_before_it_runs_is_shown_once_with_why(chat: Open) -> None:
    screen = chat(script=SCRIPT)
    screen.wait_ready()
    screen.enter("refuse")
    screen.wait_for("that is that")
    screen.wait_ready()
    assert line_with(screen, "telepathy").startswith("✗ telepathy  you")
    assert screen.text.count("refused:") == 1
    assert REFUSED in " ".join(screen.text.split())


@pytest.mark.parametrize("arguments", [["run", "refuse"], ["chat", "--plain"]])
def test_so_it_is_line_by_line_and_in_scripts(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    done = subprocess.run(
        [PROGRAM, *arguments],
        input="refuse\n" if arguments[0] == "chat" else "",
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "BARGEIN_HOME": str(tmp_path / "data"),
            "BARGEIN_CHAT_HOST": "0",
            "BARGEIN_MODEL": f"scripted:{tmp_path / 'script.toml'}",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("refused:") == 1, done.stderr
    assert REFUSED in done.stderr
