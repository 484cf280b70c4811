"""docs/scenarios.md names tests and broken engines that exist, and every broken engine there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scenarios.md").read_text()


def defined(path: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or name not in defined(ROOT / file)
    ]
    assert missing == []


def test_every_scenario_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "held by" not in line]
    assert len(rows) > 30
    assert [row for row in rows if "`tests/" not in row] == []


def test_every_broken_engine_stands_with_its_scenario() -> None:
    variants = {
        name
        for name in defined(ROOT / "tests" / "simulation" / "variants.py")
        if not name.startswith("_") and name[0].isupper()
    }
    named = re.findall(r"; variants? ([\w, ]+?) \|$", PAGE, flags=re.MULTILINE)
    assert {name for words in named for name in words.split(", ")} == variants
