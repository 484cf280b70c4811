"""Standard streams that are closed, full, or that nobody reads."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.screen import PROGRAM

SCRIPT = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "answered it" }]
"""


def shell(folder: Path, line: str) -> "subprocess.CompletedProcess[str]":
    """A line for a shell, in which `bargein` is the program."""
    (folder / "script.toml").write_text(SCRIPT)
    environment = {
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "BARGEIN_HOME": str(folder / "data"),
        "BARGEIN_CHAT_HOST": "0",
        "BARGEIN_MODEL": "scripted:script.toml",
    }
    return subprocess.run(
        ["bash", "-c", line],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["run hello", "chat"])
def test_what_is_closed_is_as_if_it_were_nothing(tmp_path: Path, command: str, closed: str) -> None:
    done = shell(tmp_path, f"bargein {command} {closed}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done
    answered = command == "run hello" and ">&-" not in closed.replace("2>&-", "")
    assert done.stdout == ("answered it\n" if answered else "")


@pytest.mark.parametrize(
    "command", ["run hello", "--help", "config", "doctor", "sessions", "chat <<< hello"]
)
def test_what_cannot_be_written_is_told_in_a_sentence(tmp_path: Path, command: str) -> None:
    shell(tmp_path, "bargein run before")
    done = shell(tmp_path, f"bargein {command} >/dev/full")
    told = [line for line in done.stderr.splitlines() if "No space left" in line]
    assert told == ["bargein: standard output cannot be written: No space left on device"]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", ["run hello", "chat <<< hello", "sessions show before"])
def test_nobody_reads_any_more(tmp_path: Path, command: str) -> None:
    shell(tmp_path, "bargein run --session before hello")
    # The reader is gone before anything is written.
    done = shell(tmp_path, f"(sleep 0.5; bargein {command}; echo $? >code) | true")
    assert (tmp_path / "code").read_text() == "141\n"
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["run hello", "chat <<< hello", "doctor"])
def test_nobody_reads_what_is_told_besides(tmp_path: Path, command: str) -> None:
    # What `doctor` exits with depends on the machine.
    expected = shell(tmp_path, f"bargein {command} >heard").returncode
    done = shell(tmp_path, f"(sleep 0.5; bargein {command} 2>&1 >out; echo $? >code) | true")
    assert (tmp_path / "code").read_text() == f"{expected}\n"
    assert command == "doctor" or expected == 0
    assert (done.stdout, done.stderr) == ("", "")
    assert command == "doctor" or (tmp_path / "out").read_text() == "answered it\n"
