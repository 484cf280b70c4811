"""A store that is only looked at, where nothing may be written: a backup, a read-only disk, the
store of another user.

SQLite reads a file that has a log (`-wal`) with the help of a third one (`-shm`). So:

- Both are there: all of the log counts, also while somebody writes it.
- There is no log, or an empty one: nobody has the file open, and all is in it. It is read as it is,
  without SQLite's locks. After each read it is looked at again: whoever began to write meanwhile
  has changed it or its log.
- There is a log and nothing to read it with: refused. What is in it would be passed over.
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
from bargein.stores import rows
from bargein.stores.faults import code_of
from bargein.stores.file import StoreFile
from bargein.stores.reader import Reader
from bargein.stores.schema import check_known

T = TypeVar("T")

State = tuple[int, int, int, int]


def may_be_written(path: Path) -> bool:
    """Whether this user may do with the store at `path` what a store needs."""
    return os.access(path.parent, os.W_OK | os.X_OK) and os.access(path, os.R_OK | os.W_OK)


class StoreLookedAt:
    """The part of a store that reads, for programs that come, look and go."""

    def __init__(self, path: Path) -> None:
        self._file = _File(path)
        self._reader = Reader(self._file, "reader")

    async def head(self, session: str) -> SessionHead | None:
        return await self._read(partial(rows.head, session=session))

    async def events(self, session: str, *, limit: int | None = None) -> list[Recorded]:
        return await self._read(partial(rows.events, session=session, after=0, limit=limit))

    async def sessions(self, *, limit: int) -> list[SessionHead]:
        return await self._read(partial(rows.sessions, limit=limit, before=None, under=None))

    async def search(self, words: str) -> list[Found]:
        """Reads all texts: whether the index can be used is for a writer to say."""
        return await self._read(
            partial(rows.search, words=words, limit=50, roots=None, full_text=False)
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
    """`_as_it_was` is there if SQLite itself does not notice when somebody writes."""

    _as_it_was: State | None = None

    def connect_to_read(self) -> sqlite3.Connection:
        if not os.access(self.path, os.R_OK):
            raise UserError(
                f"{self.path} may not be read by this user. Set its permissions right, or set "
                "BARGEIN_HOME to another directory"
            )
        try:
            return self._checked(self._connect("ro"))
        except sqlite3.OperationalError as error:
            if code_of(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            self._as_it_was = self._state()
        if self._as_it_was[-1]:
            raise UserError(
                f"{self.path} cannot be read where it is: a part of it is still in "
                f"{self.path.name}-wal, and SQLite reads that only where it may write. Copy "
                f"{self.path.parent} to where you may, and set BARGEIN_HOME to the copy"
            )
        return self._checked(self._connect("ro&immutable=1"))

    def check_identity(self) -> None:
        if self._as_it_was is not None and self._as_it_was != self._state():
            raise StoreFailed(
                f"{self.path} has been written to while it was read. Try again", retryable=True
            )

    def _checked(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        try:
            check_known(connection)
        except UserError as error:
            connection.close()
            raise UserError(f"{self.path} {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _state(self) -> State:
        """What changes when somebody writes. Last, how much is in the log."""
        status = os.stat(self.path)
        try:
            log_bytes = os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            log_bytes = 0
        return status.st_ino, status.st_mtime_ns, status.st_size, log_bytes
