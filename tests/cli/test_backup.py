"""`bargein backup` and `bargein restore`: all data, whole or not at all, and back."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from bargein.cli.backups import DATABASES
from bargein.cli.program import run
from bargein.contracts.store import StoreFailed
from bargein.errors import UserError
from bargein.models.script import Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.backup import MANIFEST, keep_copy_before_upgrade, restore, write_backup
from bargein.runtime.data_directory import SESSIONS_FILE
from bargein.runtime.directory_lock import DirectoryLock
from bargein.runtime.engine import Engine
from bargein.server.access import add_token
from bargein.server.gateway_db import FILE, MIGRATIONS, GatewayDb
from bargein.stores.sqlite import schema
from bargein.stores.sqlite.small_file import statements
from tests.stores import children


def quiet(name: str, done: int, total: int) -> None:
    pass


def talk(home: Path, *names: str) -> None:
    async def main() -> None:
        model = ScriptedModel([[Say("the answer")]] * len(names))
        async with Engine(Agent(model=model, project_instructions=False), home=home) as engine:
            for name in names:
                await (await (await engine.session(name)).send("hello")).result()

    anyio.run(main)


def add(home: Path, principal: str) -> None:
    async def main() -> None:
        db = GatewayDb.open(home / FILE)
        await add_token(db, principal)
        db.close()

    anyio.run(main)


def tokens(home: Path) -> list[str]:
    db = GatewayDb.open(home / FILE)
    found = [row.principal for row in db.tokens()]
    db.close()
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "data"
    monkeypatch.setenv("BARGEIN_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    talk(home, "mine", "yours")
    add(home, "alice")
    (home / "history").write_text("hello\n")
    return home


def contents(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): path.read_bytes().hex()[:200]
        for path in sorted(home.rglob("*"))
        if path.is_file()
    }


def test_all_data_goes_there_and_back(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["backup", "copy"]) == 0
    assert "sessions.sqlite3, gateway.sqlite3, history, stops.reserve" in capsys.readouterr().err
    copy = tmp_path / "copy"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (copy, *copy.iterdir())}
    assert modes.pop("copy") == 0o700
    assert set(modes.values()) == {0o600}
    shutil.rmtree(home)
    assert run(["restore", "copy"]) == 0
    assert home.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}
    capsys.readouterr()
    assert run(["sessions"]) == 0
    assert {line.split()[2] for line in capsys.readouterr().out.splitlines()} == {"mine", "yours"}
    assert tokens(home) == ["alice"]
    assert (home / "history").read_text() == "hello\n"
    talk(home, "third")


def test_a_restore_overwrites_only_when_asked_and_deletes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["backup", "copy"]) == 0
    talk(home, "later")
    add(home, "bob")
    before = contents(home)
    assert run(["restore", "copy"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert contents(home) == before
    assert run(["restore", "--replace", "copy"]) == 0
    assert "the previous data is in" in capsys.readouterr().err
    assert tokens(home) == ["alice"]
    (aside,) = home.glob("replaced-*")
    assert tokens(aside) == ["alice", "bob"]
    with closing(sqlite3.connect(aside / SESSIONS_FILE)) as old:
        assert ("later",) in old.execute("SELECT id FROM sessions").fetchall()


def test_a_directory_in_use_is_backed_up_but_not_restored_into(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DirectoryLock.take(home):
        assert run(["backup", "copy"]) == 0
        assert run(["restore", "--replace", "copy"]) == 2
        assert "is in use by process" in capsys.readouterr().err


def test_a_backup_of_a_directory_that_is_written_to_is_of_one_moment(
    home: Path, tmp_path: Path
) -> None:
    """Sessions are made in the gateway's database first and then in the store, as a server does.
    No backup has a session without an owner."""
    over = threading.Event()

    def write() -> None:
        store = sqlite3.connect(home / SESSIONS_FILE, timeout=10, isolation_level=None)
        db = sqlite3.connect(home / FILE, timeout=10, isolation_level=None)
        number = 0
        while not over.is_set():
            number += 1
            db.execute("INSERT INTO sessions VALUES (?, 'alice', 0.0)", (f"n{number}",))
            store.execute(
                """INSERT INTO sessions (id, epoch, seq, last, unfinished, created_at, updated_at,
                title, state) VALUES (?, 1, 0, 0, 0, 0, 0, '', x'')""",
                (f"n{number}",),
            )
        store.close()
        db.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(8):
            copy = tmp_path / f"copy {number}"
            write_backup(home, copy, quiet, DATABASES)
            with closing(sqlite3.connect(copy / SESSIONS_FILE)) as store:
                kept = {id_ for (id_,) in store.execute("SELECT id FROM sessions")}
            with closing(sqlite3.connect(copy / FILE)) as db:
                owned = {id_ for (id_,) in db.execute("SELECT id FROM sessions")}
            assert kept - owned <= {"mine", "yours"}
            assert len(owned - kept) <= 1
    finally:
        over.set()
        thread.join()


def truncate(copy: Path) -> None:
    (copy / SESSIONS_FILE).write_bytes((copy / SESSIONS_FILE).read_bytes()[:-4096])


def flip(copy: Path) -> None:
    body = bytearray((copy / FILE).read_bytes())
    body[5000] ^= 1
    (copy / FILE).write_bytes(body)


def change_manifest(copy: Path, change: Callable[[dict[str, object]], object]) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    change(manifest)
    (copy / MANIFEST).write_text(json.dumps(manifest))


def is_newer(copy: Path) -> None:
    change_manifest(copy, lambda manifest: manifest.update(format=99, items="of another kind"))


def has_newer_tables(copy: Path) -> None:
    change_manifest(copy, lambda m: m["items"][0].update(schema=99))  # type: ignore[index]


def leads_out(copy: Path) -> None:
    change_manifest(copy, lambda m: m["items"][0].update(name="../x"))  # type: ignore[index]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda copy: (copy / FILE).unlink(), "gateway.sqlite3 is missing"),
        (truncate, "sessions.sqlite3 is not what was backed up"),
        (flip, "gateway.sqlite3 is not what was backed up"),
        (lambda copy: (copy / MANIFEST).unlink(), "is not a backup"),
        (lambda copy: (copy / MANIFEST).write_text("{"), "is damaged"),
        (is_newer, "was made by a newer Bargein"),
        (has_newer_tables, "was written by a newer Bargein"),
        (leads_out, "outside of the backup"),
        (shutil.rmtree, "is not a backup"),
    ],
    ids=["missing", "cut", "flipped", "bare", "half", "newer", "newer tables", "out", "gone"],
)
def test_what_is_not_a_whole_backup_is_refused_and_nothing_is_touched(
    home: Path, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    copy = tmp_path / "copy"
    write_backup(home, copy, quiet, DATABASES)
    spoil(copy)
    before = contents(home)
    with pytest.raises(UserError, match=said):
        restore(copy, home, quiet, DATABASES, replace=True)
    assert contents(home) == before


@pytest.mark.parametrize(
    ("destination", "said"),
    [("data", "exists"), ("nowhere/copy", "there is no directory"), ("file/copy", "directory")],
)
def test_a_wrong_place_is_named(home: Path, tmp_path: Path, destination: str, said: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=said):
        write_backup(home, tmp_path / destination, quiet, DATABASES)


def test_nothing_to_back_up_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to back up"):
        write_backup(tmp_path, tmp_path / "copy", quiet, DATABASES)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_half_backup_and_no_half_restore(tmp_path: Path) -> None:
    result = children.run("whole_backup_to_full_disk", tmp_path)
    if "cannot" in result:
        pytest.skip(str(result["cannot"]))
    assert "no backup was made" in str(result["backup"]) or "no copy" in str(result["backup"])
    assert result["left_by_backup"] == ["filler"]
    assert "was not restored" in str(result["restore"])
    assert result["left_by_restore"] == ["owner.lock"]


def test_a_restore_that_was_killed_is_noticed_and_can_be_repeated(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    write_backup(home, copy, quiet, DATABASES)
    add(home, "bob")

    class KilledError(BaseException):
        pass

    def kill(self: Path, target: Path) -> Path:
        if "restore.part" in str(self):
            raise KilledError
        return rename(self, target)

    rename = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", kill)
        with pytest.raises(KilledError):
            restore(copy, home, quiet, DATABASES, replace=True)
    assert run(["run", "hello"]) == 2
    assert "was interrupted" in capsys.readouterr().err
    assert run(["restore", str(copy)]) == 0
    assert tokens(home) == ["alice"]
    (aside,) = home.glob("replaced-*")
    assert tokens(aside) == ["alice", "bob"]


def test_ctrl_c_leaves_nothing_half(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / SESSIONS_FILE)) as connection:
        connection.execute("CREATE TABLE ballast (body BLOB)")
        connection.executemany("INSERT INTO ballast VALUES (zeroblob(?))", [(4_000_000,)] * 30)
        connection.commit()
    running = subprocess.Popen(
        [*children.command("", home)[:1], "-m", "bargein", "backup", str(tmp_path / "copy")],
        stderr=subprocess.PIPE,
        text=True,
    )
    part = tmp_path / "copy.part"
    while not (part / SESSIONS_FILE).exists() and running.poll() is None:
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130, said
    assert not part.exists()
    assert not (tmp_path / "copy").exists()


# --- upgrades


def older_home(home: Path) -> None:
    """A data directory as the first release left it: one migration of each database."""
    home.mkdir()
    with closing(sqlite3.connect(home / SESSIONS_FILE, isolation_level=None)) as connection:
        schema.migrate(connection, schema.MIGRATIONS[:1])
    with closing(sqlite3.connect(home / FILE, isolation_level=None)) as connection:
        for statement in statements(MIGRATIONS[0]):
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute(
            "INSERT INTO audit (at, principal, token, address, action, session, target, status, "
            "detail) VALUES (1.0, 'alice', '', '', 'x', '', '', 200, '')"
        )
    for path in home.iterdir():
        path.chmod(0o600)


def versions(home: Path) -> list[int]:
    found = []
    for database in DATABASES:
        if not (home / database.name).exists():
            continue
        with closing(sqlite3.connect(home / database.name)) as connection:
            found.append(database.version(connection))
    return found


def test_an_upgrade_keeps_a_copy_that_leads_back(tmp_path: Path) -> None:
    home = tmp_path / "data"
    older_home(home)
    talk(home, "new")
    GatewayDb.open(home / FILE).close()
    assert versions(home) == [len(schema.MIGRATIONS), len(MIGRATIONS)]
    (copy,) = home.glob("before-upgrade-*")
    assert versions(copy) == [1, 1]
    # The way back: the older program, and the copy.
    restore(copy, home, quiet, DATABASES, replace=True)
    assert versions(home) == [1, 1]
    with closing(sqlite3.connect(home / FILE)) as db:
        assert db.execute("SELECT count(*) FROM audit").fetchone() == (1,)
    assert keep_copy_before_upgrade(home, None, DATABASES) == copy
    talk(home, "again")
    assert list(home.glob("before-upgrade-*")) == [copy]


def test_an_upgrade_of_both_databases_keeps_one_copy(tmp_path: Path) -> None:
    """As the server does it: it knows both databases, the engine that it opens knows one."""
    home = tmp_path / "data"
    older_home(home)
    copy = keep_copy_before_upgrade(home, None, DATABASES)
    GatewayDb.open(home / FILE).close()
    talk(home, "new")
    assert list(home.glob("before-upgrade-*")) == [copy]
    assert copy is not None
    assert versions(copy) == [1, 1]


def test_an_upgrade_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data"
    older_home(home)
    wrong = (*MIGRATIONS, "CREATE TABLE fine (x);\nCREATE TABLE tokens (x);\n")
    monkeypatch.setattr(GatewayDb, "MIGRATIONS", wrong)
    monkeypatch.setattr("bargein.server.gateway_db.VERSION", len(wrong))
    with pytest.raises(StoreFailed, match="tokens already exists"):
        GatewayDb.open(home / FILE)
    assert versions(home) == [1, 1]


@pytest.mark.parametrize("name", [SESSIONS_FILE, FILE])
def test_data_of_a_newer_version_is_refused_with_a_sentence(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(home / name, isolation_level=None)) as connection:
        if name == SESSIONS_FILE:
            connection.execute("INSERT INTO migrations (number, name) VALUES (99, 'later')")
        else:
            connection.execute("PRAGMA user_version = 99")
    commands = [["backup", "copy"], ["run", "hi"] if name == SESSIONS_FILE else ["token", "list"]]
    for command in commands:
        assert run(command) == 2
        said = capsys.readouterr().err
        assert name in said
        assert "newer Bargein" in said
    assert not Path("copy").exists()
