"""Commands do not see the data directory, whatever they try."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bargein.cancel import CancelSource
from bargein.errors import UserError
from bargein.process import Containment, Hiding, Means, open_containment
from bargein.sandbox.hiding import hiding_for
from tests.process.conftest import CERTAIN
from tests.process.ordinary_user import NOBODY, as_ordinary_user
from tests.sandbox.attacks import ATTACKS, MARK

PROJECT = Path(__file__).parents[2]
ROOT = os.geteuid() == 0

# Root also plays an ordinary user, who has no cgroups. Anybody else is one.
COMBINATIONS = [("us", means) for means in CERTAIN] + [
    ("ordinary", means) for means in CERTAIN if ROOT and means is not Means.CGROUP
]
by_user_and_means = pytest.mark.parametrize(("user", "means"), COMBINATIONS, ids=str)


@pytest.fixture
def hidden() -> Iterator[Path]:
    """A directory with a secret and a folder to work in, of the ordinary user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Path(folder, "data")
        (made / "work").mkdir(parents=True)
        (made / "secret").write_text(MARK)
        if ROOT:
            for path in (made, made / "work", made / "secret"):
                os.chown(path, NOBODY, NOBODY)
        yield made


def attacked(means: str, hidden: Path, *before: str) -> dict[str, Any]:
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.sandbox.attacks", means, hidden, hidden / "work"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@by_user_and_means
def test_no_command_reads_what_is_hidden(hidden: Path, means: str, user: str) -> None:
    found = attacked(means, hidden, *(as_ordinary_user() if user == "ordinary" else ()))
    if not found["how"]:
        pytest.skip(f"this machine cannot hide: {found['detail']}")
    assert found["how"] == ("mount namespace" if ROOT and user == "us" else "user namespace")
    seen = {name: found[name] for name in ATTACKS if MARK in found[name]}
    assert seen == {}
    assert sorted(path.name for path in hidden.iterdir()) == ["secret", "work"]
    assert found["in what is kept"] == f"here\n{hidden}/work\n"
    assert found["a move between folders"] == "moved\n"
    assert (hidden / "work/new").read_text() == "here\n"


async def said(containment: Containment, command: str) -> str:
    with CancelSource("test") as source:
        process = await containment.spawn(
            ["sh", "-c", command], cwd="/", env=dict(os.environ), token=source.token
        )
        await process.wait()
        await process.stop()
        return process.output.text()


@pytest.mark.anyio
async def test_a_helper_that_takes_over_hides_the_same(hidden: Path) -> None:
    async with await open_containment(hiding=Hiding((str(hidden),))) as containment:
        if not containment.report.hiding.works:
            pytest.skip(containment.report.hiding.detail)
        for _ in range(3):
            assert await said(containment, f"ls -A {hidden}") == ""
            containment._backend.restart_helper()  # kills the helper; the next command gets another


@pytest.mark.anyio
async def test_without_a_hiding_commands_see_what_we_see(hidden: Path) -> None:
    async with await open_containment() as containment:
        assert not containment.report.hiding.works
        assert await said(containment, f"cat {hidden}/secret") == MARK


@pytest.mark.anyio
async def test_a_group_cannot_hide_and_says_so(hidden: Path) -> None:
    async with await open_containment("group", hiding=Hiding((str(hidden),))) as containment:
        assert not containment.report.hiding.works
        assert "helper" in containment.report.hiding.detail


# --- what is to be hidden


def test_the_workspace_may_not_be_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "link", tmp_path / "x" / ".."):
        with pytest.raises(UserError, match="both the workspace and a directory of Bargein's own"):
            hiding_for(tmp_path, workspaces=[folder])


def test_a_workspace_around_or_inside_the_data_directory(tmp_path: Path) -> None:
    home = tmp_path / "home/data"
    (home / "work").mkdir(parents=True)
    assert hiding_for(home, workspaces=[tmp_path / "home"]) == Hiding((str(home),))
    inside = hiding_for(home, workspaces=[home / "work"])
    assert inside == Hiding((str(home),), (str(home / "work"),))
    assert inside.covers(str(home))
    assert inside.covers(f"{home}/sessions.sqlite3")
    assert not inside.covers(f"{home}/work/file")
    assert not inside.covers(f"{home}-other")


def test_folders_that_do_not_exist_are_not_hidden(tmp_path: Path) -> None:
    assert hiding_for(tmp_path / "none", own=[tmp_path / "nothing"]) == Hiding()


def test_one_inside_the_other_is_hidden_once(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    assert hiding_for(tmp_path / "inner", own=[tmp_path]) == Hiding((str(tmp_path),))


@pytest.mark.skipif(not ROOT, reason="only root can mount for everybody to see")
def test_other_mounts_of_the_data_directory_are_hidden_too(tmp_path: Path) -> None:
    """In a mount namespace of the test's own: `elsewhere` shows what is around the directory."""
    if subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("in a chroot no mount namespace can be made private")
    (tmp_path / "around/data").mkdir(parents=True)
    (tmp_path / "elsewhere with blanks").mkdir()
    code = (
        "import sys; from pathlib import Path; from bargein.sandbox.hiding import hiding_for; "
        "print(*hiding_for(Path(sys.argv[1])).directories, sep=chr(10))"
    )
    script = (
        'mount --bind "$1/around" "$1/elsewhere with blanks" && exec "$2" -c "$3" "$1/around/data"'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", tmp_path, sys.executable, code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    ways = done.stdout.splitlines()
    assert ways == [f"{tmp_path}/around/data", f"{tmp_path}/elsewhere with blanks/data"]


OWNER = """
import asyncio, sys
from bargein.cancel import CancelSource
from bargein.process import Hiding, open_containment

async def main():
    async with await open_containment(sys.argv[1], hiding=Hiding((sys.argv[2],))) as containment:
        with CancelSource("owner") as source:
            process = await containment.spawn(
                ["sh", "-c", "setsid sleep 300 & exec sleep 300"], cwd="/",
                env={"PATH": "/usr/bin:/bin"}, token=source.token,
            )
            print(containment.report.hiding.how, process.pid, flush=True)
            await process.wait()

asyncio.run(main())
"""


@by_user_and_means
def test_commands_end_with_their_owner_inside_the_namespace(
    hidden: Path, means: str, user: str
) -> None:
    before = as_ordinary_user() if user == "ordinary" else []
    with subprocess.Popen(
        [*before, sys.executable, "-c", OWNER, means, hidden], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        *_, pid = owner.stdout.readline().split()
        watched = [psutil.Process(int(pid))]
        owner.kill()
    gone, alive = psutil.wait_procs(watched, timeout=10)
    assert (len(gone), alive) == (1, [])
