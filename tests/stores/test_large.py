"""Large events of a SQLite store: written in segments, with the commits of others in between."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bargein.contracts.event import Event, HistoryImported, UserSaid
from bargein.contracts.model import Image, Text, UserMessage
from bargein.contracts.store import SessionUnreadable, StoreFailed, commit_one
from bargein.stores.encoding import (
    LONG_BYTES,
    SLICE_CHARACTERS,
    Long,
    cut_event,
    event_of,
    join_body,
    slices_of,
)
from bargein.stores.sqlite import SqliteStore
from bargein.stores.sqlite.large_sql import DROP_VALUE, PUT_SEGMENT, SEGMENT_BYTES, sweep_values
from bargein.stores.sqlite.session_sql import sweep
from bargein.testing.store_conformance.commits import ONE_OF_EACH
from bargein.testing.store_conformance.large import much
from bargein.testing.store_conformance.scene import claimed, log, looked, made, said, step
from tests.stores.files import OwnConnections

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SIZE = 4 * SEGMENT_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.aclose()


async def ask(store: SqliteStore, sql: str) -> list[tuple[Any, ...]]:
    return await store._writer.run(lambda connection: connection.execute(sql).fetchall())


async def counts(store: SqliteStore) -> tuple[int, int]:
    """How many long values and segments are in the file."""
    ((values,),) = await ask(store, "SELECT count(*) FROM long_values")
    ((segments,),) = await ask(store, "SELECT count(*) FROM segments")
    return values, segments


async def sweep_all(store: SqliteStore) -> None:
    """Do what the writer does at leisure."""

    def work(connection: sqlite3.Connection) -> None:
        while sweep(connection, full_text=True) or sweep_values(connection, []):
            pass

    await store._writer.run(work)


class SegmentGate:
    """Holds the writer before a segment, or fails it there. `after`: how many are let through."""

    def __init__(self, after: int, fails_with: Exception | None = None) -> None:
        self.after = after
        self.fails_with = fails_with
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.after -= 1
        if self.after == -1:
            self.reached.set()
            if self.fails_with is not None:
                raise self.fails_with
            assert self.opened.wait(30)


async def gated(path: Path, gate: SegmentGate) -> SqliteStore:
    class Gated(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == PUT_SEGMENT:
                gate.pass_through()
            return super().execute(sql, *parameters)

    class GatedFile(OwnConnections):
        factory = Gated

    await (await SqliteStore.open(path)).aclose()
    return SqliteStore(GatedFile(path))


async def test_the_log_refers_to_the_segments(store: SqliteStore) -> None:
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), much(1, SIZE), said(2)))
    assert await ask(store, "SELECT 1 FROM events WHERE length(body) > 100") == []
    values, segments = await counts(store)
    assert values == 1
    assert segments >= 4
    assert await ask(store, f"SELECT 1 FROM segments WHERE length(data) > {SEGMENT_BYTES}") == []


async def test_others_commit_between_two_segments(path: Path) -> None:
    gate = SegmentGate(after=2)
    store = await gated(path, gate)
    large, small = await made(store, "large"), await made(store, "small")
    finished: list[str] = []

    async def write_large() -> None:
        await commit_one(store, step(large, much(1, SIZE)))
        finished.append("large")

    async def write_small() -> None:
        await commit_one(store, step(small, said(1)))
        finished.append("small")

    async with anyio.create_task_group() as group:
        group.start_soon(write_large)
        assert await anyio.to_thread.run_sync(gate.reached.wait, 30)
        group.start_soon(write_small)
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    assert finished == ["small", "large"]
    assert await log(store, "large") == [much(1, SIZE)]
    await store.aclose()


async def test_the_same_session_waits_for_its_large_commit(path: Path) -> None:
    """Also reading: whoever asks must learn what became of the commit."""
    gate = SegmentGate(after=2)
    store = await gated(path, gate)
    head = await made(store, "s")
    seen: list[int] = []

    async def read() -> None:
        seen.append((await looked(store, "s")).seq)

    async with anyio.create_task_group() as group:
        group.start_soon(commit_one, store, step(head, much(1, SIZE)))
        assert await anyio.to_thread.run_sync(gate.reached.wait, 30)
        group.start_soon(commit_one, store, step(head, said(2), expected_seq=1))
        await anyio.wait_all_tasks_blocked()
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    assert seen == [2]
    assert await log(store, "s") == [much(1, SIZE), said(2)]
    await store.aclose()


async def test_a_session_waits_for_its_commit_that_waits_for_another(path: Path) -> None:
    gate = SegmentGate(after=2)
    store = await gated(path, gate)
    head, other = await made(store, "s"), await made(store, "other")
    outcomes: list[Exception | None] = []

    async def write(*commits: Any) -> None:
        outcomes.extend(await store.commit(commits))

    async with anyio.create_task_group() as group:
        group.start_soon(write, step(head, much(1, SIZE)))
        assert await anyio.to_thread.run_sync(gate.reached.wait, 30)
        group.start_soon(write, step(head, said(2), expected_seq=1), step(other, said(3)))
        await anyio.wait_all_tasks_blocked()
        group.start_soon(write, step(other, said(4), expected_seq=1))
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    assert outcomes == [None] * 4
    assert await log(store, "other") == [said(3), said(4)]
    await store.aclose()


async def test_closing_finishes_a_large_commit(path: Path) -> None:
    gate = SegmentGate(after=2)
    store = await gated(path, gate)
    head = await made(store, "s")
    async with anyio.create_task_group() as group:
        group.start_soon(commit_one, store, step(head, much(1, SIZE)))
        assert await anyio.to_thread.run_sync(gate.reached.wait, 30)
        group.start_soon(store.aclose)
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    again = await SqliteStore.open(path)
    assert await log(again, "s") == [much(1, SIZE)]
    await again.aclose()


async def test_a_segment_that_cannot_be_written_fails_its_commit_alone(path: Path) -> None:
    gate = SegmentGate(after=2, fails_with=sqlite3.OperationalError("disk I/O error"))
    store = await gated(path, gate)
    head, other = await made(store, "s"), await made(store, "other")
    outcomes: dict[str, Exception | None] = {}

    async def write(name: str, *commits: Any) -> None:
        (outcomes[name],) = await store.commit(commits)

    async with anyio.create_task_group() as group:
        group.start_soon(write, "large", step(head, much(1, SIZE)))
        group.start_soon(write, "other", step(other, much(2, SIZE)))
    assert isinstance(outcomes["large"], StoreFailed)
    assert outcomes["other"] is None
    assert await looked(store, "s") == head
    # The next attempt succeeds, and nothing is left of the first.
    await commit_one(store, step(head, much(1, SIZE)))
    assert await log(store, "s") == [much(1, SIZE)]
    await sweep_all(store)
    assert (await counts(store))[0] == 2
    await store.aclose()


async def test_segments_of_a_refused_commit_are_removed(store: SqliteStore) -> None:
    head = await made(store, "s")
    (refusal,) = await store.commit([step(head, much(1, SIZE), epoch=head.epoch + 1)])
    assert refusal is not None
    await sweep_all(store)
    assert await counts(store) == (0, 0)


async def test_segments_that_a_killed_program_left_are_removed_at_leisure(path: Path) -> None:
    store = await SqliteStore.open(path)
    head = await made(store, "s")
    await commit_one(store, step(head, much(1, SIZE)))
    kept = await counts(store)
    await store.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as dying:
        dying.execute("INSERT INTO long_values VALUES (77, 0)")
        for place in range(20):
            dying.execute("INSERT INTO segments VALUES (?, x'00')", ((77 << 16) + place,))
    removed = threading.Event()

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == DROP_VALUE:
                removed.set()
            return super().execute(sql, *parameters)

    class WatchedFile(OwnConnections):
        factory = Watched

    store = SqliteStore(WatchedFile(path))
    await made(store, "another")
    assert await anyio.to_thread.run_sync(removed.wait, 30)
    assert await counts(store) == kept
    assert await log(store, "s") == [much(1, SIZE)]
    await store.aclose()


async def test_segments_of_a_deleted_session_are_removed(store: SqliteStore) -> None:
    gone, kept = await made(store, "gone"), await made(store, "kept")
    await store.commit([step(gone, much(1, SIZE), much(2, SIZE)), step(kept, much(3, SIZE))])
    await store.delete("gone")
    await sweep_all(store)
    assert (await counts(store))[0] == 1
    assert await log(store, "kept") == [much(3, SIZE)]


async def test_a_missing_segment_makes_one_session_unreadable(store: SqliteStore) -> None:
    bad, good = await made(store, "bad"), await made(store, "good")
    await store.commit([step(bad, said(1), much(1, SIZE)), step(good, much(2, SIZE))])
    await ask(
        store,
        """DELETE FROM segments WHERE number = (SELECT max(number) FROM segments WHERE number >> 16
        = (SELECT value FROM long_values WHERE event = (SELECT number FROM events WHERE seq = 2)))
        """,
    )
    with pytest.raises(SessionUnreadable) as caught:
        await store.events("bad")
    assert caught.value.seq == 2
    assert await log(store, "good") == [much(2, SIZE)]


async def test_a_commit_without_its_segments_is_refused(path: Path) -> None:
    """Another process that got past the lock took them for leftovers."""
    gate = SegmentGate(after=2)
    store = await gated(path, gate)
    head = await made(store, "s")
    outcomes: list[Exception | None] = []

    async def write() -> None:
        outcomes.extend(await store.commit([step(head, much(1, SIZE))]))

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        assert await anyio.to_thread.run_sync(gate.reached.wait, 30)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DELETE FROM segments")
            other.execute("DELETE FROM long_values")
        gate.opened.set()
    assert isinstance(outcomes[0], StoreFailed)
    assert await looked(store, "s") == head
    again = await claimed(store, "s")
    await commit_one(store, step(again, much(1, SIZE)))
    await store.aclose()


# --- encoding

LONG = UserSaid(
    "t", (Text("ascii " * 9_000), Image("image/png", bytes(range(256)) * 900), Text("é😀" * 20_000))
)
MANY = HistoryImported(tuple(UserMessage((Text(f"message {n}"),)) for n in range(9_000)))


@pytest.mark.parametrize(
    "event", [*ONE_OF_EACH, much(1), LONG, MANY], ids=lambda event: type(event).__name__
)
async def test_a_cut_event_can_be_joined(event: Event) -> None:
    kept: dict[int, bytes] = {}

    def keep(value: Long) -> int:
        kept[len(kept)] = b"".join(slices_of(value))
        return len(kept) - 1

    def find(number: int, size: int) -> bytes:
        assert len(kept[number]) == size
        return kept[number]

    body = cut_event(event, keep)
    assert len(body) <= LONG_BYTES
    assert event_of(join_body(body, lambda *given: find(*given).decode(), find)) == event
    assert all(len(each) <= 4 * SLICE_CHARACTERS for each in slices_of("é😀" * 50_000))
