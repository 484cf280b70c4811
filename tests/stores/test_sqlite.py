"""The SQLite store: what is particular to a file. `test_conformance` has the contract."""

# ruff: noqa: ASYNC240  (that a test looks at files holds nobody up)

from __future__ import annotations

import _sqlite3
import ctypes
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Self

import anyio
import anyio.to_thread
import pytest

from bargein.contracts.event import TextCheckpoint
from bargein.contracts.store import (
    Commit,
    OutOfOrder,
    SessionHead,
    StaleEpoch,
    StoreFailed,
    commit_one,
)
from bargein.stores.sqlite import (
    SqliteStore,
    commit_sql,
    large_sql,
    search_sql,
    session_sql,
    worker,
)
from bargein.stores.sqlite import store as sqlite_store
from bargein.stores.sqlite.backup import restore_backup
from bargein.testing.store_conformance.scene import (
    key,
    looked,
    made,
    said,
    step,
    written,
)
from tests.conftest import BACKENDS
from tests.stores.files import OwnConnections


@pytest.fixture
async def store(tmp_path: Path, anyio_backend: object) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "store.db")
    yield store
    await store.aclose()


@pytest.mark.anyio
async def test_it_is_closed_whole_where_all_is_cancelled(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await commit_one(store, step(await made(store, "s"), said(1)))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.aclose()
    # Whoever closes the last connection moves the log into the file.
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


class Held:
    """A writer that is busy with the disk until it is let go."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.started, self.gate = threading.Event(), threading.Event()

    async def __aenter__(self) -> Self:
        self.job = self.store._writer.run(self.hold)
        await anyio.to_thread.run_sync(self.started.wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.set()
        await self.job

    def hold(self, connection: sqlite3.Connection) -> None:
        self.started.set()
        self.gate.wait()


# --- durability and speed


async def query(store: SqliteStore, sql: str) -> list[tuple[object, ...]]:
    return await store._reader.run(lambda connection: connection.execute(sql).fetchall())


@pytest.mark.anyio
async def test_it_is_as_durable_as_sqlite_can_be(store: SqliteStore) -> None:
    assert await query(store, "PRAGMA journal_mode") == [("wal",)]
    synchronous = await store._writer.run(
        lambda connection: connection.execute("PRAGMA synchronous").fetchone()
    )
    assert synchronous == (2,)


class Noting(sqlite3.Connection):
    seen: ClassVar[list[str]] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self.seen.append(sql.split(" VALUES", maxsplit=1)[0])
        return super().execute(sql, *parameters)


class NotingFile(OwnConnections):
    factory = Noting


@pytest.mark.anyio
async def test_writes_that_come_together_are_one_statement(tmp_path: Path) -> None:
    """Which is a transaction; and the interpreter is let go of once for all of them."""
    store = SqliteStore(NotingFile(tmp_path / "noted.db"))
    heads = [await made(store, f"s{number}") for number in range(40)]
    first, *others = [step(head, said(1), keys=(key("c"),), text="said") for head in heads]
    # After it the writer knows which number the next event has.
    await commit_one(store, first)
    async with anyio.create_task_group() as group, Held(store):
        for commit in others:
            group.start_soon(commit_one, store, commit)
        await anyio.wait_all_tasks_blocked()
        Noting.seen.clear()
    # Before it `Held` speaks; after it the writer may move the log at its leisure, and index.
    assert Noting.seen.count("INSERT INTO commit_rows") == 1
    after = Noting.seen[Noting.seen.index("INSERT INTO commit_rows") + 1 :]
    at_once = takewhile(lambda each: not each.startswith("SELECT event, text"), after)
    assert all(each.startswith("PRAGMA ") for each in at_once), after
    assert {(await looked(store, head.id)).seq for head in heads} == {1}
    await store.aclose()


@pytest.mark.anyio
async def test_what_was_written_is_held_by_nobody(tmp_path: Path) -> None:
    """SQLite's statements keep the values that they were given until they are used again, and there
    is one for each number of rows."""
    used = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    used.restype = ctypes.c_int64
    store = await SqliteStore.open(tmp_path / "large.db")
    head = await made(store, "s1")
    await commit_one(store, step(head, said(1)))
    before, words = used(), TextCheckpoint("turn", "x" * 8 * 1024 * 1024)
    for count in (1, 2, 3):
        await commit_one(store, step(await looked(store, "s1"), *[words] * count))
    # Its cache of pages has a bound of its own.
    assert used() - before < 4 * 1024 * 1024
    await store.aclose()


@pytest.mark.anyio
async def test_one_that_is_refused_among_many_is_undone_alone(store: SqliteStore) -> None:
    heads = [await made(store, f"s{number}") for number in range(20)]
    refused: list[str] = []

    async def write(head: SessionHead, commit: Commit) -> None:
        try:
            await commit_one(store, commit)
        except OutOfOrder:
            refused.append(head.id)

    async with anyio.create_task_group() as group, Held(store):
        for head in heads:
            group.start_soon(write, head, step(head, said(1)))
        await anyio.wait_all_tasks_blocked()
        late = heads[7]
        group.start_soon(write, late, step(late, said(2)))
        await anyio.wait_all_tasks_blocked()
    assert refused == ["s7"]
    for head in heads:
        assert [each.event for each in await store.events(head.id)] == [said(1)]


@pytest.mark.anyio
async def test_another_process_may_have_used_the_numbers_that_this_one_would(
    store: SqliteStore, tmp_path: Path
) -> None:
    """One process owns a store. One that comes all the same does no harm."""
    mine = await made(store, "mine")
    await commit_one(store, step(mine, said(1)))
    other = await SqliteStore.open(tmp_path / "store.db")
    theirs = await made(other, "theirs")
    await commit_one(other, step(theirs, said(1), said(2), said(3)))
    await commit_one(store, step(await looked(store, "mine"), said(2)))
    await other.aclose()
    assert [each.event for each in await store.events("mine")] == [said(1), said(2)]
    assert [each.event for each in await store.events("theirs")] == [said(1), said(2), said(3)]


@pytest.mark.anyio
async def test_reading_waits_only_for_a_write_of_the_same_session(store: SqliteStore) -> None:
    head, other = await written(store, "s", 1), await written(store, "t", 3)
    seen: list[int] = []

    async def look() -> None:
        seen.append((await looked(store, "s")).seq)

    async with anyio.create_task_group() as group, Held(store):
        group.start_soon(commit_one, store, step(head, said(2)))
        await anyio.wait_all_tasks_blocked()
        group.start_soon(look)
        await anyio.wait_all_tasks_blocked()
        assert await store.head("t") == other
        assert len(await store.events("t")) == 3
        assert len(await store.sessions()) == 2
        assert await store.search("nothing") == []
        assert seen == []
    assert seen == [2]


@pytest.mark.anyio
async def test_a_cancelled_waiter_leaves_at_once_and_the_write_happens(store: SqliteStore) -> None:
    head = await made(store, "s")
    async with Held(store):
        with anyio.move_on_after(0.05) as scope:
            await commit_one(store, step(head, said(1)))
        assert scope.cancelled_caught
    assert (await looked(store, "s")).seq == 1
    assert not store._writer.has_pending("s")
    assert store._writer._pending == 0


@pytest.mark.anyio
async def test_too_many_waiting_writes_are_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PENDING_MAX", 2)
    head = await made(store, "s")
    async with anyio.create_task_group() as group, Held(store):
        group.start_soon(commit_one, store, step(head, said(1)))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(StoreFailed, match="2 requests are waiting for the disk"):
            await commit_one(store, step(head, said(2), expected_seq=1))
    await commit_one(store, step(head, said(2), expected_seq=1))


def test_several_loops_of_different_kinds_share_a_store(tmp_path: Path) -> None:
    opened: list[SqliteStore] = []
    ready, failures = threading.Barrier(3), []

    async def use(name: str) -> None:
        if name == "asyncio":
            opened.append(await SqliteStore.open(tmp_path / "store.db"))
        await anyio.to_thread.run_sync(ready.wait)
        store = opened[0]
        head = await made(store, name)

        async def write(place: int) -> None:
            own = await made(store, f"{name}-{place}")
            for seq in range(10):
                await commit_one(store, step(own, said(seq), expected_seq=seq))

        async with anyio.create_task_group() as group:
            for place in range(10):
                group.start_soon(write, place)
        await commit_one(store, step(head, said(1)))
        await anyio.to_thread.run_sync(ready.wait)
        if name == "asyncio":
            for other in ("asyncio", "uvloop", "trio"):
                assert (await looked(store, other)).seq == 1
                assert len(await store.events(f"{other}-9")) == 10
            await store.aclose()

    def run(name: str) -> None:
        backend, options = BACKENDS[name]
        try:
            anyio.run(use, name, backend=backend, backend_options=options)
        except BaseException as error:
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=run, args=(name,)) for name in BACKENDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# --- plans: nothing looks at what it is not about


def plans(connection: sqlite3.Connection) -> dict[str, list[str]]:
    statements = {
        "head": session_sql.HEAD_BY_ID,
        "events": session_sql.EVENTS,
        "key": session_sql.KEY,
        "roots": session_sql.ROOTS,
        "under": session_sql.UNDER_ROOT,
        "unfinished": session_sql.UNFINISHED,
        "words": search_sql.TEXTS_BY_WORDS,
        "not indexed": search_sql.NOT_INDEXED,
        "text of event": search_sql.TEXT_OF_EVENT,
        "doom": session_sql.DOOM_SESSIONS,
        "delete": session_sql.DELETE_SESSIONS,
        "delete marks": "DELETE FROM marks WHERE session = ?",
        "delete keys": "DELETE FROM keys WHERE session = ?",
        "last event": commit_sql.LAST_EVENT,
        "look up": commit_sql.LOOK_UP,
        "ends at": commit_sql.ENDS_AT,
        "doomed": "SELECT number, last FROM doomed LIMIT 1",
        "segments": large_sql.SEGMENTS,
        "let go": large_sql.LET_GO,
        "left over": large_sql.LEFT_OVER,
        "drop segments": large_sql.DROP_SEGMENTS,
    }
    for kind, those in commit_sql.STATEMENTS.items():
        names = dict.fromkeys(commit_sql.COLUMNS[kind], "?")
        for number, statement in enumerate(those):
            if "raise" not in statement:
                statements[f"commit_sql {kind} {number}"] = statement.format_map(names)
    named = {"session": "s", "after": 0, "until": 9, "words": '"a"*', "roots": '["s"]'}
    return {
        name: [
            str(line[3])
            for line in connection.execute(
                f"EXPLAIN QUERY PLAN {sql}", named if ":" in sql else (0,) * sql.count("?")
            )
        ]
        for name, sql in statements.items()
    }


# What may be gone through from end to end: what a query has found itself, the index of what is
# unfinished, sessions that wait to be swept, the words that match, and what the caller has named.
SMALL = (
    "c",
    "new",
    "CONSTANT ROW",
    "doomed",
    "s USING INDEX unfinished",
    "words VIRTUAL TABLE INDEX",
    "json_each VIRTUAL TABLE INDEX",
)


@pytest.mark.anyio
async def test_no_statement_reads_a_whole_table(store: SqliteStore) -> None:
    found = await store._writer.run(plans)
    for name, plan in found.items():
        for line in plan:
            if line.startswith("SCAN "):
                assert line.removeprefix("SCAN ").startswith(SMALL), f"{name}: {plan}"
    for name in (f"commit_sql {commit_sql.COMMIT} 0", f"commit_sql {commit_sql.TITLE} 0"):
        assert "SEARCH sessions USING INTEGER PRIMARY KEY (rowid=?)" in found[name], found[name]
    assert any("USING INDEX roots_by_update" in line for line in found["roots"])
    assert any("USING INDEX under_root" in line for line in found["under"])
    assert any("USING INTEGER PRIMARY KEY" in line for line in found["events"])


@pytest.mark.anyio
async def test_a_page_in_the_middle_of_a_long_log_reads_only_about_that_much(
    store: SqliteStore,
) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, *(said(n) for n in range(1, 5_001))))

    def steps_for(connection: sqlite3.Connection) -> list[int]:
        counted = []
        for after in (0, 2_500, 4_990):
            count = [0]

            def tick(count: list[int] = count) -> int:
                count[0] += 1
                return 0

            connection.set_progress_handler(tick, 100)
            found = session_sql.events(connection, "s", after, 10)
            connection.set_progress_handler(None, 0)
            assert [one.seq for one in found] == list(range(after + 1, after + 11))
            counted.append(count[0])
        return counted

    assert max(await store._reader.run(steps_for)) < 40


# --- the log is append-only


@pytest.mark.anyio
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE events SET body = x''",
        "UPDATE events SET seq = seq + 1",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events SELECT * FROM events",
    ],
)
async def test_the_log_can_only_grow(store: SqliteStore, sql: str) -> None:
    await written(store, "s", 3)
    with pytest.raises(StoreFailed, match="append-only"):
        await store._writer.run(lambda connection: connection.execute(sql))
    assert [one.event for one in await store.events("s")] == [said(1), said(2), said(3)]


async def swept(store: SqliteStore) -> None:
    """Until nothing is left of deleted sessions. Each question is a moment without leisure."""
    while await query(store, "SELECT 1 FROM doomed"):  # noqa: ASYNC110  (nobody can tell us)
        await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_deleted_session_leaves_no_rows(store: SqliteStore) -> None:
    root = await made(store, "root")
    child = await store.create("child", root="root", at=0.0, epoch=root.epoch)
    assert child is not None
    for head in (root, child, await made(store, "other")):
        events = tuple(said(number) for number in range(1_000))
        await commit_one(store, step(head, *events, text=f"words of {head.id}", keys=(key("c"),)))
    await store.delete("root")
    with anyio.fail_after(30):
        await swept(store)
    counts = {
        table: (await query(store, f"SELECT count(*) FROM {table}"))[0][0]
        for table in ("sessions", "events", "marks", "keys", "texts")
    }
    assert counts == {"sessions": 1, "events": 1_000, "marks": 15, "keys": 1, "texts": 1}
    assert await query(store, "SELECT rowid FROM words WHERE words MATCH 'root'") == []
    assert len(await store.events("other")) == 1_000


@pytest.mark.anyio
async def test_a_deletion_that_was_not_finished_is_finished_by_the_next_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    head = await made(store, "s")
    await commit_one(store, step(head, *(said(number) for number in range(5_000))))
    await store.delete("s")
    await store.aclose()
    store = await SqliteStore.open(path)
    with anyio.fail_after(30):
        await swept(store)
    assert await query(store, "SELECT 1 FROM events") == []
    await store.aclose()


# --- searching


@pytest.mark.anyio
async def test_what_was_written_without_an_index_is_indexed_later(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for number, full_text in enumerate((True, False, True, False, True)):
        store = await SqliteStore.open(path, full_text=full_text)
        head = await made(store, f"s{number}")
        await commit_one(store, step(head, said(1), at=float(number), text="the same words"))
        found = [one.session for one in await store.search("same")]
        assert found == [f"s{place}" for place in range(number, -1, -1)]
        await store.aclose()


# --- the files


@pytest.mark.anyio
async def test_the_files_are_for_their_owner_alone(store: SqliteStore, tmp_path: Path) -> None:
    await made(store, "s")
    await store.backup(str(tmp_path / "backup"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes) == {"store.db", "store.db-wal", "store.db-shm", "backup"}
    assert set(modes.values()) == {0o600}


@pytest.mark.anyio
async def test_closing_leaves_one_file(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await written(store, "s", 1)
    await store.sessions()
    await store.aclose()
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


@pytest.mark.anyio
async def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    head = await made(store, "s")
    async with anyio.create_task_group() as group, Held(store):
        group.start_soon(commit_one, store, step(head, said(1)))
        await anyio.wait_all_tasks_blocked()
        group.start_soon(store.aclose)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(StoreFailed, match="closed"):
            await commit_one(store, step(head, said(2), expected_seq=1))
    store = await SqliteStore.open(tmp_path / "store.db")
    assert (await looked(store, "s")).seq == 1
    await store.aclose()


@pytest.mark.anyio
async def test_closing_does_not_wait_for_a_hung_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    async with Held(store):
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_store, "CLOSE_S", 0.1)
            with pytest.raises(StoreFailed, match=r"did not answer within 0\.1 s"):
                await store.aclose()
    await store.aclose()


@pytest.mark.anyio
async def test_one_who_has_no_time_to_open_it_is_told_just_that_however_hung_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await SqliteStore.open(tmp_path / "store.db")).aclose()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(sqlite_store, "CLOSE_S", 0.1)
    try:
        with anyio.move_on_after(0.1) as patience:
            await SqliteStore.open(tmp_path / "store.db", busy_s=30.0)
        assert patience.cancelled_caught
    finally:
        other.close()


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["with space", "per%20cent", "quest?ion", "ha#sh", "ünï.db"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    store = await SqliteStore.open(tmp_path / name)
    await written(store, "s", 1)
    await store.head("s")
    await store.backup(str(tmp_path / f"{name} copy"))
    restore_backup(tmp_path / f"{name} copy", tmp_path / f"{name} again")
    await store.aclose()
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name} copy", f"{name} again"}


@pytest.mark.anyio
async def test_two_stores_on_one_file_fence_each_other(tmp_path: Path) -> None:
    """Should two processes ever get past the lock."""
    first = await SqliteStore.open(tmp_path / "store.db")
    second = await SqliteStore.open(tmp_path / "store.db")
    head = await written(first, "s", 2)
    taken = await second.claim("s")
    assert taken is not None
    with pytest.raises(StaleEpoch):
        await commit_one(first, step(head, said(3)))
    await commit_one(second, step(taken, said(3)))
    regained = await first.claim("s")
    assert regained is not None
    assert regained.seq == 3
    await commit_one(first, step(regained, said(4)))
    with pytest.raises(StaleEpoch):
        await commit_one(second, step(taken, said(4), expected_seq=3))
    await second.delete("s")
    again = await made(second, "s")
    with pytest.raises(StaleEpoch):
        await commit_one(first, step(regained, said(5), expected_seq=4))
    await commit_one(second, step(again, said(1)))
    await commit_one(first, step(again, said(2), expected_seq=1))
    assert [one.event for one in await first.events("s")] == [said(1), said(2)]
    await first.aclose()
    await second.aclose()


class Answer:
    """What a read may answer with: large, and to be gone when nobody needs it any more."""


@pytest.mark.anyio
@pytest.mark.parametrize("who", ["_writer", "_reader"])
async def test_a_thread_that_rests_holds_on_to_nothing(store: SqliteStore, who: str) -> None:
    gone = threading.Event()
    weakref.finalize(await getattr(store, who).run(lambda connection: Answer()), gone.set)
    assert await anyio.to_thread.run_sync(gone.wait, 10)
