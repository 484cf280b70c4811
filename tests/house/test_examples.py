"""Examples run, and what a page shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=50
    )
    return done.stdout


def tells(wanted: Callable[[str], object], *arguments: str) -> bool:
    """Examples give a stop a second, as people see it. A machine that stands still for as long is
    not the example's fault, and does not do so three times."""
    for _ in range(3):
        told = run(*arguments)
        if wanted(told):
            return True
        print(told)  # noqa: T201 - shown by pytest if this fails
    return False


def test_stop_anything_stops_what_it_says_and_nothing_else() -> None:
    wanted = [
        ["another", "turn", "untouched"],
        ["blocked", "in", "C", "abandoned"],
        ["coroutine", "cancelled"],
        ["loop", "cancelled"],
        ["thread", "that", "looks", "cancelled"],
    ]
    assert tells(
        lambda told: sorted(line.split() for line in told.splitlines()) == wanted,
        str(ROOT / "examples" / "stop_anything.py"),
    )


def test_an_agent_of_ones_own_is_steered_stopped_and_goes_on() -> None:
    wanted = re.compile(
        r"counted to 3\n"
        r"  now to 12\n"
        r"counted to 12\n"
        r"  stopped at (\d+)\n"
        r"stopped, within a second: True\n"
        r"it is still there: counted to \1\n"
    )
    assert tells(wanted.fullmatch, "-W", "error", str(ROOT / "examples" / "own_agent.py"))


def test_an_agent_without_await_is_stopped_from_a_thread_and_by_a_message() -> None:
    told = run("-W", "error", str(ROOT / "examples" / "sync_agent.py"))
    lines = told.splitlines()
    assert lines[0] == "THIS IS SHORT"
    assert sorted(lines[1:3]) == ["stopped by another thread", "the turn was stopped"]
    assert lines[3] == "RATHER THIS"


def test_the_kernel_in_ten_lines_does_what_its_page_says() -> None:
    page = (ROOT / "docs" / "kernel.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert run("-c", code.group(1)) == "cancelled deadline: 0.2 s\n"
