"""The rows of a PostgreSQL store, for copying it as it is.

Reading is one transaction, so that the copy is of one moment. Writing is one transaction a session.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from bargein.contracts.store import AcceptKey
from bargein.stores.copying import EventRow, RawSession, TextRow
from bargein.stores.postgres.address import PostgresAddress
from bargein.stores.postgres.connection import Connection, connect
from bargein.stores.postgres.faults import explain
from bargein.stores.postgres.texts import as_it_was, kept

PAGE = 200

SESSION = """SELECT s.number, s.id, coalesce(r.id, ''), s.epoch, s.owner, s.seq, s.unfinished,
    s.created_at, s.updated_at, s.title, s.state
    FROM bargein.sessions s LEFT JOIN bargein.sessions r ON r.number = s.root"""
PAGES = (
    f"{SESSION} WHERE s.root IS NULL AND s.id > $1 ORDER BY s.id LIMIT {PAGE}",
    f"{SESSION} WHERE s.root IS NOT NULL AND s.id > $1 ORDER BY s.id LIMIT {PAGE}",
)
FIND = f"{SESSION} WHERE s.id = $1"
EVENTS = """SELECT seq, at, body FROM bargein.events WHERE session = $1 AND seq > $2
    ORDER BY seq LIMIT $3"""
KEYS = "SELECT sender, client_id, message, body_hash FROM bargein.keys WHERE session = $1"
TEXTS = """SELECT seq, at, text FROM bargein.texts WHERE session = $1 AND seq > $2
    ORDER BY seq LIMIT $3"""
LAST_EPOCH = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM bargein.epoch"
PUT_SESSION = """INSERT INTO bargein.sessions
    (id, root, epoch, owner, seq, unfinished, created_at, updated_at, title, state)
    VALUES ($1, (SELECT number FROM bargein.sessions WHERE id = $2), $3, $4, $5, $6, $7, $8, $9,
    $10) RETURNING number"""
RAISE_EPOCH = """SELECT setval('bargein.epoch', greatest(
    $1, (SELECT CASE WHEN is_called THEN last_value ELSE 1 END FROM bargein.epoch)), true)"""


@asynccontextmanager
async def reading(address: PostgresAddress) -> AsyncIterator["RawPostgres"]:
    """The rows as they are at this moment, whatever is written meanwhile."""
    async with (
        _connected(address) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield RawPostgres(connection)


@asynccontextmanager
async def writing(address: PostgresAddress) -> AsyncIterator["RawPostgres"]:
    async with _connected(address) as connection:
        yield RawPostgres(connection)


@asynccontextmanager
async def _connected(address: PostgresAddress) -> AsyncIterator[Connection]:
    connection: Connection | None = None
    try:
        connection = await connect(address.direct, keeps_statements=True, purpose="copy")
        yield connection
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise explain(error, address.name) from error
    finally:
        if connection is not None:
            connection.terminate()


class RawPostgres:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transaction: asyncpg.transaction.Transaction | None = None
        self._number = 0

    # --- reading

    async def count(self) -> int:
        return int(await self._connection.fetchval("SELECT count(*) FROM bargein.sessions"))

    async def last_epoch(self) -> int:
        return int(await self._connection.fetchval(LAST_EPOCH))

    async def sessions(self) -> AsyncIterator[RawSession]:
        for statement in PAGES:
            after = ""
            while rows := await self._connection.fetch(statement, after):
                for row in rows:
                    yield _session(tuple(row))
                after = rows[-1][1]

    async def find(self, session: str) -> RawSession | None:
        row = await self._connection.fetchrow(FIND, kept(session))
        return None if row is None else _session(tuple(row))

    async def events(self, session: RawSession, after: int, limit: int) -> list[EventRow]:
        rows = await self._connection.fetch(EVENTS, session.number, after, limit)
        return [(seq, at, body) for seq, at, body in rows]

    async def keys(self, session: RawSession) -> list[AcceptKey]:
        rows = await self._connection.fetch(KEYS, session.number)
        return [
            AcceptKey(as_it_was(sender), as_it_was(client_id), as_it_was(message), body_hash)
            for sender, client_id, message, body_hash in rows
        ]

    async def texts(self, session: RawSession, after: int, limit: int) -> list[TextRow]:
        rows = await self._connection.fetch(TEXTS, session.number, after, limit)
        return [(seq, at, as_it_was(text)) for seq, at, text in rows]

    # --- writing

    async def begin(self, session: RawSession) -> None:
        self._transaction = self._connection.transaction()
        await self._transaction.start()
        await self._connection.execute(
            "DELETE FROM bargein.sessions WHERE id = $1", kept(session.id)
        )
        self._number = await self._connection.fetchval(
            PUT_SESSION,
            kept(session.id),
            kept(session.root) if session.root else None,
            session.epoch,
            session.owner,
            session.seq,
            session.unfinished,
            session.created_at,
            session.updated_at,
            kept(session.title),
            session.state,
        )

    async def put_events(self, rows: list[EventRow]) -> None:
        await self._put("events", ("session", "seq", "at", "body"), rows)

    async def put_keys(self, keys: list[AcceptKey]) -> None:
        rows = [
            (kept(key.sender), kept(key.client_id), kept(key.message), key.body_hash)
            for key in keys
        ]
        columns = ("session", "sender", "client_id", "message", "body_hash")
        await self._put("keys", columns, rows)

    async def put_texts(self, rows: list[TextRow]) -> None:
        texts = [(seq, at, kept(text)) for seq, at, text in rows]
        await self._put("texts", ("session", "seq", "at", "text"), texts)

    async def _put(
        self, table: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]
    ) -> None:
        if rows:
            await self._connection.copy_records_to_table(
                table,
                schema_name="bargein",
                columns=columns,
                records=[(self._number, *row) for row in rows],
            )

    async def end(self) -> None:
        assert self._transaction is not None
        await self._transaction.commit()

    async def raise_epoch(self, epoch: int) -> None:
        if epoch > 0:
            await self._connection.execute(RAISE_EPOCH, epoch)


def _session(row: tuple[object, ...]) -> RawSession:
    number, session, root, epoch, owner, seq, unfinished, created_at, updated_at, title, state = row
    return RawSession(
        number,  # type: ignore[arg-type]
        as_it_was(str(session)),
        as_it_was(str(root)),
        epoch,  # type: ignore[arg-type]
        str(owner),
        seq,  # type: ignore[arg-type]
        bool(unfinished),
        created_at,  # type: ignore[arg-type]
        updated_at,  # type: ignore[arg-type]
        as_it_was(str(title)),
        state,  # type: ignore[arg-type]
    )
