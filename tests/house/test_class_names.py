"""One name, one class: whoever searches for a public class finds the one that was meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

USED_TWICE = {
    "Answer": 2,
    "Done": 2,
    "Engine": 2,
    "Gate": 3,
    "Pause": 3,
    "Reply": 2,
    "Sent": 3,
    "Session": 3,
    "Stop": 2,
    "TurnStream": 2,
}
"""Names that more than one public class still has, and how many. It only gets shorter: a name that
has become unique must be taken out."""


def public_classes() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return found


def test_each_public_class_has_a_name_of_its_own() -> None:
    twice = {name: files for name, files in public_classes().items() if len(files) > 1}
    new = {name: files for name, files in twice.items() if len(files) > USED_TWICE.get(name, 1)}
    assert new == {}, "find another name, by docs/glossary.md"
    fewer = {name: count for name, count in USED_TWICE.items() if len(twice.get(name, ())) < count}
    assert fewer == {}, "not needed any more: shorten USED_TWICE"
