"""The stores that the shipped conformance suite checks here."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from bargein.contracts.store import Store
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore
from bargein.stores.sqlite.backup import restore_backup
from bargein.stores.sqlite.large_sql import sweep_values
from bargein.stores.sqlite.search_sql import index_some
from bargein.stores.sqlite.session_sql import sweep
from bargein.testing.store_conformance import StoreUnderTest
from tests.stores.indexes import check_index


class MemoryStores(StoreUnderTest):
    kind: type[MemoryStore] = MemoryStore
    first: MemoryStore | None = None

    async def open(self, owner: str) -> Store:
        if self.first is None:
            self.first = self.kind(owner, shared=True)
            return self.first
        return self.first.beside(owner)

    async def open_backup(self, path: Path, owner: str) -> Store:
        return MemoryStore.from_backup(str(path))

    async def bury(self, owner: str) -> None:
        assert self.first is not None
        self.first.bury(owner)

    async def damage_event(self, session: str, seq: int, body: bytes) -> None:
        assert self.first is not None
        events = self.first._disk.kept[session].events
        events[seq - 1] = events[seq - 1][0], body


class SqliteStores(StoreUnderTest):
    full_text = True

    async def open(self, owner: str) -> Store:
        path = self.directory / "store.db"
        return await SqliteStore.open(path, owner=owner, full_text=self.full_text)

    async def open_backup(self, path: Path, owner: str) -> Store:
        restore_backup(path, self.directory / "restored.db")
        return await SqliteStore.open(self.directory / "restored.db", owner=owner)

    async def damage_event(self, session: str, seq: int, body: bytes) -> None:
        with closing(sqlite3.connect(self.directory / "store.db", isolation_level=None)) as file:
            file.execute("DROP TRIGGER IF EXISTS events_are_not_changed")
            file.execute(
                """UPDATE events SET body = ? WHERE seq = ?
                AND session = (SELECT number FROM sessions WHERE id = ?)""",
                (body, seq, session),
            )


class SqliteWithoutFullText(SqliteStores):
    full_text = False


class TidiedSqlite(SqliteStores):
    """Sweeps and indexes where the random operations say so, and opens every third time without
    FTS5."""

    opened = tidied = 0

    async def open(self, owner: str) -> Store:
        self.opened += 1
        self.full_text = self.opened % 3 != 2
        return await super().open(owner)

    async def tidy(self, store: Store, *, whole: bool) -> None:
        assert isinstance(store, SqliteStore)
        self.tidied += 1
        if not whole:
            await _tidy(store, swept=self.tidied % 2 == 0)
            return
        if not store._file.full_text:
            return
        while await _tidy(store, swept=False):
            await check_index(store)


async def _tidy(store: SqliteStore, *, swept: bool) -> bool:
    """A slice of the work that the writer does at leisure."""

    def work(connection: sqlite3.Connection) -> bool:
        full_text = store._file.full_text
        if swept and (sweep(connection, full_text=full_text) or sweep_values(connection, [])):
            return True
        return full_text and index_some(connection)

    return await store._writer.run(work)
