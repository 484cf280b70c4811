"""The rows of channels in a small SQLite file of their own."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from bargein.channels.rows import Row
from bargein.stores.sqlite.small_file import SmallFile

FILE = "channels.sqlite3"

_CREATE = """
CREATE TABLE rows (
    kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
"""
MIGRATIONS = (_CREATE,)
VERSION = len(MIGRATIONS)
_PUT = "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)"


class SqliteRows(SmallFile):
    MIGRATIONS = MIGRATIONS

    @classmethod
    def of_home(cls, home: Path) -> "SqliteRows":
        return cls.open(home / FILE)

    async def get(self, kind: str, key: str) -> bytes | None:
        found = self._read("SELECT body FROM rows WHERE kind = ? AND key = ?", kind, key)
        return bytes(found[0][0]) if found else None

    async def scan(self, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        asked = "SELECT key, body FROM rows WHERE kind = ? AND key >= ? AND key < ? ORDER BY key"
        found = self._read(asked, kind, prefix, prefix + "\U0010ffff")
        return [(key, bytes(body)) for key, body in found]

    async def put(self, rows: Sequence[Row]) -> None:
        now = time.time()

        def work(connection: sqlite3.Connection) -> None:
            for kind, key, body in rows:
                if body is None:
                    connection.execute("DELETE FROM rows WHERE kind = ? AND key = ?", (kind, key))
                else:
                    connection.execute(_PUT, (kind, key, body, now))

        await self.run(work)

    async def forget(self, kind: str, before: float) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM rows WHERE kind = ? AND at < ?", (kind, before))

        await self.run(work)
