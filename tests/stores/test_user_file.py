"""A file of the user's that several processes change at once."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from bargein.contracts.permission import Grant
from bargein.errors import UserError, WorldError
from bargein.stores import user_file
from bargein.stores.grants import GrantsFile
from bargein.stores.user_file import UserFile

PROCESSES = 4
GRANTS = 15
# Waits for a line, so that all begin at once.
KEEP = """
import sys
from pathlib import Path
from bargein.contracts.permission import Grant
from bargein.stores.grants import GrantsFile

grants = GrantsFile(Path(sys.argv[1])).project("/")
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    grants.keep(Grant("run", (("command", f"{sys.argv[2]} {number}"),)), "test")
"""


def test_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "grants.json"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KEEP, str(path), str(number), str(GRANTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in processes:
            each.communicate(timeout=50)
            assert each.returncode == 0
    finally:
        for each in processes:
            each.kill()
            each.wait()
    kept = GrantsFile(path).project("/").kept()
    assert len({each.grant.id for each in kept}) == PROCESSES * GRANTS
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["grants.json", "grants.json.lock"]


def test_one_that_is_suspended_with_the_lock_stops_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_file, "LOCK_S", 0.05)
    path = tmp_path / "grants.json"
    grants = GrantsFile(path).project(tmp_path)
    with (tmp_path / "grants.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(WorldError, match="another process has been changing"):
            grants.keep(Grant("run"), "test")
        # To read takes no lock.
        assert grants.kept() == ()
    grants.keep(Grant("run"), "test")
    assert len(grants.kept()) == 1


def test_what_is_the_same_is_not_written(tmp_path: Path) -> None:
    file: UserFile[dict[str, int]] = UserFile(tmp_path / "a.json", dict[str, int], {}, mends="")
    assert not file.change(lambda content: content)
    assert not file.path.exists()
    assert file.change(lambda content: {**content, "a": 1})
    assert not file.change(lambda content: {"a": 1})
    assert file.read() == {"a": 1}


def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "grants.json"
    path.write_text("{ not json")
    grants = GrantsFile(path).project(tmp_path)
    assert not grants.covers(Grant("run"))
    with pytest.raises(UserError, match="repair it, or delete it"):
        grants.keep(Grant("run"), "test")
    assert path.read_text() == "{ not json"
