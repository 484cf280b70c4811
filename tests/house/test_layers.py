"""The contracts that import-linter holds cover what they are meant to cover.

`./dev check` runs them; here is checked that they cannot go stale: a new dependency, or a part that
comes to exist, has to be entered.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import cast

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PURE = ("cancel", "contracts", "session")
ALLOWED = {"anyio", "msgspec"}
EVENT_LOOPS = {"asyncio", "trio", "uvloop"}

Contract = dict[str, object]


def project() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def contract(kind: str) -> Contract:
    linter = cast("dict[str, list[Contract]]", project()["tool"]["importlinter"])
    (found,) = (one for one in linter["contracts"] if one["type"] == kind)
    return found


def test_the_layers_are_exhaustive() -> None:
    layers = contract("layers")
    assert layers["exhaustive"] is True
    assert layers["containers"] == ["bargein"]
    assert "exhaustive_ignores" not in layers


def test_nothing_imports_testing() -> None:
    first = cast("list[str]", contract("layers")["layers"])[0]
    assert first.strip("()") == "testing"


def test_the_pure_parts_are_under_the_contract_as_soon_as_they_exist() -> None:
    there = [
        f"bargein.{part}" for part in PURE if (ROOT / "src/bargein" / part / "__init__.py").exists()
    ]
    assert cast("list[str]", contract("forbidden")["source_modules"]) == there


def test_every_dependency_but_two_is_forbidden_to_the_pure_parts() -> None:
    declared = project()["project"]
    extras = cast("dict[str, list[str]]", declared["optional-dependencies"])
    wanted = cast("list[str]", declared["dependencies"]) + [
        one for extra in extras.values() for one in extra
    ]
    names = {Requirement(one).name for one in wanted} - ALLOWED - {"bargein"}
    forbidden = set(cast("list[str]", contract("forbidden")["forbidden_modules"]))
    assert names | EVENT_LOOPS <= forbidden
