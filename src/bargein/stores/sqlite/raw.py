"""The rows of a SQLite store, for copying it as it is. For use while nothing has the file open,
except to read it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from bargein.contracts.store import AcceptKey
from bargein.errors import UserError
from bargein.stores.copying import EventRow, RawSession, TextRow
from bargein.stores.encoding import CUT, encode_plain
from bargein.stores.sqlite import session_sql
from bargein.stores.sqlite.commit_sql import MARK_EVERY
from bargein.stores.sqlite.faults import explain
from bargein.stores.sqlite.large_sql import LongValues
from bargein.stores.sqlite.schema import check_known, migrate

T = TypeVar("T")

PAGE = 200

SESSION = """SELECT s.number, s.id, coalesce(r.id, ''), s.epoch, s.owner, s.seq, s.unfinished,
    s.created_at, s.updated_at, s.title, s.state
    FROM sessions s LEFT JOIN sessions r ON r.number = s.root"""
PAGES = (
    f"{SESSION} WHERE s.root IS NULL AND s.id > ? ORDER BY s.id LIMIT {PAGE}",
    f"{SESSION} WHERE s.root IS NOT NULL AND s.id > ? ORDER BY s.id LIMIT {PAGE}",
)
FIND = f"{SESSION} WHERE s.id = ?"
KEYS = "SELECT sender, client_id, message, body_hash FROM keys WHERE session = ?"
TEXTS = """SELECT seq, at, text FROM texts WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"""


class RawSqlite:
    """Made by `open` or `create`. The file is used in a thread of its own."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bargein copy")
        self._number = 0
        self._event = 0

    @classmethod
    async def open(cls, path: Path, *, writes: bool = False) -> "RawSqlite":
        """Open a store that exists. Only with `writes` is an older one brought up to date."""
        mode = "rw" if writes else "ro"
        uri = f"{_existing(path).as_uri()}?mode={mode}"
        raw = cls(
            path, sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        )
        try:
            await raw._run(migrate if writes else check_known)
        except BaseException:
            await raw.aclose()
            raise
        return raw

    @classmethod
    async def create(cls, path: Path) -> "RawSqlite":
        """Make a store in a file that is empty or missing, or go on with one that was begun."""
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        raw = cls(path, connection)
        try:
            await raw._run(migrate)
            await raw._run(lambda given: given.execute("PRAGMA synchronous = FULL"))
        except BaseException:
            await raw.aclose()
            raise
        return raw

    async def aclose(self) -> None:
        try:
            await self._run(lambda connection: connection.close())
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, self._connection)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        except UserError as error:
            raise UserError(f"{self._path} {error}") from error

    # --- reading

    async def count(self) -> int:
        return int(await self._value("SELECT count(*) FROM sessions"))

    async def last_epoch(self) -> int:
        return int(await self._value("SELECT epoch FROM store"))

    async def _value(self, statement: str) -> int:
        return await self._run(lambda connection: int(connection.execute(statement).fetchone()[0]))

    async def sessions(self) -> AsyncIterator[RawSession]:
        for statement in PAGES:
            after = ""
            while rows := await self._rows(statement, after):
                for row in rows:
                    yield _session(row)
                after = str(rows[-1][1])

    async def _rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        return await self._run(lambda connection: connection.execute(statement, values).fetchall())

    async def find(self, session: str) -> RawSession | None:
        rows = await self._rows(FIND, session)
        return _session(rows[0]) if rows else None

    async def events(self, session: RawSession, after: int, limit: int) -> list[EventRow]:
        given = {"session": session.id, "after": after, "until": after + limit}

        def work(connection: sqlite3.Connection) -> list[EventRow]:
            join = LongValues(connection).join
            with closing(connection.execute(session_sql.EVENTS, given)) as rows:
                return [
                    (seq, at, encode_plain(join(body)) if body[:1] == CUT else body)
                    for seq, at, body in rows
                ]

        return await self._run(work)

    async def keys(self, session: RawSession) -> list[AcceptKey]:
        rows = await self._run(
            lambda connection: connection.execute(KEYS, (session.number,)).fetchall()
        )
        return [AcceptKey(*row) for row in rows]

    async def texts(self, session: RawSession, after: int, limit: int) -> list[TextRow]:
        given = (session.number, after, limit)
        return await self._run(lambda connection: connection.execute(TEXTS, given).fetchall())

    # --- writing

    async def begin(self, session: RawSession) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            (self._event,) = connection.execute(
                "SELECT max((SELECT coalesce(max(number), 0) FROM events), indexed) FROM store"
            ).fetchone()
            session_sql.delete(connection, session.id, None)
            root = connection.execute(
                "SELECT number FROM sessions WHERE id = ?", (session.root,)
            ).fetchone()
            last = self._event + session.seq if session.seq else 0
            self._number = (
                connection.execute(
                    """INSERT INTO sessions (id, root, epoch, seq, last, unfinished, created_at,
                updated_at, title, state, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                    (
                        session.id,
                        root[0] if session.root else None,
                        session.epoch,
                        session.seq,
                        last,
                        session.unfinished,
                        session.created_at,
                        session.updated_at,
                        session.title,
                        session.state,
                        session.owner,
                    ),
                ).lastrowid
                or 0
            )

        await self._run(work)

    async def put_events(self, rows: list[EventRow]) -> None:
        number, base = self._number, self._event
        events = [
            (base + seq, number, seq, base + seq - 1 if seq > 1 else 0, at, body)
            for seq, at, body in rows
        ]
        marks = [(number, seq, base + seq) for seq, _, _ in rows if seq % MARK_EVERY == 0]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", events)
            connection.executemany("INSERT INTO marks VALUES (?, ?, ?)", marks)

        await self._run(work)

    async def put_keys(self, keys: list[AcceptKey]) -> None:
        rows = [
            (self._number, key.sender, key.client_id, key.message, key.body_hash) for key in keys
        ]
        await self._run(
            lambda connection: connection.executemany(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?)", rows
            )
        )

    async def put_texts(self, rows: list[TextRow]) -> None:
        texts = [(self._event + seq, self._number, seq, at, text) for seq, at, text in rows]
        await self._run(
            lambda connection: connection.executemany(
                "INSERT INTO texts VALUES (?, ?, ?, ?, ?)", texts
            )
        )

    async def end(self) -> None:
        await self._run(lambda connection: connection.execute("COMMIT"))

    async def raise_epoch(self, epoch: int) -> None:
        await self._run(
            lambda connection: connection.execute(
                "UPDATE store SET epoch = max(epoch, ?)", (epoch,)
            )
        )


def _session(row: tuple[Any, ...]) -> RawSession:
    number, session, root, epoch, owner, seq, unfinished, *rest = row
    return RawSession(number, session, root, epoch, owner, seq, bool(unfinished), *rest)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path}: there is no such store")
    return path.absolute()
