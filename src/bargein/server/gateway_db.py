"""The gateway's own SQLite file: tokens, owners and members, kept answers, the audit log.

One thread writes. Jobs that come together share a transaction, each with a savepoint of its own.
When the await of a job returns, its write is on the disk; a cancel of the await does not undo it.
`token` reads in the caller's thread without a cache. That takes a few microseconds, and a token
that another process revokes is invalid from the next request on. Audit entries can be added and
neither changed nor removed before their time: triggers in the file refuse it.
"""

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import msgspec

from bargein.contracts.store import StoreFailed
from bargein.errors import UserError
from bargein.stores.sqlite.faults import check_place, closed, explain
from bargein.stores.sqlite.worker import AnyStep, Job, Single, Work, announce

T = TypeVar("T")

FILE = "gateway.sqlite3"
BUSY_S = 5.0
BATCH_MAX = 512

MIGRATIONS = (
    """
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, principal TEXT NOT NULL, hash BLOB NOT NULL, created_at REAL NOT NULL,
    expires_at REAL, revoked_at REAL, read_only INTEGER NOT NULL, admin INTEGER NOT NULL,
    sessions TEXT, note TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    session TEXT NOT NULL, principal TEXT NOT NULL, role TEXT NOT NULL,
    PRIMARY KEY (session, principal)
) STRICT, WITHOUT ROWID;
CREATE TABLE replies (
    principal TEXT NOT NULL, key TEXT NOT NULL, fingerprint BLOB NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX replies_by_age ON replies (at);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, principal TEXT NOT NULL,
    token TEXT NOT NULL, address TEXT NOT NULL, action TEXT NOT NULL, session TEXT NOT NULL,
    target TEXT NOT NULL, status INTEGER NOT NULL, detail TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
""",
    # Before this, audit entries were kept for ever; now those older than `audit_before` may go.
    # And members were not asked; what was shared before counts as accepted.
    """
CREATE TABLE consents (
    session TEXT NOT NULL, principal TEXT NOT NULL, consent TEXT NOT NULL,
    PRIMARY KEY (session, principal)
) STRICT, WITHOUT ROWID;
INSERT INTO consents SELECT session, principal, 'accepted' FROM members;
CREATE TABLE retention (
    one INTEGER PRIMARY KEY CHECK (one = 1), audit_before REAL NOT NULL
) STRICT;
INSERT INTO retention VALUES (1, 0);
DROP TRIGGER audit_is_not_shortened;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
WHEN old.at >= (SELECT audit_before FROM retention WHERE one = 1)
BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
""",
)
"""A released migration is never changed; a new change is a new one at the end. A file gets all that
it lacks in one transaction. `user_version` says how many it has."""
VERSION = len(MIGRATIONS)


class TokenRow(msgspec.Struct, frozen=True):
    """`sessions` is None for a token that is not limited to some sessions."""

    id: str
    principal: str
    hash: bytes
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    read_only: bool
    admin: bool
    sessions: tuple[str, ...] | None
    note: str

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


TOKEN_COLUMNS = (
    "id, principal, hash, created_at, expires_at, revoked_at, read_only, admin, sessions, note"
)

VALID_AMONG = """
SELECT id FROM tokens WHERE id IN (SELECT value FROM json_each(?))
    AND revoked_at IS NULL AND (expires_at IS NULL OR ? < expires_at)
"""


class GatewayDb:
    """Made with `open`. For one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        _make(self.path)
        self._look = _connect(self.path)
        self._connection: sqlite3.Connection | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._work, name="bargein-gateway-db", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path) -> "GatewayDb":
        """Opens the file, or makes it with access for its owner only."""
        check_place(path)
        try:
            return cls(path)
        except sqlite3.Error as error:
            raise explain(error, path) from error

    def run(self, work: Work[T]) -> Single[T]:
        """Queues work for the writing thread. Await the job for its result and its durability."""
        if self._closed:
            raise closed(self.path)
        job = Single(work)
        self._queue.put(job)
        return job

    def token(self, token_id: str) -> TokenRow | None:
        rows = self._read(f"SELECT {TOKEN_COLUMNS} FROM tokens WHERE id = ?", token_id)
        return _token(rows[0]) if rows else None

    def valid_among(self, token_ids: Iterable[str], now: float) -> set[str]:
        """Returns those of these tokens that are valid at this time, with one query."""
        asked = msgspec.json.encode(list(token_ids)).decode()
        return {token_id for (token_id,) in self._read(VALID_AMONG, asked, now)}

    def tokens(self) -> list[TokenRow]:
        rows = self._read(f"SELECT {TOKEN_COLUMNS} FROM tokens ORDER BY created_at")
        return [_token(row) for row in rows]

    def version(self) -> int:
        """Returns a number that changes when any other connection, in any process, has written."""
        ((version,),) = self._read("PRAGMA data_version")
        return int(version)

    def _read(self, statement: str, *values: str | float) -> list[tuple[Any, ...]]:
        try:
            return self._look.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def close(self) -> None:
        """Finishes the queued work first, for at most `BUSY_S`."""
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
        raise  # a failure of the disk concerns the whole batch
    except Exception as error:  # boundary: raised where the job is awaited; the others go on
        step.error = error
        connection.execute("ROLLBACK TO step")
    connection.execute("RELEASE step")


def _make(path: Path) -> None:
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
        if version > VERSION:
            raise UserError(
                f"{path} was made by a newer Bargein (format {version}; this one knows {VERSION}): "
                "use that one, or another data directory"
            )
        for migration in MIGRATIONS[version:]:
            for statement in _statements(migration):
                connection.execute(statement)
        if version < VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        connection.close()


def version_of(connection: sqlite3.Connection) -> int:
    """Returns how many migrations the file has; 0 for an empty file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and not version:
        raise UserError("is a database of another program: choose another file")
    return int(version)


def _statements(script: str) -> list[str]:
    """Splits a script into statements, because `executescript` would end the transaction."""
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


def _token(row: tuple[object, ...]) -> TokenRow:
    values = dict(zip(TokenRow.__struct_fields__, row, strict=True))
    values["read_only"], values["admin"] = bool(values["read_only"]), bool(values["admin"])
    sessions = values["sessions"]
    values["sessions"] = (
        msgspec.json.decode(sessions, type=tuple[str, ...]) if isinstance(sessions, str) else None
    )
    return msgspec.convert(values, TokenRow)
