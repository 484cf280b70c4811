"""A stop while PostgreSQL's disk is full: its receipt says that it is not stored, and no restart
contradicts it."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import asyncpg
import pytest

from bargein import Agent, Engine
from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.errors import BargeinError
from bargein.models.script import Say, Step, Wait
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime.config import Config
from bargein.runtime.data_directory import DATABASES
from bargein.stores.postgres import PostgresStore
from bargein.stores.reserve import FILE
from bargein.testing.postgres_server import PostgresServer
from tests.session.world import WITHIN_S
from tests.stores.postgres_kinds import database, sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

DISK_BYTES = 192 * 1024 * 1024
SMALL = ("max_wal_size=64MB", "min_wal_size=32MB", "shared_buffers=32MB")
# PostgreSQL compresses what repeats itself.
LARGE = random.Random(1).randbytes(300_000).hex()


@pytest.fixture(scope="module")
def small_disk() -> Iterator[PostgresServer]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with PostgresServer.start(settings=SMALL, disk_bytes=DISK_BYTES) as started:
        yield started


@pytest.fixture
async def address(anyio_backend: object, small_disk: PostgresServer) -> AsyncIterator[str]:
    async with database(small_disk) as given:
        yield given


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def engine_on(address: str, home: Path, *steps: Step) -> tuple[Engine, ScriptedModel]:
    model = ScriptedModel([steps])
    config = Config(home, ModelSettings(), {})
    return Engine(Agent(model=model), store=address, config=config), model


async def stopped_on_a_full_disk(server: PostgresServer, address: str, home: Path) -> Receipt:
    """The program ends while the disk is still full. Then there is room again."""
    engine, model = engine_on(address, home, Say(LARGE), Wait("hold"))
    async with engine:
        session = await engine.session("alice")
        await session.send("1")
        await model.gate("hold").reached()
        await session.send("2", mode="queue")
        await leave_no_room(server, address)
        try:
            receipt = await session.interrupt(by="anna")
            assert (receipt.status, receipt.stored) == (ReceiptStatus.STOPPED, False)
            with pytest.raises(BargeinError, match="has no room left"):
                await session.send("3")
        except BaseException:
            server.empty_disk()
            raise
    server.empty_disk()
    store = await PostgresStore.open(address, joins=False)
    assert not [each for each in await store.events("alice") if isinstance(each.event, TurnSettled)]
    await store.aclose()
    return receipt


async def leave_no_room(server: PostgresServer, address: str) -> None:
    """On the disk, and in the pages that the log of the session has already."""
    async with sql(address) as connection:
        table = await connection.fetchval("SELECT tableoid::regclass::text FROM bargein.events")
        for stranger in itertools.count(1_000_000):
            with suppress(asyncpg.CheckViolationError):
                await connection.execute(f"INSERT INTO {table} VALUES ($1, 0, 0, '')", stranger)
                break
        assert server.fill_disk()
        seqs = itertools.count(1)
        for size in (1500, 300, 60, 10, 1):
            with suppress(asyncpg.DiskFullError):
                while True:
                    body = LARGE[:size].encode()
                    await connection.execute(
                        f"INSERT INTO {table} VALUES ($1, $2, 0, $3)", stranger, next(seqs), body
                    )


async def ends(engine: Engine) -> list[TurnSettled]:
    with anyio.fail_after(WITHIN_S):
        session = await engine.session("alice")
        await session.settled()
        found = [each.event for each in await session.events()]
        return [each for each in found if isinstance(each, TurnSettled)]


async def test_a_restart_reads_as_the_receipt_said(
    small_disk: PostgresServer, address: str, home: Path
) -> None:
    told = await stopped_on_a_full_disk(small_disk, address, home)
    async with engine_on(address, home, Say("again"))[0] as engine:
        (end,) = await ends(engine)
        assert end.outcome is TurnOutcome.STOPPED
        assert end.receipt is not None
        assert (end.receipt.status, end.receipt.by) == (told.status, told.by)
        assert end.receipt.stored
        # What the stop held is still held.
        session = await engine.session("alice")
        assert [(item.message.text, item.held) for item in await session.inbox()] == [("2", True)]
        assert (await (await session.send("3")).result()).text == "again"


async def test_without_a_data_directory_nothing_is_made_and_the_turn_reads_crashed(
    small_disk: PostgresServer, address: str, tmp_path: Path
) -> None:
    """As docs/stores.md says."""
    home = tmp_path / "nowhere"
    await stopped_on_a_full_disk(small_disk, address, home)
    assert not home.exists()
    async with engine_on(address, home, Say("again"))[0] as engine:
        assert (await ends(engine))[0].outcome is TurnOutcome.CRASHED


async def test_each_database_and_one_process_at_a_time_has_a_file_of_its_own(
    small_disk: PostgresServer, address: str, home: Path
) -> None:
    def files() -> list[Path]:
        return sorted(home.glob(f"{DATABASES}/*/{FILE}"))

    async with database(small_disk) as other:
        async with engine_on(address, home)[0] as first, engine_on(address, home)[0] as second:
            assert len(files()) == 1
            # A second process is a node like any other, without the file.
            assert (first._reserve is not None, second._reserve is None) == (True, True)
            async with engine_on(other, home)[0] as third:
                assert third._reserve is not None
                assert len(files()) == 2
        async with engine_on(address, home)[0] as again:
            assert again._reserve is not None
            assert len(files()) == 2
    # The directory itself belongs to nobody: a terminal may use it meanwhile.
    assert not (home / "owner.lock").exists()
