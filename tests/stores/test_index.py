"""The index for searching is behind the texts: everything is found all the same, and it catches up.

`still` keeps the writer from working at leisure, so that a test takes each slice itself.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

from bargein.contracts.store import commit_one
from bargein.stores.sqlite import SqliteStore, schema, search_sql, session_sql, writer
from bargein.stores.sqlite.backup import restore_backup
from bargein.stores.sqlite.file import StoreFile
from bargein.stores.words import SEARCHED_CHARACTERS_MAX, add_words
from bargein.testing.store_conformance.scene import made, said, step
from tests.stores.indexes import check_index

pytestmark = pytest.mark.anyio

INDEXED = "SELECT indexed FROM store"
LAST_TEXT = "SELECT coalesce(max(event), 0) FROM texts"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LINGER_S", 3_600.0)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LINGER_S", 0.0)


@pytest.fixture
async def store(path: Path, still: None, anyio_backend: object) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.aclose()


async def tell(store: SqliteStore, *texts: str, at: float = 0.0) -> None:
    """A session named after each text, with the text in it."""
    for text in texts:
        head = await made(store, text)
        await commit_one(store, step(head, said(1), at=at, text=f"{text} words"))


async def number(store: SqliteStore, sql: str) -> int:
    (found,) = await store._reader.run(lambda connection: connection.execute(sql).fetchone())
    return int(found)


async def found(store: SqliteStore, words: str = "words") -> list[str]:
    return [one.session for one in await store.search(words)]


async def take_slice(store: SqliteStore) -> bool:
    return await store._writer.run(search_sql.index_some)


async def sweep_all(store: SqliteStore) -> None:
    def work(connection: sqlite3.Connection) -> None:
        while session_sql.sweep(connection, full_text=store._file.full_text):
            pass

    await store._writer.run(work)


async def settled(store: SqliteStore) -> None:
    """Until the index reaches to the last text."""
    with anyio.fail_after(30):
        while await number(store, INDEXED) < await number(store, LAST_TEXT):  # noqa: ASYNC110
            await anyio.sleep(0.01)


# --- a commit leaves the index alone, and searching finds everything


async def test_a_commit_writes_nothing_into_the_index(store: SqliteStore) -> None:
    await tell(store, "a")
    await take_slice(store)
    before = await number(store, "SELECT count(*) FROM words_data")
    reached = await number(store, INDEXED)
    await tell(store, "b", "c")
    assert await number(store, "SELECT count(*) FROM words_data") == before
    assert await number(store, INDEXED) == reached
    assert await found(store) == ["c", "b", "a"]


async def test_at_every_point_of_catching_up_the_same_is_found(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_sql, "SLICE_TEXTS", 2)
    names = ["a", "b", "c", "d", "e"]
    await tell(store, *names)
    slices = 0
    while await take_slice(store):
        slices += 1
        assert await found(store) == names[::-1]
        assert await found(store, "d words") == ["d"]
        await check_index(store)
    assert slices == 3
    assert await number(store, INDEXED) == await number(store, LAST_TEXT)


async def test_a_slice_is_bounded_by_characters_but_takes_one_text(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_sql, "SLICE_CHARACTERS", 20)
    await tell(store, "a" * 100, "b", "c", "d" * 100)
    reached = []
    while await take_slice(store):
        reached.append(await number(store, INDEXED))
    assert reached == [1, 3, 4]
    await check_index(store)


async def test_what_is_being_indexed_is_seen_whole_or_not_at_all(store: SqliteStore) -> None:
    """A search in the middle of a slice, and of its transaction, finds each text once."""
    await tell(store, "a", "b")
    half, gate = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> None:
        search_sql.index_some(connection)
        half.set()
        gate.wait()

    job = store._writer.run(work)
    await anyio.to_thread.run_sync(half.wait)
    assert await found(store) == ["b", "a"]
    gate.set()
    await job
    assert await found(store) == ["b", "a"]


# --- the writer catches up by itself, and holds nobody up


@pytest.mark.usefixtures("eager")
async def test_the_writer_indexes_at_leisure(path: Path) -> None:
    store = await SqliteStore.open(path)
    await tell(store, "a", "b")
    await settled(store)
    await check_index(store)
    await tell(store, "c")
    await settled(store)
    assert await found(store) == ["c", "b", "a"]
    await store.aclose()


class Gated:
    """Stands in for `add_words`: notes each call, and holds the first until it is let go."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self, words: set[str], text: str, begin: int, *, until: Callable[[], bool]) -> int:
        self.seen.append(text)
        self.begun.set()
        self.gate.wait()
        return add_words(words, text, begin, until=until)


@pytest.fixture
async def behind(path: Path, still: None, monkeypatch: pytest.MonkeyPatch) -> Gated:
    """A file with three texts that are not indexed. Whoever opens it takes one at a time."""
    store = await SqliteStore.open(path)
    await tell(store, "a", "b", "c")
    await store.aclose()
    gated = Gated()
    monkeypatch.setattr(writer, "LINGER_S", 0.0)
    monkeypatch.setattr(search_sql, "SLICE_TEXTS", 1)
    monkeypatch.setattr(search_sql, "add_words", gated)
    return gated


async def test_what_waits_goes_before_the_next_slice(path: Path, behind: Gated) -> None:
    store = await SqliteStore.open(path)
    await anyio.to_thread.run_sync(behind.begun.wait)
    job = store._writer.run(lambda connection: behind.seen.append("job"))
    behind.gate.set()
    await job
    await settled(store)
    assert behind.seen == ["a words", "job", "b words", "c words"]
    await store.aclose()


async def test_closing_waits_for_no_more_than_a_slice(path: Path, behind: Gated) -> None:
    store = await SqliteStore.open(path)
    await anyio.to_thread.run_sync(behind.begun.wait)
    async with anyio.create_task_group() as group:
        group.start_soon(store.aclose)
        while not store._writer._closing:  # noqa: ASYNC110  (nobody can tell us)
            await anyio.sleep(0.001)
        behind.gate.set()
    assert behind.seen == ["a words"]
    store = await SqliteStore.open(path)
    await settled(store)
    assert behind.seen == ["a words", "b words", "c words"]
    assert await found(store) == ["c", "b", "a"]
    await store.aclose()


@pytest.mark.usefixtures("eager")
async def test_leisure_waits_neither_for_the_disk_nor_for_a_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(connection: sqlite3.Connection) -> tuple[int, int]:
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        (busy_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
        return synchronous, busy_ms

    seen: list[tuple[int, int]] = []

    def index_some(connection: sqlite3.Connection, gathered: search_sql.Gathered) -> bool:
        seen.append(look(connection))
        return search_sql.index_some(connection, gathered)

    monkeypatch.setattr(writer, "index_some", index_some)
    store = await SqliteStore.open(path, busy_s=1.5)
    await tell(store, "a")
    await settled(store)
    assert set(seen) == {(1, 0)}
    assert await store._writer.run(look) == (2, 1_500)
    await store.aclose()


# --- what goes wrong


class Failing(sqlite3.Connection):
    """A disk that takes everything but the index."""

    failing: ClassVar[bool] = False
    failures: ClassVar[int] = 0
    failed: ClassVar[threading.Event] = threading.Event()

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if self.failing and sql.startswith("INSERT INTO words"):
            type(self).failures += 1
            self.failed.set()
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
            raise error
        return super().execute(sql, *parameters)


class FailingFile(StoreFile):
    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            factory=Failing,
        )


@pytest.mark.usefixtures("eager")
async def test_an_index_that_cannot_be_written_harms_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "failing", True)
    monkeypatch.setattr(Failing, "failures", 0)
    Failing.failed.clear()
    store = SqliteStore(FailingFile(path))
    await tell(store, "a")
    await anyio.to_thread.run_sync(Failing.failed.wait)
    await tell(store, "b", "c")
    assert await found(store) == ["c", "b", "a"]
    # Nothing is left to do for the writer, so it waits, and a failure is not tried over and over:
    # at most once after each of the seven jobs, of which this is the last.
    await store._writer.run(lambda connection: None)
    assert Failing.failures <= 7
    Failing.failing = False
    await tell(store, "d")
    await settled(store)
    assert await found(store) == ["d", "c", "b", "a"]
    await check_index(store)
    await store.aclose()


async def test_a_bug_at_leisure_does_not_end_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(connection: sqlite3.Connection, gathered: search_sql.Gathered) -> bool:
        connection.execute("UPDATE store SET indexed = 77")
        failed.set()
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "LINGER_S", 0.0)
        patch.setattr(writer, "index_some", fail)
        store = await SqliteStore.open(path)
        await anyio.to_thread.run_sync(failed.wait)
        await tell(store, "a")
    await tell(store, "b")
    await settled(store)
    assert await found(store) == ["b", "a"]
    await check_index(store)
    await store.aclose()


async def test_a_slice_that_was_undone_is_taken_again(store: SqliteStore) -> None:
    """As a crash would undo it: the words and how far they reach, both."""

    def fail(connection: sqlite3.Connection) -> None:
        search_sql.index_some(connection)
        raise ZeroDivisionError

    await tell(store, "a", "b")
    with pytest.raises(ZeroDivisionError):
        await store._writer.run(fail)
    assert await number(store, INDEXED) == 0
    assert await found(store) == ["b", "a"]
    while await take_slice(store):
        pass
    await check_index(store)
    assert await found(store) == ["b", "a"]


# --- deleting


@pytest.mark.parametrize("slices", [0, 1, 2])
async def test_only_what_was_indexed_is_taken_out_of_the_index(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    monkeypatch.setattr(search_sql, "SLICE_TEXTS", 2)
    await tell(store, "a", "b", "c", "d")
    for _ in range(slices):
        await take_slice(store)
    for name in ("a", "b", "c"):
        await store.delete(name)
    assert await found(store) == ["d"]
    await sweep_all(store)
    await check_index(store)
    while await take_slice(store):
        pass
    await check_index(store)
    assert await found(store) == ["d"]


async def test_what_is_deleted_and_not_swept_can_be_indexed(store: SqliteStore) -> None:
    await tell(store, "a", "b")
    await store.delete("a")
    await take_slice(store)
    await sweep_all(store)
    await check_index(store)
    assert await found(store) == ["b"]


async def test_no_number_that_the_index_has_reached_is_given_again(store: SqliteStore) -> None:
    await tell(store, "a", "b", "c")
    await take_slice(store)
    await store.delete("b")
    await store.delete("c")
    await sweep_all(store)
    await tell(store, "d", "e")
    assert await found(store) == ["e", "d", "a"]
    await take_slice(store)
    await check_index(store)
    assert await found(store) == ["e", "d", "a"]


async def test_no_number_that_another_has_indexed_is_given_again(
    store: SqliteStore, path: Path
) -> None:
    """This one has not been told that the index has gone on."""
    head = await made(store, "a")
    other = await SqliteStore.open(path)
    await tell(other, "b", "c")
    await take_slice(other)
    await other.delete("b")
    await other.delete("c")
    await sweep_all(other)
    await other.aclose()
    await commit_one(store, step(head, said(1), text="a words"))
    assert await found(store) == ["a"]
    await take_slice(store)
    await check_index(store)
    assert await found(store) == ["a"]


# --- with and without FTS5


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("gone", ["a", "b", "ab", "abc"])
async def test_what_is_deleted_without_an_index_is_not_left_in_it(path: Path, gone: str) -> None:
    store = await SqliteStore.open(path)
    await tell(store, "a", "b")
    await take_slice(store)
    await store.aclose()

    store = await SqliteStore.open(path, full_text=False)
    await tell(store, "c")
    for name in gone:
        await store.delete(name)
    await sweep_all(store)
    await tell(store, "d", "e")
    left = [name for name in "edcba" if name not in gone]
    assert await found(store) == left
    await store.aclose()

    store = await SqliteStore.open(path)
    assert await found(store) == left
    while await take_slice(store):
        assert await found(store) == left
    await check_index(store)
    await store.aclose()


@pytest.mark.usefixtures("still")
async def test_without_fts5_the_index_is_left_where_it_was(path: Path) -> None:
    store = await SqliteStore.open(path)
    await tell(store, "a")
    await take_slice(store)
    reached = await number(store, INDEXED)
    await store.aclose()
    store = await SqliteStore.open(path, full_text=False)
    await tell(store, "b")
    await store.aclose()
    store = await SqliteStore.open(path)
    assert await number(store, INDEXED) == reached
    assert await found(store) == ["b", "a"]
    await store.aclose()


# --- copies, and older files


async def test_a_backup_goes_on_where_the_index_was(store: SqliteStore, tmp_path: Path) -> None:
    await tell(store, "a")
    await take_slice(store)
    await tell(store, "b")
    await store.backup(str(tmp_path / "copy.db"))
    await take_slice(store)
    restore_backup(tmp_path / "copy.db", tmp_path / "restored.db")
    restored = await SqliteStore.open(tmp_path / "restored.db")
    assert await number(restored, INDEXED) < await number(restored, LAST_TEXT)
    assert await found(restored) == ["b", "a"]
    await take_slice(restored)
    await check_index(restored)
    await restored.aclose()


def age(path: Path, spoil: Callable[[sqlite3.Connection], object]) -> None:
    """Make of it a file from before the index could be behind."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DELETE FROM migrations WHERE number > 1")
    connection.execute("ALTER TABLE sessions DROP COLUMN owner")
    connection.execute("DROP TABLE long_values")
    connection.execute("DROP TABLE segments")
    spoil(connection)
    connection.close()


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("indexed", [0, 1])
async def test_an_older_file_is_brought_up_to_date(path: Path, indexed: int) -> None:
    """Of those, 1 says that all is indexed and 0 that some of it may not be. Either may have words
    left in it of what was removed without FTS5."""

    def make_old(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE store SET indexed = ?", (indexed,))
        connection.execute("INSERT INTO words (rowid, text) VALUES (4, 'left behind')")
        if not indexed:
            connection.execute(search_sql.TAKE_OUT, (2, "b words"))

    store = await SqliteStore.open(path)
    await tell(store, "a", "b", "c")
    await take_slice(store)
    await store.aclose()
    age(path, make_old)

    store = await SqliteStore.open(path)
    assert await number(store, "SELECT max(number) FROM migrations") == len(schema.MIGRATIONS)
    assert await found(store) == ["c", "b", "a"]
    await tell(store, "d")
    assert await found(store) == ["d", "c", "b", "a"]
    while await take_slice(store):
        assert await found(store) == ["d", "c", "b", "a"]
    await check_index(store)
    await store.delete("b")
    await sweep_all(store)
    await check_index(store)
    await store.aclose()


# --- long texts


LONG = " ".join(f"w{number}" for number in range(400_000))


async def test_of_a_long_text_only_the_beginning_is_kept_and_found(store: SqliteStore) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), text=LONG))
    assert await number(store, "SELECT length(text) FROM texts") == SEARCHED_CHARACTERS_MAX
    for _ in range(2):
        assert await found(store, "w9999") == ["s"]
        assert await found(store, "w399999") == []
        await take_slice(store)
    await check_index(store)


async def test_a_text_of_an_older_version_is_indexed_to_the_same_length(
    store: SqliteStore,
) -> None:
    """It is in the file as long as it is, and may be in the index as a whole."""
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), text="short"))

    def lengthen(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE texts SET text = ?", (LONG,))

    await store._writer.run(lengthen)
    assert await found(store, "w9999") == ["s"]
    assert await found(store, "w399999") == []
    await take_slice(store)
    assert await found(store, "w9999") == ["s"]
    await store.delete("s")
    await sweep_all(store)
    assert await found(store, "w9999") == []


async def test_a_job_goes_before_the_rest_of_a_long_text(store: SqliteStore) -> None:
    """The words that were gathered are kept, so that a busy store comes to the end of it too."""
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), text=LONG))
    gathered = search_sql.Gathered()
    times = 0

    def gather(connection: sqlite3.Connection) -> bool:
        return gathered.gather(connection, busy=lambda: True)

    while not await store._writer.run(gather):
        times += 1
    assert times >= 10
    assert await store._writer.run(lambda connection: search_sql.index_some(connection, gathered))
    await check_index(store)


async def test_a_search_ends_in_time_and_says_what_it_has_found(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        head = await made(store, name)
        await commit_one(store, step(head, said(1), text=LONG))
    assert sorted(await found(store, "w1")) == ["a", "b", "c"]
    monkeypatch.setattr(search_sql, "SEARCH_S", 0.0)
    assert len(await found(store, "w1")) <= 1
    monkeypatch.setattr(search_sql, "STEPS_BETWEEN_LOOKS", 1)
    assert await found(store, "w1") == []
    monkeypatch.undo()
    assert len(await found(store, "w1")) == 3


async def test_a_list_of_sessions_does_not_wait_for_a_search(store: SqliteStore) -> None:
    await made(store, "s")
    gate = threading.Event()
    search = store._searcher.run(lambda connection: gate.wait())
    try:
        with anyio.fail_after(10):
            assert [head.id for head in await store.sessions()] == ["s"]
            assert await store.unfinished() == []
    finally:
        gate.set()
    await search
