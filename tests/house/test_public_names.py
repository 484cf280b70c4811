"""The public names of `bargein` are declared once; everything else follows from that."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import bargein
from bargein import cancel, events

ROOT = Path(__file__).parents[2]


def test_every_declared_name_is_there_and_is_what_its_home_calls_so() -> None:
    for name, home in bargein._HOMES.items():
        assert getattr(bargein, name) is getattr(import_module(home), name)


def test_a_home_offers_the_name_itself() -> None:
    for name, home in bargein._HOMES.items():
        module = import_module(home)
        listed = getattr(module, "__all__", None)
        if listed is not None:
            assert name in listed, f"{home} does not list {name} in __all__"
        else:
            assert getattr(module, name).__module__ == home


def test_every_event_is_public_and_has_a_row_in_its_page() -> None:
    kinds = {each.__name__ for each in (*get_args(events.Event), *get_args(events.Live))}
    assert kinds <= set(events.__all__)
    page = (ROOT / "docs/events.md").read_text()
    rows = re.findall(r"^\| (`\w+`[^|]*) \|", page, flags=re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(events.__all__)


def test_the_kernels_page_describes_exactly_its_names() -> None:
    page = (ROOT / "docs/kernel.md").read_text().partition("## All names")[2]
    documented = re.findall(r"^\| `(\w+)", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(cancel.__all__)


def test_star_import_gives_exactly_the_declared_names() -> None:
    names: dict[str, object] = {}
    exec("from bargein import *", names)
    del names["__builtins__"]
    assert sorted(names) == sorted(bargein._HOMES)
    assert set(bargein._HOMES) <= set(dir(bargein))


def test_type_checkers_see_the_same_names() -> None:
    seen = {}
    for node in ast.walk(ast.parse(Path(bargein.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bargein"):
            seen.update({alias.asname: node.module for alias in node.names})
    assert seen == bargein._HOMES


def test_docs_describe_exactly_the_public_names() -> None:
    text = (ROOT / "docs/api.md").read_text()
    documented = re.findall(r"^\| `(\w+)", text, flags=re.MULTILINE)
    assert sorted(documented) == sorted([*bargein._HOMES, "__version__"])


def test_an_unknown_name_is_the_usual_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'bargein' has no attribute 'no_such_name'"):
        getattr(bargein, "no_such_name")  # noqa: B009
    assert not hasattr(bargein, "no_such_name")
