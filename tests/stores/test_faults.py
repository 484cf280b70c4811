"""A disk that is full, locked, read-only or damaged: a sentence each, and nothing is lost.

Everything is real: small disks, low limits, taken rights, overwritten bytes. Only an error at the
very moment of a commit is made by a connection that lies.
"""

# ruff: noqa: ASYNC240  (that a test reads a file holds nobody up)

from __future__ import annotations

import ast
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

import bargein
from bargein.contracts.store import SessionHead, SessionUnreadable, StoreFailed, commit_one
from bargein.errors import BugError, UserError
from bargein.stores.sqlite import SqliteStore, schema, writer
from bargein.testing.store_conformance.scene import key, looked, made, said, step, written
from tests.stores import children
from tests.stores.files import OwnConnections, ends_a_transaction

pytestmark = pytest.mark.anyio


def playable(result: dict[str, object]) -> dict[str, object]:
    if "cannot" in result:
        pytest.skip(str(result["cannot"]))
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


# --- no space


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("scene", ["full_disk", "low_limit"])
async def test_without_space_nothing_acknowledged_is_lost_and_it_goes_on_when_there_is_some(
    tmp_path: Path, scene: str
) -> None:
    seen = playable(children.run(scene, tmp_path))
    assert seen["acknowledged"] in range(5, 200)
    assert seen["while_full"] == seen["acknowledged"]
    assert seen["state_while_full"] == str(seen["acknowledged"])
    assert seen["reopened"] == seen["acknowledged"]
    assert seen["in_the_end"] == seen["expected_in_the_end"]
    assert "store.db" in str(seen["error"])
    assert "everything saved before is safe" in str(seen["error"]).lower()
    assert seen["retryable"] is True
    if scene == "full_disk":
        assert "the disk is full" in str(seen["error"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("means", ["disk", "limit"])
async def test_what_is_too_large_fails_alone(tmp_path: Path, means: str) -> None:
    seen = playable(children.run("one_too_large", tmp_path, means))
    expected = {f"s{number}": "failed" if number == 7 else "saved" for number in range(20)}
    assert seen["outcomes"] == expected
    assert seen["found"] == expected


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_log_that_may_not_grow_is_begun_anew(tmp_path: Path) -> None:
    failures = children.run("log_at_its_limit", tmp_path)["failures"]
    assert isinstance(failures, int)
    assert 1 <= failures < 10


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_written_goes_into_no_other_file(tmp_path: Path) -> None:
    assert children.run("no_more_files", tmp_path) == {"failures": []}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("means", ["disk", "limit"])
async def test_a_stop_without_space_is_told_as_not_stored_and_never_contradicted(
    tmp_path: Path, means: str
) -> None:
    seen = playable(children.run("stop_without_space", tmp_path, means))
    assert seen["told"] == ["stopped", False]
    assert isinstance(seen["read"], list)
    assert seen["read"][0] == "stopped"
    assert seen["result"] == "again"
    if means == "disk":
        # With a limit a small commit still fits, and the session goes on at once.
        assert "sessions.sqlite3: the disk is full" in str(seen["refused"])
        assert "the disk is full" in str(seen["start_refused"])
        assert seen["read"] == ["stopped"]


async def test_sqlite_says_full_and_the_next_commit_may_succeed(path: Path) -> None:
    store = await SqliteStore.open(path)
    head = await made(store, "s")
    await store._writer.run(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    with pytest.raises(StoreFailed, match="the disk is full") as caught:
        await commit_one(store, step(head, *(said(n) for n in range(2_000))))
    assert str(path) in str(caught.value)
    assert await store.head("s") == head
    await commit_one(store, step(head, said(1)))
    await store.aclose()


# --- locked


async def test_a_locked_file_is_said_to_be_so_and_can_be_read(path: Path) -> None:
    store = await SqliteStore.open(path, busy_s=0.05)
    head = await written(store, "s", 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="another program has locked") as caught:
        await commit_one(store, step(head, said(2)))
    assert str(path) in str(caught.value)
    assert caught.value.retryable
    assert await store.head("s") == head
    other.execute("ROLLBACK")
    other.close()
    await commit_one(store, step(head, said(2)))
    assert len(await store.events("s")) == 2
    await store.aclose()


async def test_all_that_waited_for_a_lock_are_told_after_one_wait(path: Path) -> None:
    store = await SqliteStore.open(path, busy_s=1.0)
    heads = [await made(store, f"s{number}") for number in range(30)]
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    failed = []

    async def write(number: int) -> None:
        try:
            await commit_one(store, step(heads[number], said(1)))
        except StoreFailed as error:
            failed.append(error)

    # One after the other it would be half a minute.
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(write, number)
    assert len(failed) == 30
    assert len({id(error) for error in failed}) == 30
    other.close()
    await store.aclose()


async def test_a_file_that_is_locked_whole_cannot_be_opened(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.aclose()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE store SET stamp = stamp")
    with pytest.raises(StoreFailed, match="another program has locked"):
        await SqliteStore.open(path, busy_s=0.05)
    other.close()
    await (await SqliteStore.open(path)).aclose()


# --- no rights


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("file", "this user may not read and write"),
        ("unreadable", "this user may not read and write"),
        ("directory", "may not make files"),
        ("empty directory", "may not make files"),
    ],
)
async def test_without_rights_the_sentence_says_what_is_missing(
    tmp_path: Path, what: str, words: str
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    seen = children.run("without_rights", place, what)
    said = str(seen["said"])
    assert said != "opened"
    assert str(place / "store.db") in said
    assert words in said
    assert "data directory" in said
    assert seen["afterwards"] == "opened"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_read_only_disk_is_said_to_be_so(tmp_path: Path) -> None:
    seen = playable(children.run("read_only_disk", tmp_path))
    said = str(seen["said"])
    assert said.startswith("StoreFailed")
    assert "store.db" in said
    assert "read-only" in said


# --- the wrong place


async def test_a_path_at_which_there_can_be_no_store(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no directory {tmp_path / 'missing'}"):
        await SqliteStore.open(tmp_path / "missing" / "store.db")
    with pytest.raises(UserError, match=f"{tmp_path} is a directory"):
        await SqliteStore.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"store\.db is a database of another program"):
        await SqliteStore.open(path)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    other.close()
    assert len(path.read_bytes()) == len(before)


async def test_a_file_of_a_newer_program_is_refused_and_unharmed(path: Path) -> None:
    store = await SqliteStore.open(path)
    head = await written(store, "s", 2)
    await store.aclose()
    with sqlite3.connect(path) as newer:
        newer.execute("INSERT INTO migrations (number, name) VALUES (99, 'the future')")
    newer.close()
    with pytest.raises(UserError, match=r"newer Bargein \(migration 99; this one knows \d+\)"):
        await SqliteStore.open(path)
    with sqlite3.connect(path) as newer:
        newer.execute("DELETE FROM migrations WHERE number = 99")
    newer.close()
    store = await SqliteStore.open(path)
    assert await store.head("s") == head
    await store.aclose()


# --- damaged


async def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"this is not a database, it only looks like a file" * 100)
    with pytest.raises(StoreFailed, match="damaged or not a database") as caught:
        await SqliteStore.open(path)
    assert str(path) in str(caught.value)
    assert not caught.value.retryable
    assert path.read_bytes().startswith(b"this is not a database")


async def test_damage_in_the_middle_is_reported_and_the_rest_can_be_read(path: Path) -> None:
    store = await SqliteStore.open(path)
    head = await made(store, "s")
    await commit_one(store, step(head, *(said(n) for n in range(3_000))))
    await written(store, "t", 1)
    (page_size,) = await store._reader.run(lambda c: c.execute("PRAGMA page_size").fetchone())
    await store.aclose()
    with path.open("r+b") as file:
        page = file.read().index(b"text 1500") // page_size
        file.seek(page * page_size)
        file.write(b"\xff" * page_size)
    store = await SqliteStore.open(path)
    with pytest.raises(StoreFailed, match="damaged") as caught:
        await store.events("s")
    assert "restore a backup" in str(caught.value)
    last = await store.events("s", after=2_990)
    assert [one.seq for one in last] == list(range(2_991, 3_001))
    await commit_one(store, step(await looked(store, "t"), said(2)))
    assert len(await store.events("t")) == 2
    with pytest.raises(StoreFailed, match="damaged"):
        await store.backup(str(path.with_name("backup")))
    assert not path.with_name("backup").exists()
    await store.aclose()


async def test_an_event_that_cannot_be_read_is_named(path: Path) -> None:
    store = await SqliteStore.open(path)
    await written(store, "s", 3)

    def spoil(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TRIGGER events_are_not_changed")
        connection.execute("UPDATE events SET body = x'c1' WHERE seq = 2")

    await store._writer.run(spoil)
    with pytest.raises(StoreFailed, match="event 2 of session 's' cannot be read"):
        await store.events("s")
    assert len(await store.events("s", limit=1)) == 1
    await store.aclose()


async def test_an_unreadable_event_leaves_the_readers_with_what_is_new(path: Path) -> None:
    """Whoever keeps the error keeps its frames: no cursor in them may hold the old snapshot."""
    store = await SqliteStore.open(path)
    await written(store, "s", 3)
    await store._writer.run(spoil_second)
    kept = []
    for _ in range(3):
        with pytest.raises(SessionUnreadable) as caught:
            await store.events("s")
        kept.append(caught.value)
    for number in range(5):
        await written(store, f"new {number}", 1)
        assert await store.head(f"new {number}") is not None
        assert len(await store.events(f"new {number}")) == 1
    assert [each.seq for each in kept] == [2, 2, 2]
    await store.aclose()


def spoil_second(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TRIGGER IF EXISTS events_are_not_changed")
    connection.execute("UPDATE events SET body = x'c1' WHERE seq = 2")


@pytest.mark.parametrize("folder", ["stores", "server"])
def test_no_statement_is_left_open(folder: str) -> None:
    """Rows are fetched whole, or their cursor is closed: one that an error leaves open keeps its
    connection at the moment it was opened, and everybody who shares that reads old data."""
    source = Path(bargein.__file__).parent / folder
    left_open = [
        f"{file.name}: {ast.unparse(node)}"
        for file in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if _iterates_a_cursor(node)
    ]
    assert left_open == []


def _iterates_a_cursor(node: ast.AST) -> bool:
    """A loop over `execute(...)` itself, or a name that `execute(...)` is given to."""
    if isinstance(node, ast.For | ast.comprehension):
        return _is_select(node.iter)
    return isinstance(node, ast.Assign) and _is_select(node.value)


def _is_select(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    words = " ".join(
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    return node.func.attr == "execute" and not words.startswith(("UPDATE", "DELETE", "INSERT"))


# --- gone


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "log deleted"])
async def test_a_file_that_is_gone_is_not_written_to_in_vain(
    path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LINGER_S", 0.0)
    store = await SqliteStore.open(path)
    head = await written(store, "s", 1)
    aside = path.with_name("aside.db")
    if how == "log deleted":
        Path(f"{path}-wal").rename(aside)
    else:
        path.rename(aside)
    if how == "replaced":
        path.write_bytes(b"")
    store._writer.tidy_soon()  # work at leisure must not give up the connection either
    for _ in range(2):
        with pytest.raises(StoreFailed, match="was moved, deleted or replaced") as caught:
            await commit_one(store, step(head, said(2)))
        assert str(path) in str(caught.value)
    if how != "log deleted":
        with pytest.raises(StoreFailed, match="was moved, deleted or replaced"):
            await store.head("s")
    if how == "deleted":
        assert not path.exists()
    aside.rename(Path(f"{path}-wal") if how == "log deleted" else path)
    await commit_one(store, step(head, said(2)))
    assert len(await store.events("s")) == 2
    await store.aclose()


# --- an error at the moment of the commit


class Lying(sqlite3.Connection):
    """Reports an error of the disk at the end of a transaction, before or after it has been
    done."""

    lies: ClassVar[list[str]] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if not self.lies or not ends_a_transaction(self, sql):
            return super().execute(sql, *parameters)
        if self.lies.pop(0) == "after":
            super().execute(sql, *parameters)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error


class LyingFile(OwnConnections):
    factory = Lying


@pytest.mark.parametrize(
    ("lies", "saved"),
    [
        (["after"], ["a", "b", "c"]),  # it happened, and is found to have
        (["before"], ["a", "b", "c"]),  # it did not: each is done again by itself
        (["before", "after"], ["a", "b", "c"]),
        (["before", "before", "before"], ["b", "c"]),  # together, then the first two by themselves
        (["before"] * 5, []),
    ],
)
async def test_after_an_error_of_the_disk_the_store_looks_whether_it_happened(
    path: Path, lies: list[str], saved: list[str]
) -> None:
    store = SqliteStore(LyingFile(path))
    heads = [await made(store, name) for name in ("a", "b", "c")]
    started, gate = threading.Event(), threading.Event()
    outcomes: list[str] = []

    async def write(head: SessionHead) -> None:
        try:
            await commit_one(store, step(head, said(1), keys=(key("c"),)))
            outcomes.append(head.id)
        except StoreFailed:
            pass

    def hold(connection: sqlite3.Connection) -> None:
        started.set()
        gate.wait()

    async def arm() -> None:
        with suppress(StoreFailed):
            await store._writer.run(lambda connection: Lying.lies.extend(planned))

    planned = (lie for lie in lies)
    async with anyio.create_task_group() as group:
        # While this one is being done the others gather, and then come together.
        first = store._writer.run(hold)
        await anyio.to_thread.run_sync(started.wait)
        group.start_soon(arm)
        await anyio.wait_all_tasks_blocked()
        for head in heads:
            group.start_soon(write, head)
            await anyio.wait_all_tasks_blocked()
        gate.set()
        await first
    Lying.lies.clear()
    assert sorted(outcomes) == saved
    for head in heads:
        found = [one.event for one in await store.events(head.id)]
        assert found == ([said(1)] if head.id in saved else [])
        await commit_one(store, step(await looked(store, head.id), said(2)))
    await store.aclose()


async def test_what_was_rolled_back_is_not_built_upon(path: Path) -> None:
    """The writer remembers an end of the log that was undone; another process writes a real one."""
    store = SqliteStore(LyingFile(path))
    head = await written(store, "s", 1)
    other = await SqliteStore.open(path)
    await made(other, "t")
    # Some to spare: what the store does at leisure may commit just now.
    Lying.lies[:] = ["before"] * 5
    with pytest.raises(StoreFailed):
        await commit_one(store, step(head, said(2)))
    Lying.lies.clear()
    taken = await other.claim("s")
    assert taken is not None
    await written(other, "u", 3)
    await commit_one(other, step(taken, said(20)))
    regained = await store.claim("s")
    assert regained is not None
    await commit_one(store, step(regained, said(30)))
    assert [one.event for one in await store.events("s")] == [said(1), said(20), said(30)]
    await other.aclose()
    await store.aclose()


# --- processes


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_forked_child_is_told_to_open_it_again(tmp_path: Path) -> None:
    seen = children.run("forked", tmp_path)
    assert "was opened before this process was forked" in str(seen["said"])
    assert seen["parent_goes_on"] is True


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_process_that_ends_does_not_wait_for_the_store(tmp_path: Path) -> None:
    assert children.run("exit_while_writing", tmp_path) == {"left": True}
    store = await SqliteStore.open(tmp_path / "store.db")
    head = await looked(store, "s")
    assert len(await store.events("s")) == head.seq
    await store.aclose()


# --- migrations


async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.aclose()
    connection = sqlite3.connect(path, isolation_level=None)
    broken = (
        *schema.MIGRATIONS,
        schema.Migration("half", ("CREATE TABLE half (x)", "CREATE TABLE store (y)")),
    )
    with pytest.raises(sqlite3.OperationalError):
        schema.migrate(connection, broken)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "half" not in tables
    better = (*schema.MIGRATIONS, schema.Migration("whole", ("CREATE TABLE whole (x)",)))
    schema.migrate(connection, better)
    schema.migrate(connection, better)
    rows = connection.execute("SELECT number, name FROM migrations ORDER BY number").fetchall()
    assert rows[-1] == (len(better), "whole")
    with pytest.raises(UserError, match="newer Bargein"):
        schema.migrate(connection)
    connection.close()


async def test_a_bug_in_one_job_harms_no_other(path: Path) -> None:
    store = await SqliteStore.open(path)
    head = await made(store, "s")

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE sessions SET seq = 77")
        raise ZeroDivisionError

    async with anyio.create_task_group() as group:
        group.start_soon(commit_one, store, step(head, said(1)))
        with pytest.raises(ZeroDivisionError):
            await store._writer.run(fail)
    with pytest.raises(BugError, match="ZeroDivisionError"):
        await store._reader.run(lambda connection: 1 // 0)
    assert (await looked(store, "s")).seq == 1
    await store.aclose()
