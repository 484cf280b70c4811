"""Copies a store while it is in use, and makes stores from such copies.

A backup is one complete and checked file, or nothing: it is written under another name and renamed
at the end. It contains the store as it was when the backup began, whatever is written meanwhile.
Neither a backup nor a restore ever overwrites anything.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bargein.cancel import Token, current_token
from bargein.contracts.store import StoreFailed
from bargein.errors import UserError
from bargein.stores.sqlite.faults import DAMAGED, code_of, explain
from bargein.stores.sqlite.file import StoreFile
from bargein.stores.sqlite.schema import check_known

SLICE_PAGES = 256
LOOK_EVERY_STEPS = 10_000


def write_backup(file: StoreFile, destination: Path) -> None:
    """Copy an open store. A cancel of the current token stops it at the next slice."""
    with reserved(destination) as part:
        try:
            with closing(file.connect_to_read()) as source:
                # One read transaction for everything, so that the copy shows one moment. Otherwise
                # each commit in between would make SQLite start again.
                source.execute("BEGIN")
                source.execute("SELECT stamp FROM store").fetchone()
                _copy(source, file.path, part)
        except sqlite3.Error as error:
            raise _explain_copy(error, file.path, destination) from error


def restore_backup(source: str | Path, destination: str | Path) -> None:
    """Check a backup and make a store from it. Never overwrites an existing store.

    Use it only while nothing has the destination open.
    """
    source, destination = Path(source).absolute(), Path(destination).absolute()
    if not source.is_file():
        raise UserError(f"there is no backup {source}; give the path of a backup file")
    for left in (f"{destination}-wal", f"{destination}-shm"):
        if Path(left).exists():
            raise UserError(
                f"{left} belongs to an earlier store in this place: first move both away"
            )
    with reserved(destination) as part:
        try:
            uri = f"{source.as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
                _check_source(connection, source)
                _copy(connection, source, part)
        except sqlite3.Error as error:
            raise _explain_copy(error, source, destination) from error


def _check_source(connection: sqlite3.Connection, source: Path) -> None:
    try:
        check_known(connection)
    except UserError as error:
        raise UserError(f"{source} {error}") from error


def copy_database(
    source: sqlite3.Connection, name: Path, part: Path, tell: Callable[[int, int], object]
) -> None:
    """Copy the database that `source` reads, at `name`, into the empty file `part`, and check the
    copy. Calls `tell` with the number of pages done and of all pages."""
    try:
        _copy(source, name, part, tell)
    except sqlite3.Error as error:
        raise _explain_copy(error, name, part) from error


def _copy(
    source: sqlite3.Connection,
    name: Path,
    part: Path,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    token = current_token()

    def progress(status: int, remaining: int, total: int) -> None:
        _check(token)
        tell(total - remaining, total)

    with closing(sqlite3.connect(part, isolation_level=None)) as target:
        # If this process dies half-way, the partial copy is useless anyway: sync once, at the end.
        target.execute("PRAGMA synchronous = OFF")
        source.backup(target, pages=SLICE_PAGES, progress=progress, sleep=0)
        # Without the log that a store has: one file, readable where nothing can be written.
        target.execute("PRAGMA journal_mode = DELETE")
        target.set_progress_handler(lambda: _is_over(token), LOOK_EVERY_STEPS)
        (verdict,) = target.execute("PRAGMA quick_check(1)").fetchone()
        _check(token)
    if verdict != "ok":
        raise StoreFailed(
            f"{name} is damaged ({verdict}), so no copy of it was made. Keep it, and restore an "
            "older backup",
            retryable=False,
        )


def _check(token: Token | None) -> None:
    if token is not None:
        token.check()


def _is_over(token: Token | None) -> int:
    return int(token is not None and token.cancelled)


@contextmanager
def reserved(destination: Path) -> Iterator[Path]:
    """Yield a file to write to, and rename it to `destination` if the block succeeds. The name is
    reserved first, so that two callers cannot both find it free."""
    part = destination.with_name(f"{destination.name}.part")
    try:
        os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError as error:
        raise UserError(f"{destination} exists: choose another name") from error
    except OSError as error:
        raise UserError(f"{destination} cannot be created: {error.strerror}") from error
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        yield part
        _sync(part)
        part.replace(destination)
        _sync(destination.parent)
    except BaseException:
        for left in (part, part.with_name(f"{part.name}-journal"), destination):
            left.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain_copy(error: sqlite3.Error, source: Path, destination: Path) -> Exception:
    """Explain an error of a copy: damage is in the source, anything else in the destination."""
    explained = explain(error, source if code_of(error) in DAMAGED else destination)
    if isinstance(explained, StoreFailed):
        return StoreFailed(f"no copy of {source} was made. {explained}", retryable=False)
    return explained
