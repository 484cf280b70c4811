"""The log is moved into the file beside the commits: none waits for it, and it does not grow."""

# ruff: noqa: ASYNC240  (that a test reads a file holds nobody up)

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bargein.contracts.store import SessionHead, commit_one
from bargein.stores.checkpointer import MOVE, PAGES
from bargein.stores.file import LOG_PAGES_MAX
from bargein.stores.sqlite import SqliteStore
from bargein.stores.writer import PAGES_ALONE
from tests.stores.conformance import looked, made
from tests.stores.files import OwnConnections, ends_a_transaction
from tests.stores.scenes import SMALL, one

pytestmark = pytest.mark.anyio

FRAME_BYTES = 4096 + 24
ENOUGH = PAGES // PAGES_ALONE
"""So many commits, one after the other, that the log is moved."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


class Gate:
    """Where moving the log waits, or fails. It is over when it has been moved twice: what
    was there, and what has come meanwhile."""

    def __init__(self, *, fails: int = 0) -> None:
        self.reached, self.opened, self.over = (threading.Event() for _ in range(3))
        self.fails = fails
        self.passed = 0

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(30)
        if self.fails:
            self.fails -= 1
            raise sqlite3.OperationalError("disk I/O error")

    def note(self) -> None:
        self.passed += 1
        if self.passed == 2:
            self.over.set()


async def store_with(path: Path, gate: Gate) -> SqliteStore:
    # So that the tables are in the file itself.
    await (await SqliteStore.open(path)).aclose()

    class Gated(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == MOVE:
                gate.pass_through()
            cursor = super().execute(sql, *parameters)
            if sql == MOVE:
                gate.note()
            return cursor

    class GatedFile(OwnConnections):
        factory = Gated

    return SqliteStore(GatedFile(path))


async def write_on(store: SqliteStore, head: SessionHead, count: int, *, size: int = 10) -> None:
    begin = (await looked(store, head.id)).seq
    for seq in range(begin, begin + count):
        await commit_one(store, one(head, seq, size))


def events_in_the_file(path: Path) -> int:
    """Without what is in the log."""
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(count)


async def wait_for(event: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(event.wait, 30)


async def test_it_is_moved_by_another_thread_while_commits_go_on(path: Path) -> None:
    gate = Gate()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, ENOUGH)
    await wait_for(gate.reached)
    # It is being moved, and nobody has to wait.
    await write_on(store, head, 20)
    assert events_in_the_file(path) == 0
    gate.opened.set()
    await wait_for(gate.over)
    assert events_in_the_file(path) >= ENOUGH
    await store.aclose()


async def test_a_commit_after_it_begins_the_log_anew(path: Path) -> None:
    gate = Gate()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, ENOUGH)
    await wait_for(gate.reached)
    # What comes meanwhile is moved as well.
    await write_on(store, head, 20)
    gate.opened.set()
    await wait_for(gate.over)
    await write_on(store, head, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        _, pages, _ = connection.execute(MOVE).fetchone()
    assert pages < 20
    assert len(await store.events("s")) == ENOUGH + 21
    await store.aclose()


async def test_if_nobody_moves_it_a_commit_does(path: Path) -> None:
    gate = Gate()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, 3 * LOG_PAGES_MAX // 25, size=25 * 4096)
    assert Path(f"{path}-wal").stat().st_size < (LOG_PAGES_MAX + 100) * FRAME_BYTES
    gate.opened.set()
    await store.aclose()


async def test_if_it_fails_no_commit_does_and_it_is_tried_again(path: Path) -> None:
    gate = Gate(fails=1)
    gate.opened.set()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, ENOUGH)
    await wait_for(gate.reached)
    assert events_in_the_file(path) == 0
    await write_on(store, head, ENOUGH)
    await wait_for(gate.over)
    assert events_in_the_file(path) >= ENOUGH
    await store.aclose()


async def test_closing_waits_for_it_and_leaves_one_file(path: Path) -> None:
    gate = Gate()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, ENOUGH)
    await wait_for(gate.reached)
    async with anyio.create_task_group() as group:
        group.start_soon(store.aclose)
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    assert [each.name for each in path.parent.iterdir()] == ["store.db"]
    assert events_in_the_file(path) == ENOUGH


class Moving:
    """In place of the lock: held by somebody who moves the log, until let go of."""

    def __init__(self) -> None:
        self.asked, self.over = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        assert self.over.wait(30)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """It is free from now on."""


class Lying(sqlite3.Connection):
    """Once, it tells a transaction to have failed that has happened."""

    lies = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *parameters)
        if Lying.lies and ends_a_transaction(self, sql):
            Lying.lies = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return cursor


class LyingFile(OwnConnections):
    factory = Lying


async def test_who_looks_whether_it_happened_waits_while_the_log_is_moved(path: Path) -> None:
    """To know that it is on the disk the log is moved, and SQLite lets only one do so: who comes
    second could not tell, and would tell that it has failed."""
    store = SqliteStore(LyingFile(path))
    head = await made(store, "s")
    moving = Moving()
    store._checkpointer.moving = moving  # type: ignore[assignment]
    told = anyio.Event()

    async def write() -> None:
        await commit_one(store, one(head, 0, SMALL))
        told.set()

    async with anyio.create_task_group() as group:
        Lying.lies = True
        group.start_soon(write)
        await wait_for(moving.asked)
        assert not told.is_set()
        moving.over.set()
    assert told.is_set()
    assert len(await store.events("s")) == 1
    await store.aclose()
