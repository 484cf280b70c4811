"""Errors of SQLite and the disk as sentences that name the file and say what to do.

A mistake that shows when the store is opened (no directory, not a store, a newer one) is a
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
    """The primary code of a SQLite error; 0 if the error is not SQLite's."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explain(error: sqlite3.Error, path: Path) -> BargeinError:
    """The same sentence for every operation: what was being written counts as not saved."""
    detail = getattr(error, "sqlite_errorname", "") or type(error).__name__
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreFailed(
            f"{path}: the disk is full, so nothing new can be saved; what was saved before is "
            "safe. Free some space: no restart is needed",
            retryable=True,
        )
    if code in BUSY:
        return StoreFailed(
            f"{path} is locked by another program ({detail}). Close whatever else has it open, "
            "such as a database browser or a second Bargein",
            retryable=True,
        )
    if code in DAMAGED:
        return StoreFailed(
            f"{path} is damaged or not a database ({detail}: {error}). Keep a copy of it and of "
            f"{path.name}-wal, then restore a backup; it was not changed",
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
        return StoreFailed(f"{path}: too large to be saved ({error})", retryable=False)
    return StoreFailed(
        f"{path}: the disk or the database failed ({detail}: {error}). What was saved before is "
        "safe. Look at the free space, the quota and the health of the disk",
        retryable=True,
    )


def check_place(path: Path) -> None:
    """Refuse a path where no store can be. SQLite would say so less clearly and leave files."""
    if path.is_dir():
        raise UserError(f"{path} is a directory: give the name of a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no directory {path.parent}. Make it, or name another")
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        raise _refused(f"{path} cannot be written: its disk is read-only")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _refused(f"{path} cannot be written: this user may not make files in its directory")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise _refused(f"{path} may not be read and written by this user")


def _refused(what: str) -> StoreFailed:
    return StoreFailed(f"{what}. Set that right, or choose another data directory", retryable=False)


def _why_not_opened(path: Path, detail: str) -> BargeinError:
    try:
        check_place(path)
    except BargeinError as error:
        return error
    return _refused(f"{path} cannot be opened ({detail})")


def replaced(path: Path) -> StoreFailed:
    return StoreFailed(
        f"{path} was moved, deleted or replaced while it was in use, so nothing new is saved. Put "
        "it back, or restart Bargein to go on with what is there now",
        retryable=False,
    )


def closed(path: Path) -> StoreFailed:
    return StoreFailed(f"{path}: the store is closed", retryable=False)
