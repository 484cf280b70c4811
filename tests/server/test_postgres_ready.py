"""`/readyz` over PostgreSQL: it is asked whether it takes writes, on a real server each time."""

# ruff: noqa: ASYNC110  (what is waited for is in the database)

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import asyncpg
import pytest

from bargein.server import readiness
from bargein.stores.postgres import PostgresStore, write_probe
from bargein.testing.postgres_server import PostgresServer
from tests.server.stage import WITHIN_S, Stage, serving
from tests.stores.postgres_kinds import database, sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

DISK_BYTES = 192 * 1024 * 1024
SMALL = ("max_wal_size=64MB", "min_wal_size=32MB", "shared_buffers=32MB")


@pytest.fixture(scope="module")
def small_disk() -> Iterator[PostgresServer]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with PostgresServer.start(settings=SMALL, disk_bytes=DISK_BYTES) as started:
        yield started


@pytest.fixture(autouse=True)
def looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "KEPT_S", 0.0)
    monkeypatch.setattr(write_probe, "KEPT_S", 0.0)


async def ready(stage: Stage) -> tuple[int, str]:
    status, answer = await stage.ask("GET", "/readyz", token=None)
    return status, str(answer.get("detail", ""))


async def test_it_is_not_ready_while_the_databases_disk_is_full(
    small_disk: PostgresServer, tmp_path: Path
) -> None:
    async with database(small_disk) as address, serving([], tmp_path, tables=address) as stage:
        assert await ready(stage) == (200, "")
        assert small_disk.fill_disk()
        try:
            for _ in range(3):
                status, detail = await ready(stage)
                assert status == 503
                assert "the server has no room left (DiskFullError 53100)" in detail
            # What is there can still be read, and the process lives.
            assert stage.gateway.db.tokens() == []
            assert await stage.gateway.db.owners() == []
            assert (await stage.ask("GET", "/healthz", token=None))[0] == 200
        finally:
            small_disk.empty_disk()
        assert await ready(stage) == (200, "")


async def test_it_is_not_ready_while_the_database_is_read_only(tmp_path: Path) -> None:
    async with database() as address:
        name = address.rpartition("/")[2]
        async with sql(address) as operator, serving([], tmp_path, tables=address) as stage:
            assert await ready(stage) == (200, "")
            await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            try:
                await end_others(operator)
                with anyio.fail_after(WITHIN_S):
                    while "is a standby or read-only" not in (await ready(stage))[1]:
                        await anyio.sleep(0.05)
            finally:
                await operator.execute("SET default_transaction_read_only = off")
                await operator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
                await end_others(operator)
            with anyio.fail_after(WITHIN_S):
                while (await ready(stage))[0] != 200:
                    await anyio.sleep(0.05)


async def end_others(operator: asyncpg.Connection[asyncpg.Record]) -> None:
    """A new connection has the settings of the database as they are now."""
    await operator.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()"""
    )


async def test_a_write_that_waits_is_asked_once_and_answered_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a commit does that waits for a standby: here another transaction holds the row."""
    monkeypatch.setattr(write_probe, "LOCK_S", 30)
    monkeypatch.setattr(readiness, "READY_S", 0.3)
    waiting = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'bargein probe'
        AND wait_event_type = 'Lock'"""
    async with database() as address, serving([], tmp_path, tables=address) as stage:
        assert await ready(stage) == (200, "")
        async with sql(address) as other:
            async with other.transaction():
                await other.execute("UPDATE bargein.write_probe SET at = clock_timestamp()")
                for _ in range(4):
                    began = time.monotonic()
                    assert (await ready(stage))[0] == 503
                    assert time.monotonic() - began < 5
                    # Nothing that only reads is held up.
                    assert await stage.gateway.db.owners() == []
                assert await other.fetchval(waiting) == 1
            with anyio.fail_after(WITHIN_S):
                while (await ready(stage))[0] != 200:
                    await anyio.sleep(0.05)


async def test_a_write_that_another_node_holds_up_ends_on_the_server_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_probe, "LOCK_S", 1)
    async with database() as address, serving([], tmp_path, tables=address) as stage:
        assert await ready(stage) == (200, "")
        async with sql(address) as other, other.transaction():
            await other.execute("UPDATE bargein.write_probe SET at = clock_timestamp()")
            status, detail = await ready(stage)
            assert (status, "did not answer within 1 s" in detail) == (503, True)


async def test_a_bad_look_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask, so asking often costs a database in need nothing either."""
    monkeypatch.setattr(readiness, "KEPT_S", 3600.0)
    async with (
        database() as address,
        serving([], tmp_path, tables=address) as stage,
        sql(address) as other,
    ):
        await other.execute("ALTER TABLE bargein.write_probe RENAME TO away")
        try:
            assert (await ready(stage))[0] == 503
        finally:
            await other.execute("ALTER TABLE bargein.away RENAME TO write_probe")
        assert (await ready(stage))[0] == 503


async def test_a_good_look_is_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_probe, "KEPT_S", 3600.0)
    async with (
        database() as address,
        serving([], tmp_path, tables=address) as stage,
        sql(address) as operator,
    ):
        assert await ready(stage) == (200, "")
        before = await operator.fetchval("SELECT at FROM bargein.write_probe")
        assert before is not None
        assert await ready(stage) == (200, "")
        assert await operator.fetchval("SELECT at FROM bargein.write_probe") == before


async def test_a_limit_of_temporary_files_is_no_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with database() as address:
        name = address.rpartition("/")[2]
        async with sql(address) as operator:
            await operator.execute(f"ALTER DATABASE {name} SET temp_file_limit = '1MB'")
            try:
                async with serving([], tmp_path, tables=address) as stage:
                    for _ in range(3):
                        assert await ready(stage) == (200, "")
                said = [each.getMessage() for each in caplog.records]
                assert len([each for each in said if "temp_file_limit is below" in each]) == 1
            finally:
                await operator.execute(f"ALTER DATABASE {name} RESET temp_file_limit")


async def test_a_pooler_or_a_busy_server_keeps_its_own_settings() -> None:
    """What the look sets for itself is over with its transaction."""
    async with database() as address:
        store = await PostgresStore.open(address, joins=False)
        await store.aclose()
        async with sql(address) as connection:
            before = await settings_of(connection)
            await connection.execute(write_probe.write())
            await connection.execute(write_probe.ROOM)
            assert await settings_of(connection) == before


async def settings_of(connection: asyncpg.Connection[asyncpg.Record]) -> list[str]:
    names = ("work_mem", "lock_timeout", "temp_tablespaces")
    return [await connection.fetchval("SELECT current_setting($1)", name) for name in names]
