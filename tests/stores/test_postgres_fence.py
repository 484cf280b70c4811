"""Fences between nodes on a real PostgreSQL: a claim that has committed lets no older write in,
whatever was under way. Variants that are broken on purpose are caught by the same scene."""

# ruff: noqa: ASYNC110  (only PostgreSQL knows when a statement waits)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from bargein.contracts.store import OwnedElsewhere, SessionHead, StaleEpoch, StoreFailed, commit_one
from bargein.stores.postgres import PostgresStore, commit_sql, session_sql
from bargein.stores.postgres import writer as writer_module
from bargein.testing.store_conformance.scene import claimed, looked, made, made_under, said, step
from tests.stores.postgres_kinds import database, sql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


@pytest.fixture
async def address(anyio_backend: object) -> AsyncIterator[str]:
    async with database() as given:
        yield given


async def waiting(connection: asyncpg.Connection[asyncpg.Record], count: int = 1) -> None:
    """Returns when so many statements wait for a lock."""
    while True:
        found = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        if found >= count:
            return
        await asyncio.sleep(0.005)


async def zombie_writes(address: str, *, below: bool) -> tuple[str, int]:
    """A claim is under way when the old owner's write arrives, and commits while the write waits.
    Returns what the write says, and how many events the log has then."""
    old = await PostgresStore.open(address, owner="old")
    async with sql(address) as claiming:
        root = await made(old, "root")
        head: SessionHead = await made_under(old, root, "child") if below else root
        transaction = claiming.transaction()
        await transaction.start()
        await claiming.execute(
            "UPDATE bargein.sessions SET epoch = nextval('bargein.epoch'), owner = 'new' "
            "WHERE id = 'root'"
        )
        writing = asyncio.ensure_future(commit_one(old, step(head, said(1))))
        async with sql(address) as watching:
            looks = asyncio.ensure_future(waiting(watching))
            await asyncio.wait({looks, writing}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            looks.cancel()
        await transaction.commit()
        try:
            await asyncio.wait_for(writing, 10)
            said_ = "written"
        except StaleEpoch:
            said_ = "stale"
        events = len(await old.events(head.id))
    await old.aclose()
    return said_, events


@pytest.mark.parametrize("below", [False, True], ids=["root", "sub-agent"])
async def test_a_write_that_waited_for_a_claim_is_refused(address: str, below: bool) -> None:
    assert await zombie_writes(address, below=below) == ("stale", 0)


@pytest.mark.parametrize(
    "broken",
    [commit_sql.HOLD_ROOTS.replace("FOR SHARE", weaker) for weaker in ("FOR KEY SHARE", "")],
    ids=["for key share", "a plain join"],
)
async def test_a_weaker_hold_on_the_root_is_caught(
    address: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit_sql.HOLD_ROOTS in commit_sql.COMMIT
    monkeypatch.setattr(
        commit_sql, "COMMIT", commit_sql.COMMIT.replace(commit_sql.HOLD_ROOTS, broken)
    )
    assert await zombie_writes(address, below=True) == ("written", 1)


@pytest.mark.parametrize("below", [False, True], ids=["root", "sub-agent"])
async def test_the_epoch_of_another_owner_lets_nobody_in(address: str, below: bool) -> None:
    """A failover to an asynchronous standby forgets a claim, and its epoch is given again."""
    forgotten = await PostgresStore.open(address, owner="forgotten")
    root = await made(forgotten, "root")
    head = await made_under(forgotten, root, "child") if below else root
    async with sql(address) as connection:
        await connection.execute("UPDATE bargein.sessions SET owner = 'other' WHERE id = 'root'")
    with pytest.raises(StaleEpoch, match="belongs to 'other', not 'forgotten'"):
        await commit_one(forgotten, step(head, said(1)))
    await forgotten.aclose()


async def steals(address: str) -> bool:
    one = await PostgresStore.open(address, owner="one")
    two = await PostgresStore.open(address, owner="two")
    try:
        await made(one, "s")
        try:
            await two.claim("s")
        except (OwnedElsewhere, StoreFailed):
            return False
        return True
    finally:
        await one.aclose()
        await two.aclose()


async def test_a_claim_that_takes_everything_is_caught(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget() -> None:
        async with sql(address) as connection:
            await connection.execute("DELETE FROM bargein.sessions")

    assert not await steals(address)
    await forget()
    # What is looked at first may be old by then: it decides nothing.
    assert "n.dead" in session_sql.OWNER
    monkeypatch.setattr(session_sql, "OWNER", session_sql.OWNER.replace("n.dead", "true"))
    assert not await steals(address)
    await forget()
    alive = "n.id = seen.owner AND NOT n.dead"
    assert alive in session_sql.CLAIM
    monkeypatch.setattr(session_sql, "CLAIM", session_sql.CLAIM.replace(alive, "false"))
    assert await steals(address)


async def test_a_claim_says_where_the_owner_is(address: str) -> None:
    one = await PostgresStore.open(address, owner="one", node_address="http://one:8484")
    two = await PostgresStore.open(address, owner="two")
    await made(one, "s")
    with pytest.raises(OwnedElsewhere, match="belongs to one at http://one:8484"):
        await two.claim("s")
    await one.aclose()
    # A node that left in order is gone at once.
    assert (await claimed(two, "s")).owner == "two"
    await two.aclose()


async def test_a_node_whose_lease_is_over_is_buried_by_a_claim(address: str) -> None:
    one = await PostgresStore.open(address, owner="one")
    two = await PostgresStore.open(address, owner="two")
    head = await made(one, "s")
    async with sql(address) as connection:
        # As if it had not renewed for long.
        await connection.execute(
            "UPDATE bargein.nodes SET lease_until = clock_timestamp() - interval '1 s' "
            "WHERE id = 'one'"
        )
        assert await two.bury("two") is False, "nobody buries the living"
        assert (await claimed(two, "s")).owner == "two"
        assert await connection.fetchval("SELECT dead FROM bargein.nodes WHERE id = 'one'")
    with pytest.raises(StaleEpoch):
        await commit_one(one, step(head, said(1)))
    with pytest.raises(StoreFailed, match="declared dead"):
        await one.create("t", root="t", at=0.0)
    await one.aclose()
    await two.aclose()


async def lost_in_flight(address: str) -> int:
    """The connection is lost while a commit waits on the server, which does it later. Returns how
    many events came after the store had answered that there are none."""
    store = await PostgresStore.open(address, owner="one")
    head = await made(store, "s")
    async with sql(address) as blocking, sql(address) as watching:
        transaction = blocking.transaction()
        await transaction.start()
        await blocking.execute("SELECT FROM bargein.sessions WHERE id = 's' FOR UPDATE")
        writing = asyncio.ensure_future(commit_one(store, step(head, said(1))))
        await waiting(watching)
        store._write_link.drop()
        with pytest.raises(StoreFailed):
            await writing
        reading = asyncio.ensure_future(looked(store, "s"))
        looks = asyncio.ensure_future(waiting(watching, 2))
        await asyncio.wait({looks, reading}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        looks.cancel()
        await transaction.commit()
        answered = (await reading).seq
        while await watching.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bargein writer' "
            "AND state = 'active' AND datname = current_database()"
        ):
            await asyncio.sleep(0.01)
        later = await watching.fetchval("SELECT seq FROM bargein.sessions WHERE id = 's'")
        # Whatever was decided, the session goes on.
        await commit_one(store, step(await looked(store, "s"), said(2)))
    await store.aclose()
    return int(later - answered)


async def test_a_commit_on_a_lost_connection_is_decided_when_the_session_is_read(
    address: str,
) -> None:
    assert await lost_in_flight(address) == 0


async def test_reading_without_a_new_generation_is_caught(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module.CommitWriter, "is_pending", lambda self, session: False)
    assert await lost_in_flight(address) == 1
