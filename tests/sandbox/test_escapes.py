"""Known ways out of the sandbox, each refused, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bargein.process import Means
from tests.process.conftest import CERTAIN
from tests.process.ordinary_user import NOBODY, as_ordinary_user
from tests.sandbox.escapes import ESCAPES, MARK

PROJECT = Path(__file__).parents[2]
ROOT = os.geteuid() == 0

# More than a hundred commands, one after the other, on a machine that may be busy.
TRIED_S = 270
# Root's commands are in cgroups, an ordinary user's below supervisors.
COMBINATIONS = [("us", CERTAIN[0] if ROOT else Means.SUPERVISOR, "namespaces")]
COMBINATIONS += [("ordinary", Means.SUPERVISOR, "namespaces")] if ROOT else []
COMBINATIONS += [("us", Means.SUPERVISOR, "Landlock")]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Outside of /tmp, of which every sandbox has its own."""
    above = "/srv" if ROOT else os.path.expanduser("~")
    made = Path(tempfile.mkdtemp(prefix="bargein-escape-", dir=above))
    made.chmod(0o755)
    if ROOT:
        os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.timeout(TRIED_S + 30)
@pytest.mark.parametrize(("user", "means", "sandbox"), COMBINATIONS, ids=str)
def test_no_known_way_leads_out(folder: Path, user: str, means: str, sandbox: str) -> None:
    found = _tried(folder, user, means, sandbox)
    if not found.pop("means"):
        pytest.skip(f"this machine has no such sandbox: {found['detail']}")
    found.pop("detail")
    assert found.pop("honest").splitlines()[-1] == "fine"
    expected = set()
    if sandbox == "Landlock":
        # What it cannot hold is in the documentation's table, and makes every command ask.
        expected = {escape.name for escape in ESCAPES if not escape.landlock}
    assert {name: how for name, how in found.items() if name not in expected} == {}


def _tried(folder: Path, user: str, means: str, sandbox: str) -> dict[str, Any]:
    before = as_ordinary_user() if user == "ordinary" else []
    if ROOT and user == "us":
        os.chown(folder, 0, 0)
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.sandbox.escapes", means, sandbox, folder],
        cwd=PROJECT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TRIED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


HARMLESS = (
    *("write outside", "write through `..`", "write through a symbolic link", "read ~/.ssh"),
    *("write through a hard link", "change a mode outside", "search the home directory"),
    *("plant a git hook", "change git's configuration", "change .bashrc", "link a secret"),
    *("see environments of others", "see command lines of others", "kill a process outside"),
    *("connect to this machine", "connect to an abstract socket", "System V shared memory"),
    *("send a datagram, as DNS does", "connect to a socket of a service", "race of links"),
    *("replace a link to the hooks", "change the configuration of a repository below"),
    *("make git look into a repository", "the same with a compressed index"),
    *("the same with a shared index", "a configuration elsewhere", "make a set-user-ID program"),
    *("read a process's memory by a call", "take a descriptor of a process outside"),
)


def test_without_a_sandbox_they_lead_out(folder: Path) -> None:
    """The ways work: otherwise refusing them would prove nothing. Only those that harm nobody."""
    found = _tried(folder, "us", "auto", f"off:{';'.join(HARMLESS)}")
    assert [name for name in HARMLESS if name not in found] == []


def test_the_documentation_lists_them_all() -> None:
    page = (PROJECT / "docs/sandbox.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    listed = {name: (by_namespaces, by_landlock) for name, by_namespaces, by_landlock in rows}
    assert listed == {
        escape.name: ("yes", "yes" if escape.landlock else "no") for escape in ESCAPES
    }
    assert len(ESCAPES) >= 100
    assert MARK not in page
