"""`/readyz` answers at once while searches take their time."""

# ruff: noqa: ASYNC110  (what is waited for is in the database)

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein.server import readiness
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres import search_sql as postgres_search
from bargein.stores.postgres.store import SEARCHERS
from bargein.stores.sqlite import SqliteStore
from bargein.stores.sqlite import search_sql as sqlite_search
from tests.server.stage import WITHIN_S, Stage, serving
from tests.stores.postgres_kinds import database, sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SEARCHES_EACH = 2
HELD_UP = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%tsquery%'"""


async def ready_while_searching(
    stage: Stage, search_began: Callable[[], Any], let_go: Callable[[], Any]
) -> None:
    answers: list[int] = []
    # More people than connections that read: each has one search under way at a time.
    people = [await stage.person(name) for name in ("a", "b", "c", "d", "e", "f")]

    async def search(token: str) -> None:
        answers.append((await stage.ask("GET", "/v1/search?words=parrot", token=token))[0])

    async with anyio.create_task_group() as group:
        try:
            for token in people * SEARCHES_EACH:
                group.start_soon(search, token)
            with anyio.fail_after(WITHIN_S):
                await search_began()
            for _ in range(3):
                # It would answer 503 after `READY_S`.
                assert (await stage.ask("GET", "/readyz", token=None))[0] == 200
            assert answers == []
        finally:
            await let_go()
    assert set(answers) == {200}


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "KEPT_S", 0.0)


async def test_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, gate, search = threading.Event(), threading.Event(), sqlite_search.search

    def held(*given: Any, **more: Any) -> Any:
        began.set()
        gate.wait(WITHIN_S)
        return search(*given, **more)

    async def search_began() -> None:
        await anyio.to_thread.run_sync(began.wait, WITHIN_S)

    async def let_go() -> None:
        gate.set()

    monkeypatch.setattr(sqlite_search, "search", held)
    store = await SqliteStore.open(tmp_path / "s.sqlite3")
    async with serving([], tmp_path, store=store, start_token=None) as stage:
        await ready_while_searching(stage, search_began, let_go)
    await store.aclose()


async def test_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_search, "SEARCH_S", WITHIN_S)
    async with (
        opened() as (address, store),
        serving([], tmp_path, store=store, tables=address, start_token=None) as stage,
        sql(address) as watcher,
        sql(address) as other,
    ):
        held = other.transaction()
        await held.start()
        await other.execute("LOCK TABLE bargein.texts IN ACCESS EXCLUSIVE MODE")

        async def search_began() -> None:
            while await watcher.fetchval(HELD_UP) < SEARCHERS:
                await anyio.sleep(0.02)

        await ready_while_searching(stage, search_began, held.rollback)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[str, PostgresStore]]:
    async with database() as address:
        store = await PostgresStore.open(address)
        yield address, store
        await store.aclose()
