"""Standard input, output and errors that are closed, or full, or that nobody reads."""

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
