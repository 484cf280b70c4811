"""A backup has everything in the data directory, and a restore replaces all of it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, Reason, as_current
from bargein.checkpoints.repository import Repository
from bargein.cli import chat, hosting
from bargein.cli.backups import DATABASES, Progress
from bargein.cli.program import run
from bargein.contracts.store import StoreFailed
from bargein.errors import UserError
from bargein.runtime import backup_folders
from bargein.runtime.backup import LISTING, MANIFEST, restore, write_backup
from bargein.runtime.backup_folders import ListingLine
from bargein.runtime.data_directory import (
    CHECKPOINTS,
    DOOR_FILE,
    PEOPLE,
    RUNNING_SERVER_FILE,
)
from bargein.runtime.directory_lock import FILE_NAME
from bargein.server.gateway_db import FILE
from tests.cli.test_backup import add, quiet, talk, tokens

FILES = {
    "guests.json": "shared",
    "grants.json": "granted",
    "trust.json": "trusted",
    "mcp_tokens.json": "secret",
    "config.toml": "model = 'x'",
    "part-of-tomorrow/deep/er/file": "unknown to this version",
    "channels/work/device.keys": "keys",
    "draft/line": "one",
    "draft-2/line": "two",
    "draft-3/paste-1": "three",
    "people/alice/notes.txt": "hers",
    "people/alice/bin/tool": "#!/bin/sh",
    "people/bob/.hidden/\udcff\n name": "his",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "data"
    monkeypatch.setenv("BARGEIN_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    talk(home, "mine")
    add(home, "alice")
    for name, text in FILES.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home / "people/alice/bin/tool").chmod(0o755)
    (home / "people/alice/link").symlink_to("/nowhere/else")
    (home / "people/alice/empty").mkdir()
    return home


def texts(home: Path) -> dict[str, str]:
    return {name: (home / name).read_text() for name in FILES if (home / name).is_file()}


def state(home: Path) -> dict[str, object]:
    """Everything that is in the directory, except the lock, which names its last owner."""
    return {
        str(path.relative_to(home)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and path.name != FILE_NAME else b"",
        )
        for path in sorted(home.rglob("*"))
    }


def test_everything_goes_there_and_back(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["backup", "copy"]) == 0
    said = capsys.readouterr().err
    assert "guests.json" in said
    assert "channels, checkpoints, draft, draft-2" in said or "channels, draft, draft-2" in said
    copy = tmp_path / "copy"
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in copy.rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}
    new = tmp_path / "new"
    restore(copy, new, quiet, DATABASES, replace=False)
    assert texts(new) == FILES
    assert os.readlink(new / "people/alice/link") == "/nowhere/else"
    assert list((new / "people/alice/empty").iterdir()) == []
    assert (new / "people/alice/bin/tool").stat().st_mode & 0o777 == 0o755
    secret = [new / "mcp_tokens.json", new / "guests.json", new / "channels/work/device.keys"]
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    was, now = (each / "people/alice/notes.txt" for each in (home, new))
    assert now.stat().st_mtime_ns == was.stat().st_mtime_ns
    assert tokens(new) == ["alice"]


def test_what_belongs_to_a_process_or_can_be_fetched_again_is_not_copied(
    home: Path, tmp_path: Path
) -> None:
    left_out = [
        FILE_NAME,
        DOOR_FILE,
        RUNNING_SERVER_FILE,
        hosting.STARTING_FILE,
        hosting.UNFIT_FILE,
        hosting.LOG_FILE,
        f"{hosting.LOG_FILE}.1",
        chat.LOG_FILE,
        f"{chat.LOG_FILE}.1",
        "leaving.log",
        "guests.json.lock",
        "models/weights.gguf",
        "cgroups/bargein-1",
        "replaced-20260101-000000-1/guests.json",
        "before-upgrade-sessions-1/manifest.json",
        "my-own-backup/manifest.json",
    ]
    for name in left_out:
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("x")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(home / "people/alice/sock"))
        os.mkfifo(home / "people/alice/pipe")
        os.mkfifo(home / "pipe")
        write_backup(home, tmp_path / "copy", quiet, DATABASES)
    copy = tmp_path / "copy"
    tops = {Path(name).parts[0] for name in left_out} | {"pipe"}
    assert tops.isdisjoint(path.name for path in copy.iterdir())
    assert not (copy / "people/alice/sock").exists()
    assert not (copy / "people/alice/pipe").exists()
    # A restore leaves them where they are.
    restore(copy, home, quiet, DATABASES, replace=True)
    assert all((home / name).exists() for name in left_out)


def test_a_restore_replaces_the_whole_set(home: Path, tmp_path: Path) -> None:
    (home / "guests.json").unlink()
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    (home / "guests.json").write_text("newer than the databases")
    (home / "people/alice/newer").write_text("x")
    (home / "later").mkdir()
    aside = restore(tmp_path / "copy", home, quiet, DATABASES, replace=True)
    assert aside is not None
    assert not (home / "guests.json").exists()
    assert not (home / "people/alice/newer").exists()
    assert not (home / "later").exists()
    assert (aside / "guests.json").read_text() == "newer than the databases"
    assert (aside / "people/alice/newer").exists()
    assert (aside / "later").exists()


@pytest.mark.parametrize("fails_at", range(1, 16))
def test_a_restore_that_fails_leaves_everything_as_it_was(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    (home / "guests.json").write_text("newer")
    before = state(home)
    rename, count = Path.rename, 0

    def failing(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == fails_at:
            raise OSError(16, "Device or resource busy", str(self))
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", failing)
        with pytest.raises(StoreFailed, match="was not restored"):
            restore(tmp_path / "copy", home, quiet, DATABASES, replace=True)
    after = state(home)
    after.pop(FILE_NAME, None)
    before.pop(FILE_NAME, None)
    assert after == before
    restore(tmp_path / "copy", home, quiet, DATABASES, replace=True)
    assert (home / "guests.json").read_text() == "shared"


def flip(copy: Path) -> None:
    (copy / "people/alice/notes.txt").write_text("HERS")


def grow(copy: Path) -> None:
    (copy / "people/alice/notes.txt").write_text("hers and more")


def link(copy: Path) -> None:
    (copy / "people/alice/notes.txt").rename(copy / "elsewhere")
    (copy / "people/alice/notes.txt").symlink_to(copy / "elsewhere")


def remove(copy: Path) -> None:
    (copy / "people/alice/notes.txt").unlink()


def cut(copy: Path) -> None:
    (copy / LISTING).write_bytes((copy / LISTING).read_bytes()[:-10])


def entries(*more: ListingLine) -> Callable[[Path], None]:
    """Changes the listing and its checksum, as somebody could who can write to the backup."""

    def change(copy: Path) -> None:
        with (copy / LISTING).open("ab") as file:
            file.writelines(msgspec.json.encode(each) + b"\n" for each in more)
        manifest = json.loads((copy / MANIFEST).read_text())
        body = (copy / LISTING).read_bytes()
        manifest["listing"]["sha256"] = hashlib.sha256(body).hexdigest()
        (copy / MANIFEST).write_text(json.dumps(manifest))

    return change


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (flip, "is not what was backed up"),
        (grow, "is not what was backed up"),
        (link, "cannot be read"),
        (remove, "cannot be read"),
        (cut, f"is damaged: {LISTING}"),
        (lambda copy: (copy / LISTING).unlink(), f"is damaged: {LISTING}"),
        (entries(ListingLine("people/../../out", "folder")), "outside of the backup"),
        (entries(ListingLine("people/%2e%2e/%2e%2e/out", "folder")), "outside of the backup"),
        (entries(ListingLine("/out", "folder")), "outside of the backup"),
        (entries(ListingLine("owner.lock", "folder")), "outside of the backup"),
    ],
)
def test_a_damaged_folder_is_refused_and_nothing_is_touched(
    home: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    copy = tmp_path / "copy"
    write_backup(home, copy, quiet, DATABASES)
    spoil(copy)
    before = state(home)
    with pytest.raises(UserError, match=said):
        restore(copy, home, quiet, DATABASES, replace=True)
    after = state(home)
    assert after == before
    assert not (tmp_path / "out").exists()


def test_nothing_is_restored_through_a_link(home: Path, tmp_path: Path) -> None:
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    outside.mkdir()
    write_backup(home, copy, quiet, DATABASES)
    entries(
        ListingLine("people/way", "link", link=str(outside)),
        ListingLine("people/way/in", "link", link="/x"),
    )(copy)
    with pytest.raises(StoreFailed, match="was not restored"):
        restore(copy, home, quiet, DATABASES, replace=True)
    assert list(outside.iterdir()) == []
    assert texts(home) == FILES


def test_a_link_of_a_person_is_never_followed(home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("of somebody else")
    (home / "people/alice/folder").symlink_to(secret)
    (home / "people/alice/file").symlink_to(secret / "key")
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    kept = b"".join(p.read_bytes() for p in (tmp_path / "copy").rglob("*") if p.is_file())
    assert b"of somebody else" not in kept


def test_a_file_that_becomes_a_link_while_it_is_copied_is_not_followed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a file and its opening, a command of the person exchanges it."""
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    path = home / "people/alice/notes.txt"
    look = os.stat

    def exchanging(where: bytes | str | Path, **options: Any) -> os.stat_result:
        found = look(where, **options)
        if where == b"notes.txt":
            path.unlink()
            path.symlink_to(secret)
        return found

    monkeypatch.setattr("os.stat", exchanging)
    manifest = write_backup(home, tmp_path / "copy", quiet, DATABASES)
    assert path.is_symlink()
    assert (manifest.left_out, manifest.left_out_first) == (1, "people/alice/notes.txt")
    assert not (tmp_path / "copy/people/alice/notes.txt").exists()


def test_the_users_own_link_at_the_top_is_followed(home: Path, tmp_path: Path) -> None:
    (home / "people").rename(tmp_path / "large disk")
    (home / "people").symlink_to(tmp_path / "large disk")
    (home / "round").symlink_to(home)
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    restore(tmp_path / "copy", tmp_path / "new", quiet, DATABASES, replace=False)
    assert texts(tmp_path / "new") == FILES
    assert not (tmp_path / "new/round").exists()


def test_a_deep_folder_of_a_person_does_not_stop_the_backup(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.open(home / "people/alice", os.O_RDONLY)
    for _ in range(backup_folders.DEPTH_MAX + 5):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    assert run(["backup", "copy"]) == 0
    assert (
        "they cannot be read: 1 of people's files, such as people/alice/d/d"
        in capsys.readouterr().err
    )
    restore(tmp_path / "copy", tmp_path / "new", quiet, DATABASES, replace=False)
    assert texts(tmp_path / "new") == FILES


@pytest.fixture
def device(home: Path) -> Iterator[sqlite3.Connection]:
    """A database below `channels`, as of a Matrix device, in use and with a log."""
    path = home / "channels/work/@me:example.org_DEVICE.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE keys (number INTEGER, body BLOB)")
        connection.execute("INSERT INTO keys VALUES (1, zeroblob(100000))")
        yield connection


def test_a_database_of_a_channel_is_copied_while_it_is_written_to(
    home: Path, tmp_path: Path, device: sqlite3.Connection
) -> None:
    device.execute("BEGIN IMMEDIATE")
    device.execute("INSERT INTO keys VALUES (2, zeroblob(100000))")
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    device.execute("COMMIT")
    names = {path.name for path in (tmp_path / "copy/channels/work").iterdir()}
    assert names == {"@me:example.org_DEVICE.db", "device.keys"}
    restore(tmp_path / "copy", tmp_path / "new", quiet, DATABASES, replace=False)
    new = tmp_path / "new/channels/work/@me:example.org_DEVICE.db"
    with closing(sqlite3.connect(new)) as kept:
        assert kept.execute("SELECT number FROM keys").fetchall() == [(1,)]


def test_sqlite_never_opens_a_database_of_a_person(home: Path, tmp_path: Path) -> None:
    path = home / "people/alice/own.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as own:
        own.execute("PRAGMA journal_mode = WAL")
        own.execute("CREATE TABLE t (x)")
        before = sorted((home / "people/alice").iterdir())
        write_backup(home, tmp_path / "copy", quiet, DATABASES)
        assert sorted((home / "people/alice").iterdir()) == before
        assert (tmp_path / "copy/people/alice/own.db-wal").stat().st_size > 0


@pytest.mark.needs("git")
def test_snapshots_are_copied_while_nobody_changes_them(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with Repository.open(home / CHECKPOINTS, workspace) as repository:
        kept = repository.keep(repository.git("mktree").decode().strip(), {"note": b"hello"})
        own = repository.directory.parent
        monkeypatch.setattr(backup_folders, "REPOSITORY_LOCK_S", 0.0)
        with pytest.raises(StoreFailed, match="another process has used"):
            write_backup(home, tmp_path / "copy", quiet, DATABASES)
        assert not (tmp_path / "copy").exists()
    held = []

    def look(name: str, done: int, total: int) -> None:
        if name.startswith(f"{CHECKPOINTS}/"):
            with (own / "lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(name)

    write_backup(home, tmp_path / "copy", look, DATABASES)
    assert held
    restore(tmp_path / "copy", tmp_path / "new", quiet, DATABASES, replace=False)
    new = tmp_path / "new" / CHECKPOINTS / own.name
    with Repository.open_kept(new) as repository:
        assert repository.git("cat-file", "-p", f"{kept}:note") == b"hello"
        assert [path.read_text().strip() for _, path in repository.kept()] == [kept]
        repository.tidy()


def test_a_cancel_ends_a_copy_among_many_files(home: Path, tmp_path: Path) -> None:
    for number in range(50):
        (home / f"people/alice/{number}").write_text("x")
    seen: list[str] = []
    with CancelSource("test") as source, as_current(source.token):

        def stop(name: str, done: int, total: int) -> None:
            if name.startswith("people/"):
                seen.append(name)
                source.cancel(Reason(Cause.USER_STOP))

        with pytest.raises(Cancelled):
            write_backup(home, tmp_path / "copy", stop, DATABASES)
    assert len(seen) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    before = state(home)
    seen.clear()
    with CancelSource("test") as source, as_current(source.token), pytest.raises(Cancelled):
        restore(tmp_path / "copy", home, stop, DATABASES, replace=True)
    assert len(seen) == 1
    assert state(home) == before


def test_progress_names_the_file_that_is_copied(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bargein.cli.backups.FIRST_S", 0.0)
    monkeypatch.setattr("bargein.cli.backups.EVERY_LOGGED_S", 0.0)
    progress = Progress()
    write_backup(home, tmp_path / "copy", progress, DATABASES)
    progress.close()
    said = capsys.readouterr().err
    assert "people/alice/notes.txt: 100 %\n" in said
    # A name that a person chose cannot write to the terminal of the operator.
    assert "people/bob/.hidden/%FF%0A name: 100 %\n" in said


def test_a_copy_before_an_upgrade_is_readable_by_the_older_version_and_leaves_folders(
    home: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    manifest = write_backup(home, copy, quiet, DATABASES, folders=False)
    assert manifest.format == 1
    assert not any(path.is_dir() for path in copy.iterdir())
    (home / "guests.json").write_text("newer")
    (home / "newer.json").write_text("newer")
    restore(copy, home, quiet, DATABASES, replace=True)
    assert texts(home) == FILES
    assert not (home / "newer.json").exists()
    assert (home / PEOPLE / "alice/notes.txt").exists()


def test_a_copy_before_an_upgrade_leaves_sqlite_its_locks(home: Path, tmp_path: Path) -> None:
    """A start makes it while it has databases open; closing another descriptor of a file would
    release all locks that this process has on it."""
    begin = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
    )
    path = home / FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as open_here:
        assert open_here.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        open_here.execute("BEGIN IMMEDIATE")
        write_backup(home, tmp_path / "copy", quiet, DATABASES, folders=False)
        command = [sys.executable, "-c", begin, str(path)]
        other = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "database is locked" in other.stderr


def test_a_server_with_its_sessions_elsewhere_is_backed_up_too(tmp_path: Path) -> None:
    home = tmp_path / "data"
    (home / "people/alice").mkdir(parents=True)
    (home / "people/alice/x").write_text("x")
    write_backup(home, tmp_path / "copy", quiet, DATABASES)
    restore(tmp_path / "copy", tmp_path / "new", quiet, DATABASES, replace=False)
    assert (tmp_path / "new/people/alice/x").read_text() == "x"
