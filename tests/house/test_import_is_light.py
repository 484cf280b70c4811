"""`import bargein` loads nothing heavy, so that it may stand at the top of anyone's program.

What it costs in time is a figure, and figures are for `./dev bench imports`; what it loads is a
fact, and is tested here.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp",
    "asyncio",
    "hypothesis",
    "prompt_toolkit",
    "rich",
    "sqlite3",
    "ssl",
    "starlette",
    "trio",
    "uvicorn",
    "uvloop",
    "xllamacpp",
}


@pytest.mark.parametrize("code", ["import bargein", "from bargein import *"])
def test_loads_nothing_heavy(code: str) -> None:
    assert modules_after(code) & HEAVY == set()


def test_the_names_are_loaded_only_when_asked_for() -> None:
    loaded = {name for name in modules_after("import bargein") if name.startswith("bargein")}
    assert loaded == {"bargein"}


def modules_after(code: str) -> set[str]:
    program = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())
