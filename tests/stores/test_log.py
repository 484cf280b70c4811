"""SQLite's log is moved into the file when nobody waits, or by a commit if somebody always does."""

# ruff: noqa: ASYNC240  (that a test reads a file holds nobody up)

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bargein.contracts.store import SessionHead, commit_one
from bargein.stores.sqlite import SqliteStore
from bargein.stores.sqlite.file import LOG_PAGES_MAX
from bargein.stores.sqlite.writer import LOG_PAGES, MOVE_LOG, PAGES_ALONE
from bargein.testing.store_conformance.scene import looked, made
from tests.stores.files import OwnConnections
from tests.stores.scenes import one

pytestmark = pytest.mark.anyio

FRAME_BYTES = 4096 + 24
ENOUGH = LOG_PAGES // PAGES_ALONE
"""So many commits, one after the other, that the log is to be moved."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


class Gate:
    """Where moving the log waits, and may fail once."""

    def __init__(self, *, fails_with: Exception | None = None) -> None:
        self.reached, self.opened, self.moved = (threading.Event() for _ in range(3))
        self.fails_with = fails_with

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(30)
        failure, self.fails_with = self.fails_with, None
        if failure is not None:
            raise failure


async def store_with(path: Path, gate: Gate) -> SqliteStore:
    # So that the tables are in the file itself.
    await (await SqliteStore.open(path)).aclose()

    class Gated(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == MOVE_LOG:
                gate.pass_through()
            cursor = super().execute(sql, *parameters)
            if sql == MOVE_LOG:
                gate.moved.set()
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


async def test_it_is_moved_after_those_who_wait_were_told(path: Path) -> None:
    gate = Gate()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, 10)
    assert not gate.reached.is_set()
    # The next one makes it too long, and returns though nothing can be moved.
    store._writer._log_pages = LOG_PAGES - 1
    await write_on(store, head, 1)
    await wait_for(gate.reached)
    assert events_in_the_file(path) == 0
    assert len(await store.events("s")) == 11
    gate.opened.set()
    await wait_for(gate.moved)
    assert events_in_the_file(path) == 11
    await store.aclose()


@pytest.mark.parametrize("failure", [sqlite3.OperationalError("disk I/O error"), MemoryError()])
async def test_if_it_fails_no_commit_does_and_it_is_tried_again(
    path: Path, failure: Exception
) -> None:
    gate = Gate(fails_with=failure)
    gate.opened.set()
    store = await store_with(path, gate)
    head = await made(store, "s")
    await write_on(store, head, ENOUGH)
    await wait_for(gate.reached)
    await write_on(store, head, ENOUGH)
    await wait_for(gate.moved)
    assert len(await store.events("s")) == 2 * ENOUGH
    await store.aclose()
    assert events_in_the_file(path) == 2 * ENOUGH


async def test_if_there_is_never_leisure_a_commit_moves_it(path: Path) -> None:
    gate = Gate()
    store = await store_with(path, gate)
    head = await made(store, "s")
    # Counted as small ones, so that the writer does not take itself to be behind.
    store._writer._log_pages = -(10**9)
    await write_on(store, head, 3 * LOG_PAGES_MAX // 25, size=25 * 4096)
    assert Path(f"{path}-wal").stat().st_size < (LOG_PAGES_MAX + 100) * FRAME_BYTES
    assert not gate.reached.is_set()
    await store.aclose()
