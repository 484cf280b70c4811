"""The contracts that import-linter holds cover what they are meant to cover.

`./dev check` runs them; here is checked that they cannot go stale: a new dependency has to be
entered.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import cast

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ALLOWED = {"anyio", "msgspec"}
IMPORTED_AS = {"markdown-it-py": "markdown_it", "matrix-nio": "nio"}
EVENT_LOOPS = {"asyncio", "trio", "uvloop"}

Contract = dict[str, object]


def project() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def contract(name_begins: str) -> Contract:
    linter = cast("dict[str, list[Contract]]", project()["tool"]["importlinter"])
    (found,) = (one for one in linter["contracts"] if str(one["name"]).startswith(name_begins))
    return found


def layers() -> Contract:
    return contract("each part imports only those below it")


def pure() -> Contract:
    return contract("kernel, contracts, calls, engine and view")


def module_of(distribution: str) -> str:
    """What it is imported as. Those of OpenTelemetry share one package."""
    if distribution.startswith("opentelemetry-"):
        return "opentelemetry"
    return IMPORTED_AS.get(distribution, distribution.replace("-", "_"))


def test_the_layers_are_exhaustive() -> None:
    assert layers()["exhaustive"] is True
    assert layers()["containers"] == ["bargein"]
    assert "exhaustive_ignores" not in layers()


def test_nothing_imports_testing() -> None:
    first = cast("list[str]", layers()["layers"])[0]
    assert first.strip("()") == "testing"


def test_the_pure_parts_are_under_the_contract() -> None:
    pure_parts = [
        "bargein.cancel",
        "bargein.contracts",
        "bargein.calls",
        "bargein.session",
        "bargein.view",
    ]
    assert pure()["source_modules"] == pure_parts


def test_the_view_knows_contracts_only() -> None:
    view = contract("the view knows contracts only")
    forbidden = set(cast("list[str]", view["forbidden_modules"]))
    names = [one for line in cast("list[str]", layers()["layers"]) for one in line.split(" | ")]
    below = [one for one in names[names.index("view") + 1 :] if not one.startswith("(")]
    allowed = {f"bargein.{one}" for one in below} - forbidden
    assert allowed == {"bargein.contracts", "bargein.errors"}
    assert "anyio" in forbidden


def test_the_engine_does_not_know_processes() -> None:
    engine = contract("the engine and the pipeline of calls")
    assert engine["source_modules"] == ["bargein.session", "bargein.calls"]
    assert engine["forbidden_modules"] == ["bargein.process"]


def test_every_dependency_but_two_is_forbidden_to_the_pure_parts() -> None:
    declared = project()["project"]
    extras = cast("dict[str, list[str]]", declared["optional-dependencies"])
    wanted = cast("list[str]", declared["dependencies"]) + [
        one for extra in extras.values() for one in extra
    ]
    names = {module_of(Requirement(one).name) for one in wanted} - ALLOWED - {"bargein"}
    forbidden = set(cast("list[str]", pure()["forbidden_modules"]))
    assert names | EVENT_LOOPS <= forbidden
