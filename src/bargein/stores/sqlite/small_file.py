"""A small SQLite file beside the sessions: one thread writes, callers read in their own.

What is asked for at the same time shares a transaction, and each job has a savepoint of its own. A
write is on the disk when it is awaited. Reads see what any process has written, without a cache: a
few microseconds on a page that is in memory.
"""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, ClassVar, Self, TypeVar

from bargein.contracts.store import StoreFailed
from bargein.errors import UserError
from bargein.stores.sqlite.faults import check_place, closed, explain
from bargein.stores.sqlite.worker import AnyStep, Job, Single, Work, announce

T = TypeVar("T")

BUSY_S = 5.0
BATCH_MAX = 512


class SmallFile:
    """Made by `open`. For one event loop. `MIGRATIONS` of a subclass make its tables; one that was
    ever released is never changed, the next change is a new one at the end. A file that needs some
    gets all of them in one transaction, and `user_version` says how many it has."""

    MIGRATIONS: ClassVar[tuple[str, ...]]

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        _make(self.path, self.MIGRATIONS)
        self._look = _connect(self.path)
        self._connection: sqlite3.Connection | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._work, name=f"bargein-{path.stem}", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or make it, for its owner alone."""
        check_place(path)
        try:
            return cls(path)
        except sqlite3.Error as error:
            raise explain(error, path) from error

    def run(self, work: Work[T]) -> Single[T]:
        """Queue the work. Await the returned job to know that it is durable."""
        if self._closed:
            raise closed(self.path)
        job = Single(work)
        self._queue.put(job)
        return job

    def _read(self, statement: str, *values: str | float) -> list[tuple[Any, ...]]:
        try:
            return self._look.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def close(self) -> None:
        """What was asked for is done first. Bounded by the disk's own time-outs."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join(BUSY_S)
            self._look.close()

    # --- in the thread

    def _work(self) -> None:
        going_on = True
        while going_on:
            batch: list[Job] = []
            try:
                while going_on and len(batch) < BATCH_MAX:
                    job = self._queue.get_nowait() if batch else self._queue.get()
                    if job is None:
                        going_on = False
                    else:
                        batch.append(job)
            except Empty:
                pass
            if batch:
                self._serve(batch)
        self._drop()

    def _serve(self, batch: list[Job]) -> None:
        steps = [step for job in batch for step in job.steps]
        try:
            if self._connection is None:
                self._connection = _connect(self.path)
            self._connection.execute("BEGIN IMMEDIATE")
            for step in steps:
                _apply(step, self._connection)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._drop()
            for step in steps:
                step.value = None
                step.error = explain(error, self.path)
        announce(batch)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _apply(step: AnyStep, connection: sqlite3.Connection) -> None:
    connection.execute("SAVEPOINT step")
    try:
        step.value = step.work(connection)
    except sqlite3.OperationalError:
        raise  # the disk's: it is so for all
    except Exception as error:  # boundary: its caller gets the error; the others are served
        step.error = error
        connection.execute("ROLLBACK TO step")
    connection.execute("RELEASE step")


def _make(path: Path, migrations: Sequence[str]) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreFailed(f"{path} cannot be made: {error.strerror}", retryable=False) from error
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            raise UserError(
                f"{path} was made by a newer Bargein (format {version}; this one knows "
                f"{len(migrations)}): use that one, or another data directory"
            )
        for migration in migrations[version:]:
            for statement in statements(migration):
                connection.execute(statement)
        if version < len(migrations):
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    finally:
        connection.close()


def statements(script: str) -> list[str]:
    """`executescript` would end the transaction."""
    found, statement = [], ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            found.append(statement)
            statement = ""
    return found


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """How many migrations the file has; 0 for an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and not version:
        raise UserError("is a database of another program: choose another file")
    return int(version)
