"""PostgreSQL for tests: one server a test process, a database of its own for each test."""

from __future__ import annotations

import atexit
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import asyncpg

from bargein.contracts.store import Store
from bargein.stores.postgres import PostgresStore
from bargein.stores.sqlite import SqliteStore
from bargein.testing.postgres_server import PostgresServer
from bargein.testing.store_conformance import StoreUnderTest

# What a test may have left, so that the next one can use the same database: making and dropping one
# waits for a checkpoint each time.
EMPTY = """TRUNCATE bargein.sessions, bargein.events, bargein.keys, bargein.texts, bargein.doomed,
    bargein.nodes, bargein.writers, bargein.mail, bargein.gateway_tokens, bargein.gateway_sessions,
    bargein.gateway_members, bargein.gateway_consents, bargein.gateway_replies,
    bargein.gateway_tickets, bargein.write_probe RESTART IDENTITY;
    UPDATE bargein.gateway_retention SET audit_before = 'infinity';
    DELETE FROM bargein.gateway_audit;
    UPDATE bargein.gateway_retention SET audit_before = 0;
    ALTER SEQUENCE bargein.epoch RESTART"""

_free: dict[int, list[str]] = defaultdict(list)


@cache
def server(programs: str = "") -> PostgresServer:
    """The server of this process, from the package or from these programs."""
    started = PostgresServer.start(Path(programs) if programs else None)
    atexit.register(started.end)
    return started


async def take_database(on: PostgresServer) -> str:
    """The address of a database with empty tables."""
    if _free[on.port]:
        return _free[on.port].pop()
    address = await on.new_database()
    store = await PostgresStore.open(address, joins=False)
    await store.aclose()
    return address


async def give_back(on: PostgresServer, address: str) -> None:
    async with sql(address) as connection:
        await connection.execute(EMPTY)
    _free[on.port].append(address)


@asynccontextmanager
async def database(on: PostgresServer | None = None) -> AsyncIterator[str]:
    on = on or server()
    address = await take_database(on)
    yield address
    await give_back(on, address)


@asynccontextmanager
async def sql(address: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(address)
    try:
        yield connection
    finally:
        connection.terminate()


class PostgresStores(StoreUnderTest):
    on: PostgresServer | None = None
    address = ""

    async def open(self, owner: str) -> Store:
        if not self.address:
            self.address = await take_database(self.on or server())
        return await PostgresStore.open(self.address, owner=owner)

    async def open_backup(self, path: Path, owner: str) -> Store:
        return await SqliteStore.open(path, owner=owner)

    async def bury(self, owner: str) -> None:
        async with sql(self.address) as connection:
            await connection.execute("UPDATE bargein.nodes SET dead = true WHERE id = $1", owner)

    async def damage_event(self, session: str, seq: int, body: bytes) -> None:
        async with sql(self.address) as connection, connection.transaction():
            # Past the trigger that keeps the log as it is; for this transaction.
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(
                """UPDATE bargein.events SET body = $3 WHERE seq = $2
                AND session = (SELECT number FROM bargein.sessions WHERE id = $1)""",
                session,
                seq,
                body,
            )

    async def tidy(self, store: Store, *, whole: bool) -> None:
        assert isinstance(store, PostgresStore)
        while await store.tidy() and whole:
            pass

    async def empty(self) -> None:
        async with sql(self.address) as connection:
            await connection.execute(EMPTY)

    async def drop(self) -> None:
        if self.address:
            await give_back(self.on or server(), self.address)


class OneDatabase(PostgresStores):
    """Every instance empties the same database when it is first opened."""

    shared = ""
    opened = False

    async def open(self, owner: str) -> Store:
        if not OneDatabase.shared:
            OneDatabase.shared = await take_database(server())
        self.address = OneDatabase.shared
        if not self.opened:
            self.opened = True
            await self.empty()
        return await super().open(owner)
