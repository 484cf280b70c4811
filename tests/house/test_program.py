"""The terminal program as a shell sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bargein

PROGRAM = Path(sys.executable).with_name("bargein")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)


def test_says_its_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"bargein {bargein.__version__}\n")


def test_help_shows_every_command_and_examples() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("chat", "run", "serve", "sessions", "config", "doctor", "demo", "completion"):
        assert f"    {command} " in done.stdout
    assert "examples:" in done.stdout


def test_wrong_usage_exits_with_2_and_names_what_was_wrong() -> None:
    done = run("dance")
    assert (done.returncode, done.stdout) == (2, "")
    assert "dance" in done.stderr
