"""Reads a store where nothing may be written: a backup, a read-only disk, the store of another
user.

To read a file that has a log (`-wal`), SQLite needs a third file (`-shm`). So:

- If both exist, the log is read too, even while another process writes it.
- If there is no log or an empty one, no process has the file open, and everything is in the file.
  It is read without SQLite's locks and checked again after each read: a process that started to
  write meanwhile has changed the file or its log.
- If there is a log that cannot be read, opening fails: answers would miss what is in the log.
"""

import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from bargein.contracts.event import Recorded
from bargein.contracts.store import Found, SessionHead, StoreFailed
from bargein.errors import UserError
from bargein.stores.sqlite import search_sql, session_sql
from bargein.stores.sqlite.faults import code_of
from bargein.stores.sqlite.file import StoreFile
from bargein.stores.sqlite.schema import check_known, let_older_be_read
from bargein.stores.sqlite.worker import ReadWorker

T = TypeVar("T")

State = tuple[int, int, int, int]


def may_be_written(path: Path) -> bool:
    """Whether this user may open the store at `path` for writing."""
    return os.access(path.parent, os.W_OK | os.X_OK) and os.access(path, os.R_OK | os.W_OK)


class ReadOnlyStore:
    """The reading operations of a store."""

    def __init__(self, path: Path) -> None:
        self._file = _File(path)
        self._reader = ReadWorker(self._file, "reader")

    async def head(self, session: str) -> SessionHead | None:
        return await self._read(partial(session_sql.head, session=session))

    async def events(self, session: str, *, limit: int | None = None) -> list[Recorded]:
        return await self._read(partial(session_sql.events, session=session, after=0, limit=limit))

    async def sessions(self, *, limit: int) -> list[SessionHead]:
        return await self._read(partial(session_sql.sessions, limit=limit, before=None, under=None))

    async def search(self, words: str) -> list[Found]:
        """Search by reading all texts: only a writer knows whether the index can be used."""
        return await self._read(
            partial(search_sql.search, words=words, limit=50, roots=None, full_text=False)
        )

    async def aclose(self) -> None:
        self._reader.end_soon()
        await self._reader.wait_ended()

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def read(connection: sqlite3.Connection) -> T:
            value = work(connection)
            self._file.check_identity()
            return value

        return await self._reader.run(read)


class _File(StoreFile):
    """`_state_before` is set if SQLite itself cannot notice that another process writes."""

    _state_before: State | None = None

    def connect_to_read(self) -> sqlite3.Connection:
        if not os.access(self.path, os.R_OK):
            raise UserError(
                f"this user may not read {self.path}. Correct its permissions, or set BARGEIN_HOME "
                "to another directory"
            )
        try:
            return self._checked(self._connect("ro"))
        except sqlite3.OperationalError as error:
            if code_of(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            self._state_before = self._state()
        if self._state_before[-1]:
            raise UserError(
                f"{self.path} cannot be read where it is: part of it is still in "
                f"{self.path.name}-wal, which SQLite can read only in a writable directory. Copy "
                f"{self.path.parent} to one, and set BARGEIN_HOME to the copy"
            )
        return self._checked(self._connect("ro&immutable=1"))

    def check_identity(self) -> None:
        if self._state_before is not None and self._state_before != self._state():
            raise StoreFailed(
                f"another process wrote to {self.path} while it was read. Try again", retryable=True
            )

    def _checked(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        try:
            check_known(connection)
            let_older_be_read(connection)
        except UserError as error:
            connection.close()
            raise UserError(f"{self.path} {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _state(self) -> State:
        """Return values that change when another process writes. The last is the log's size."""
        status = os.stat(self.path)
        try:
            log_bytes = os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            log_bytes = 0
        return status.st_ino, status.st_mtime_ns, status.st_size, log_bytes
