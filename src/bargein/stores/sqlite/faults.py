"""Turns errors of SQLite and the disk into sentences that name the file and say what to do.

A mistake found when the store is opened (no directory, not a store, a newer store) is a
`UserError`. Anything that can also happen later is `StoreFailed`.
"""

import os
import sqlite3
from pathlib import Path

from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, UserError

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def code_of(error: BaseException) -> int:
    """Return the primary code of a SQLite error; 0 for any other error."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explain(error: sqlite3.Error, path: Path) -> BargeinError:
    """Explain an error, in the same words for every operation. The current write counts as not
    saved."""
    detail = getattr(error, "sqlite_errorname", "") or type(error).__name__
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreFailed(
            f"{path}: the disk is full, so nothing new can be saved; everything saved before is "
            "safe. Free some space: no restart is needed",
            retryable=True,
        )
    if code in BUSY:
        return StoreFailed(
            f"another program has locked {path} ({detail}). Close it; it may be a database browser "
            "or a second Bargein",
            retryable=True,
        )
    if code in DAMAGED:
        return StoreFailed(
            f"{path} is damaged or not a database ({detail}: {error}). It was not changed. Keep a "
            f"copy of it and of {path.name}-wal, then restore a backup",
            retryable=False,
        )
    if code == sqlite3.SQLITE_READONLY:
        return StoreFailed(
            f"{path} cannot be written ({detail}). Make the file, its directory and its disk "
            "writable for this user, or choose another data directory",
            retryable=False,
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return _why_not_opened(path, detail)
    if code == sqlite3.SQLITE_TOOBIG:
        return StoreFailed(f"{path}: a value is too large to be saved ({error})", retryable=False)
    return StoreFailed(
        f"{path}: the disk or the database failed ({detail}: {error}). Everything saved before is "
        "safe. Check the free space, the quota and the health of the disk",
        retryable=True,
    )


def check_place(path: Path) -> None:
    """Refuse a path where no store can be. SQLite's own error is less clear, and it leaves
    files."""
    if path.is_dir():
        raise UserError(f"{path} is a directory: give the name of a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no directory {path.parent}. Make it, or name another")
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        raise _refused(f"{path} cannot be written: its disk is read-only")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _refused(f"{path} cannot be written: this user may not make files in its directory")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise _refused(f"this user may not read and write {path}")


def _refused(what: str) -> StoreFailed:
    return StoreFailed(f"{what}. Correct that, or choose another data directory", retryable=False)


def _why_not_opened(path: Path, detail: str) -> BargeinError:
    try:
        check_place(path)
    except BargeinError as error:
        return error
    return _refused(f"{path} cannot be opened ({detail})")


def replaced(path: Path) -> StoreFailed:
    return StoreFailed(
        f"{path} was moved, deleted or replaced while it was in use, so nothing new is saved. Put "
        "it back, or restart Bargein to continue with the file that is there now",
        retryable=False,
    )


def closed(path: Path) -> StoreFailed:
    return StoreFailed(f"{path}: the store is closed", retryable=False)
