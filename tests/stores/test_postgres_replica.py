"""A real standby answers lists and searches, as long as it is not behind."""

# ruff: noqa: ASYNC110  (what is waited for is in another process)

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bargein.contracts.store import commit_one
from bargein.errors import UserError
from bargein.stores.postgres import PostgresStore, replica
from bargein.stores.postgres.address import parse_address
from bargein.stores.postgres.lease import LeaseTimes
from bargein.testing.postgres_server import QUICK, PostgresServer
from bargein.testing.store_conformance.scene import made, said, step
from tests.stores.postgres_kinds import sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SHORT = LeaseTimes(renew_s=0.1, lasts_s=2.0, fence_s=1.5)


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with PostgresServer.start(settings=QUICK) as primary, primary.standby() as standby:
        yield primary, standby


async def reads(address: str, kind: str) -> int:
    """How many connections of a store have asked there for a list of sessions."""
    async with sql(address) as session:
        found: int = await session.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1",
            f"bargein {kind}",
        )
        return found


async def test_a_standby_answers_and_is_not_asked_when_it_is_behind(
    pair: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby = pair
    address = await primary.new_database()
    name = address.rpartition("/")[2]
    monkeypatch.setattr(replica, "BEHIND_S_MAX", 1.0)
    monkeypatch.setattr(replica, "AGAIN_S", 0.0)
    store = await PostgresStore.open(f"{address}?replica=127.0.0.1:{standby.port}", lease=SHORT)
    head = await made(store, "s")
    await commit_one(store, step(head, said(1), title="one", text="findable words"))
    async with asyncio.timeout(15):
        while not await store.search("findable") or not await reads(
            standby.address(name), "replica"
        ):
            await asyncio.sleep(0.05)
    assert [each.id for each in await store.sessions()] == ["s"]
    # It hears nothing more, and is soon too old to be believed.
    async with sql(standby.address(name)) as session:
        await session.execute("SELECT pg_wal_replay_pause()")
    await made(store, "later")
    async with asyncio.timeout(15):
        while {each.id for each in await store.sessions()} != {"s", "later"}:
            await asyncio.sleep(0.05)
    standby.kill()
    assert {each.id for each in await store.sessions()} == {"s", "later"}
    assert len(await store.search("findable")) == 1
    await store.aclose()


def test_an_address_names_a_replica(anyio_backend: str) -> None:
    found = parse_address("postgresql://ann:pw@pooler:6432/db?direct=one:5432&replica=two:5433")
    assert found.replica == "postgresql://ann:pw@two:5433/db"
    assert found.direct == "postgresql://ann:pw@one:5432/db"
    assert found.pooled == "postgresql://ann:pw@pooler:6432/db"
    with pytest.raises(UserError, match="replica must be HOST:PORT of a standby"):
        parse_address("postgresql://ann@one/db?replica=two/x")
