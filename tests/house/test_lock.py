"""requirements.lock pins everything by hash, and says nothing about where anybody gets it from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def lock_entries() -> list[str]:
    """Each requirement with its hashes, on one line."""
    return (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()


def pins() -> dict[str, Requirement]:
    found = [Requirement(entry.partition(" --hash")[0]) for entry in lock_entries()]
    return {canonicalize_name(pin.name): pin for pin in found}


def declared() -> list[Requirement]:
    """Each dependency that pyproject.toml names, whatever it is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(one for extra in project["project"]["optional-dependencies"].values() for one in extra),
        *(one for group in project["dependency-groups"].values() for one in group),
    ]
    return [Requirement(one) for one in wanted if not one.startswith("bargein[")]


def test_the_lock_names_no_place() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    # Nothing but pins, markers and hashes: no --index-url, no comment, no direct reference.
    options = set(re.findall(r"--[a-z-]+", text))
    assert options == {"--hash"}
    assert "#" not in text
    assert " @ " not in text


@pytest.mark.parametrize("name", ["pyproject.toml", "dev", ".ci/run"])
def test_no_file_of_the_set_up_names_an_index(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host", text)


def test_every_entry_is_one_exact_version_with_hashes() -> None:
    entries = lock_entries()
    assert len(entries) > 30
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==[^ *]+ ", entry), entry
        assert SHA256.search(entry), entry
        assert not re.sub(SHA256, "", entry.partition("--hash")[2].partition(" ")[2]).strip(), entry


def test_every_declared_dependency_is_pinned_to_a_version_that_it_allows() -> None:
    pinned = pins()
    for wanted in declared():
        pin = pinned[canonicalize_name(wanted.name)]
        (version,) = (clause.version for clause in pin.specifier)
        assert wanted.specifier.contains(version), f"{wanted} is pinned to {version}: ./dev lock"


def test_each_dependency_has_its_reason_beside_it() -> None:
    before, seen = "", 0
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if re.match(r' {4}"[\w-]+(?:\[\w+\])?[<>=;][^"]*"|\w+ = \["[\w-]+>=', line):
            seen += 1
            assert "  # " in line or before.lstrip().startswith("# "), f"no reason beside {line}"
        before = line
    assert seen == len(declared())
