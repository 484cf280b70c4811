"""A search in PostgreSQL ends in time, and holds up nothing else."""

# ruff: noqa: ASYNC110  (what is waited for is in the database)

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from bargein.contracts.store import commit_one
from bargein.stores.postgres import PostgresStore, search_sql
from bargein.stores.postgres import store as store_module
from bargein.testing.store_conformance.scene import looked, made, said, step
from tests.session.world import WITHIN_S
from tests.stores.postgres_kinds import database, sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

# Waits for no row, and longer than a test may take, as soon as something is before it.
SLOW_AFTER_THE_FIRST = search_sql.SEARCH.replace(
    "WHERE", "WHERE ($3 = 'infinity'::float8 OR pg_sleep(100) IS NULL) AND", 1
)
TIMEOUT = "SELECT current_setting('statement_timeout')"
HELD_UP = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%tsquery%'"""


@pytest.fixture
async def store(anyio_backend: object) -> AsyncIterator[PostgresStore]:
    async with database() as address:
        opened = await PostgresStore.open(address)
        for name in ("a", "b"):
            head = await made(opened, name)
            await commit_one(opened, step(head, said(1), text="a parrot"))
        while await opened.tidy():
            pass
        yield opened
        await opened.aclose()


async def hold_texts(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Whoever reads them waits until the end of the transaction."""
    await connection.execute("LOCK TABLE bargein.texts IN ACCESS EXCLUSIVE MODE")


async def test_a_search_ends_in_time_and_leaves_the_connection_as_it_was(
    store: PostgresStore,
) -> None:
    assert len(await store.search("parrot")) == 2
    connected = {link: link._connection for link in store._readers._all if link.is_connected}
    async with (
        sql(store.opened_with) as watcher,
        sql(store.opened_with) as other,
        other.transaction(),
    ):
        await hold_texts(other)
        for _ in range(2):
            began = time.monotonic()
            assert await store.search("parrot") == []
            assert time.monotonic() - began + 0.01 >= search_sql.SEARCH_S
            assert time.monotonic() - began < 5
        # The server does not go on with it either.
        async with asyncio.timeout(WITHIN_S):
            while await watcher.fetchval(HELD_UP):
                await asyncio.sleep(0.02)
    assert len(await store.search("parrot")) == 2
    assert connected
    assert {link: link._connection for link in connected} == connected, "none was lost"
    for link in store._readers._all:
        assert await link.run(lambda connection: connection.fetchval(TIMEOUT)) == "0"


async def test_a_search_says_what_it_has_found_in_time(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_sql, "SEARCH", SLOW_AFTER_THE_FIRST)
    monkeypatch.setattr(search_sql, "PAGE", 1)
    began = time.monotonic()
    assert len(await store.search("parrot")) == 1
    assert time.monotonic() - began < 5


async def test_searches_leave_connections_for_everything_else(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_sql, "SEARCH_S", 20.0)
    async with sql(store.opened_with) as watcher, sql(store.opened_with) as other:
        async with other.transaction():
            await hold_texts(other)
            searches = [asyncio.ensure_future(store.search("parrot")) for _ in range(12)]
            async with asyncio.timeout(WITHIN_S):
                while await watcher.fetchval(HELD_UP) < store_module.SEARCHERS:
                    await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                assert [head.id for head in await store.sessions()] == ["b", "a"]
                assert (await looked(store, "a")).seq == 1
                assert len(await store.events("a")) == 1
            assert await watcher.fetchval(HELD_UP) == store_module.SEARCHERS
        async with asyncio.timeout(WITHIN_S):
            assert [len(found) for found in await asyncio.gather(*searches)] == [2] * 12
