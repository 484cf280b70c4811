"""Examples run, and what a page shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=50
    )
    return done.stdout


def test_stop_anything_stops_what_it_says_and_nothing_else() -> None:
    lines = run(str(ROOT / "examples" / "stop_anything.py")).splitlines()
    assert sorted(line.split()[-1] for line in lines) == [
        "abandoned",
        "cancelled",
        "cancelled",
        "cancelled",
        "untouched",
    ]


def test_the_kernel_in_ten_lines_does_what_its_page_says() -> None:
    page = (ROOT / "docs" / "kernel.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert run("-c", code.group(1)) == "cancelled deadline: 0.2 s\n"
