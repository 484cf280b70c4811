"""Owners in a SQLite file: named in every session, also in files from before they were."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bargein.contracts.store import StaleEpoch, commit_one
from bargein.stores.sqlite import SqliteStore, schema
from bargein.stores.sqlite.read_only import ReadOnlyStore
from bargein.testing.store_conformance.scene import claimed, looked, made, said, step

pytestmark = pytest.mark.anyio

BEFORE_OWNERS = schema.MIGRATIONS[: schema.ADDED_OWNER - 1]


def write_old_file(path: Path) -> None:
    """A file with one session, as the program before owners left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.migrate(connection, BEFORE_OWNERS)
        connection.execute("UPDATE store SET epoch = 7")
        connection.execute(
            "INSERT INTO sessions VALUES (1, 's', NULL, 7, 0, 0, 1, 1.0, 2.0, 'old', x'')"
        )


def columns(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(sessions)").fetchall()]


async def test_every_start_is_an_owner_of_its_own(tmp_path: Path) -> None:
    first = await SqliteStore.open(tmp_path / "store.db")
    head = await made(first, "s")
    assert head.owner == first.owner != ""
    await first.aclose()
    second = await SqliteStore.open(tmp_path / "store.db")
    assert second.owner != first.owner
    assert (await looked(second, "s")).owner == first.owner
    assert (await claimed(second, "s")).owner == second.owner
    await second.aclose()


async def test_sessions_from_before_owners_are_free(tmp_path: Path) -> None:
    write_old_file(tmp_path / "store.db")
    store = await SqliteStore.open(tmp_path / "store.db", owner="new")
    head = await looked(store, "s")
    assert (head.owner, head.epoch, head.title) == ("", 7, "old")
    assert await store.unfinished() == ["s"]
    now = await claimed(store, "s")
    assert (now.owner, now.epoch) == ("new", 8)
    with pytest.raises(StaleEpoch):
        await commit_one(store, step(head, said(1)))
    await commit_one(store, step(now, said(1)))
    await store.aclose()


async def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    write_old_file(path)
    before = columns(path)
    added = schema.MIGRATIONS[schema.ADDED_OWNER - 1]
    broken = schema.Migration(added.name, (*added.statements, "CREATE TABLE store (y)"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            schema.migrate(connection, (*BEFORE_OWNERS, broken))
        assert schema.version_of(connection) == len(BEFORE_OWNERS)
        # The older program still opens it, and this one can upgrade it.
        schema.migrate(connection, BEFORE_OWNERS)
    assert columns(path) == before
    await (await SqliteStore.open(path)).aclose()
    assert columns(path) == [*before, "owner"]


async def test_an_older_file_can_be_read_where_it_cannot_be_upgraded(tmp_path: Path) -> None:
    write_old_file(tmp_path / "store.db")
    before = (tmp_path / "store.db").read_bytes()
    store = ReadOnlyStore(tmp_path / "store.db")
    (head,) = await store.sessions(limit=9)
    assert (head.id, head.owner) == ("s", "")
    assert await store.head("s") == head
    assert await store.events("s") == []
    assert await store.search("anything") == []
    await store.aclose()
    assert (tmp_path / "store.db").read_bytes() == before
