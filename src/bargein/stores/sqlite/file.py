"""The file of a store: connects to it, and checks that it is still the same file.

The program opens this file only through SQLite. Closing any other descriptor of it would drop the
locks that SQLite holds on it for the whole process.
"""

import os
import sqlite3
from pathlib import Path

from bargein.errors import UserError
from bargein.stores.sqlite.faults import check_place, replaced
from bargein.stores.sqlite.schema import SQLITE_NEEDED, migrate
from bargein.stores.sqlite.search_sql import WORDS, has_fts5

BUSY_S = 5.0
WAL_BYTES_KEPT = 16 * 2**20
LOG_PAGES_MAX = 2_000
"""A commit itself moves a longer log: then the writer had no leisure to do it."""

Identity = tuple[int, int]


class StoreFile:
    """`full_text=False` behaves as if SQLite was built without FTS5."""

    def __init__(self, path: Path, *, busy_s: float = BUSY_S, full_text: bool = True) -> None:
        self.path = path.absolute()
        self.busy_s = busy_s
        self.full_text = full_text
        # As text, because these are used before every transaction.
        self._name = str(self.path)
        self._wal = f"{self.path}-wal"
        self._identity: Identity | None = None

    def connect_to_write(self) -> sqlite3.Connection:
        """Connect for writing. The first call makes and migrates the file; later calls raise if the
        file was replaced."""
        if self._identity is None:
            _check_sqlite()
            check_place(self.path)
            self._make()
        else:
            self.check_identity()
        connection = self._connect("rw")
        try:
            self._prepare_to_write(connection)
        except BaseException:
            connection.close()
            raise
        self._identity = self._identity or _identity(self._name)
        return connection

    def connect_to_read(self) -> sqlite3.Connection:
        self.check_identity()
        connection = self._connect("rw")
        connection.execute("PRAGMA query_only = ON")
        return connection

    def check_identity(self) -> None:
        """Raise if the file was deleted or replaced. SQLite would write into the old file."""
        if _identity(self._name) != self._identity:
            raise replaced(self.path)

    def check_whole(self) -> None:
        """Raise if the file, or the log beside it with the last commits, was deleted or
        replaced."""
        self.check_identity()
        if _identity(self._wal) is None:
            raise replaced(self.path)

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def _make(self) -> None:
        """Make the file readable for its owner only: it contains what people told their agents.
        SQLite gives its other files the same mode."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be created: {error.strerror}. Correct the permissions, or "
                "choose another data directory"
            ) from error

    def _prepare_to_write(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise UserError(
                f"{self.path}: SQLite cannot keep its log on this file system ({mode} instead of "
                "wal). Choose a data directory on a local disk"
            )
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",
            "checkpoint_fullfsync = ON",
            "recursive_triggers = ON",
            "trusted_schema = OFF",
            # SQLite buffers the rows of `commit_rows`. By default it would put large ones into
            # temporary files, on a disk that nobody chose and that may be full.
            "temp_store = MEMORY",
            f"journal_size_limit = {WAL_BYTES_KEPT}",
            f"wal_autocheckpoint = {LOG_PAGES_MAX}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        try:
            migrate(connection)
        except UserError as error:
            raise UserError(f"{self.path} {error}") from error
        self.full_text = self.full_text and has_fts5(connection)
        if self.full_text:
            connection.execute(WORDS)


def _identity(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < SQLITE_NEEDED:
        needed = ".".join(map(str, SQLITE_NEEDED[:2]))
        raise UserError(
            f"this Python has SQLite {sqlite3.sqlite_version}; Bargein needs {needed} or later"
        )
