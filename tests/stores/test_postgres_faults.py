"""PostgreSQL that fails: silent, restarted, killed, not there, not ours."""

# ruff: noqa: ASYNC110, ASYNC240  (what is waited for is in another process)

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bargein.contracts.store import StoreFailed, commit_one
from bargein.errors import UserError
from bargein.stores.postgres import PostgresStore, connection, schema
from bargein.stores.postgres.lease import LeaseTimes
from bargein.testing.postgres_server import PostgresServer
from bargein.testing.store_conformance.scene import claimed, looked, made, said, step
from tests.stores.postgres_kinds import database, sql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]

SHORT = LeaseTimes(renew_s=0.2, lasts_s=1.2, fence_s=0.8)
# On a busy machine PostgreSQL may need longer to come back than a lease lasts by default.
LONG = LeaseTimes(renew_s=0.5, lasts_s=60.0, fence_s=50.0)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be killed, and that syncs what it confirms."""
    with PostgresServer.start(settings=()) as started:
        yield started


@pytest.fixture
async def address(anyio_backend: object, server: PostgresServer) -> AsyncIterator[str]:
    async with database(server) as given:
        yield given


async def again(store: PostgresStore) -> None:
    """Waits until the store answers again."""
    async with asyncio.timeout(15):
        while True:
            try:
                await store.sessions(limit=1)
                await store.claim("nobody")
                return
            except StoreFailed:
                await asyncio.sleep(0.05)


async def test_what_was_confirmed_is_there_after_kill_9_of_postgres(
    address: str, server: PostgresServer
) -> None:
    store = await PostgresStore.open(address, lease=LONG)
    heads = [await made(store, f"s{n}") for n in range(8)]
    confirmed = dict.fromkeys((head.id for head in heads), 0)
    stop = asyncio.Event()

    async def write(name: str) -> None:
        head = await looked(store, name)
        while not stop.is_set():
            place = confirmed[name]
            await commit_one(store, step(head, said(place), expected_seq=place))
            confirmed[name] = place + 1

    writers = [asyncio.ensure_future(write(head.id)) for head in heads]
    while min(confirmed.values()) < 5:
        await asyncio.sleep(0.01)
    server.kill()
    results = await asyncio.gather(*writers, return_exceptions=True)
    assert all(isinstance(result, StoreFailed) for result in results), results
    server.run()
    await again(store)
    for name, count in confirmed.items():
        head = await looked(store, name)
        assert count <= head.seq <= count + 1, name
        assert [one.event for one in await store.events(name)] == [said(n) for n in range(head.seq)]
        # The outcome is decided now, and the same epoch goes on.
        await commit_one(store, step(head, said(head.seq)))
    await store.aclose()


async def test_a_server_that_never_answers_fails_within_a_bound(
    address: str, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 0.5)
    store = await PostgresStore.open(address, lease=LONG)
    head = await made(store, "s")
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    server.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(StoreFailed, match=r"did not answer within 0\.5 s") as caught:
            await commit_one(store, step(head, said(1)))
        assert time.monotonic() - began < 5
        assert "127.0.0.1" in str(caught.value)
        # A new connection is not answered either.
        with pytest.raises(StoreFailed, match="did not answer"):
            await store.claim("s")
    finally:
        server.signal(signal.SIGCONT)
    monkeypatch.undo()
    await again(store)
    now = await claimed(store, "s")
    assert now.seq in (0, 1)
    await commit_one(store, step(now, said(2)))
    await store.aclose()


async def test_a_node_that_cannot_renew_stops_before_its_lease_is_over(
    address: str, server: PostgresServer
) -> None:
    """And comes back under a new name when it can."""
    store = await PostgresStore.open(address, owner="one", lease=SHORT)
    other = await PostgresStore.open(address, owner="two")
    head = await made(store, "s")
    lost = asyncio.Event()
    store.on_lost(lost.set)
    await asyncio.sleep(3 * SHORT.renew_s)
    assert not lost.is_set()
    server.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(SHORT.lasts_s + 1):
            began = time.monotonic()
            await lost.wait()
        assert time.monotonic() - began < SHORT.lasts_s
    finally:
        server.signal(signal.SIGCONT)
    async with asyncio.timeout(10):
        while store.owner == "one":
            await asyncio.sleep(0.02)
    nodes = {node.id: node for node in await other.nodes()}
    assert nodes["one"].dead
    assert not nodes[store.owner].dead
    assert (await claimed(store, "s")).owner == store.owner
    assert (await looked(other, "s")).epoch > head.epoch
    await store.aclose()
    await other.aclose()


async def test_a_node_that_was_buried_hears_so_with_its_next_renewal(address: str) -> None:
    store = await PostgresStore.open(address, owner="one", lease=SHORT)
    lost = asyncio.Event()
    store.on_lost(lost.set)
    async with sql(address) as session:
        await session.execute("UPDATE bargein.nodes SET dead = true WHERE id = 'one'")
    async with asyncio.timeout(5):
        await lost.wait()
        while store.owner == "one":
            await asyncio.sleep(0.02)
    await made(store, "s")
    await store.aclose()


async def test_a_name_is_for_one_living_node(address: str) -> None:
    store = await PostgresStore.open(address, owner="one", node_address="http://here:1")
    with pytest.raises(UserError, match="a node named 'one' is alive already at http://here:1"):
        await PostgresStore.open(address, owner="one")
    await store.aclose()
    again_ = await PostgresStore.open(address, owner="one")
    await again_.aclose()


async def test_what_cannot_be_opened_is_named_without_the_password(server: PostgresServer) -> None:
    place = f"127.0.0.1:{server.port}"
    for given, kind, words in (
        (f"postgresql://bargein:sesame@{place}/nowhere", UserError, "does not exist"),
        (f"postgresql://stranger:sesame@{place}/postgres", UserError, "refuses this user"),
        ("postgresql://bargein:sesame@127.0.0.1:1/db", StoreFailed, "cannot be reached"),
    ):
        with pytest.raises(kind, match=words) as caught:
            await PostgresStore.open(given)
        text = str(caught.value)
        assert "127.0.0.1" in text
        assert "sesame" not in text


async def test_a_database_of_another_encoding_is_refused(server: PostgresServer) -> None:
    session = await server.connect()
    await session.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    await session.close()
    with pytest.raises(UserError, match="has the encoding LATIN1"):
        await PostgresStore.open(server.address("latin"))


async def test_old_and_new_programs_run_side_by_side_through_a_migration(address: str) -> None:
    old = await PostgresStore.open(address, owner="old")
    head = await made(old, "s")
    added = schema.PostgresMigration("adds", 1, ("ALTER TABLE bargein.nodes ADD COLUMN zone text",))
    breaks = schema.PostgresMigration(
        "breaks", schema.VERSION + 2, ("ALTER TABLE bargein.nodes ADD COLUMN rack text",)
    )
    async with sql(address) as session:
        await schema.migrate(session, (*schema.MIGRATIONS, added))
        # The old program goes on, and another old one can start.
        await commit_one(old, step(head, said(1)))
        await (await PostgresStore.open(address, owner="second")).aclose()
        await schema.migrate(session, (*schema.MIGRATIONS, added, breaks))
        with pytest.raises(UserError, match="was upgraded by a newer Bargein"):
            await PostgresStore.open(address, owner="third")
        await session.execute(f"DELETE FROM bargein.migrations WHERE number > {schema.VERSION}")
        await session.execute("ALTER TABLE bargein.nodes DROP COLUMN zone, DROP COLUMN rack")
    await old.aclose()


async def test_many_programs_make_the_tables_at_once(server: PostgresServer) -> None:
    empty = await server.new_database()
    opened = await asyncio.gather(*(PostgresStore.open(empty) for _ in range(5)))
    await made(opened[0], "s")
    for store in opened:
        assert (await looked(store, "s")).owner == opened[0].owner
        await store.aclose()


async def test_texts_with_null_characters_come_back_as_they_were(address: str) -> None:
    store = await PostgresStore.open(address)
    strange = ["a\x00b", "\x1a", "\x1a0", "\x1a1\x00", "\x00"]
    for name in strange:
        head = await made(store, name)
        await commit_one(store, step(head, said(1), title=name, text=f"word {name}"))
        assert (await looked(store, name)).title == name
    assert sorted(one.id for one in await store.sessions()) == sorted(strange)
    assert {one.session for one in await store.search("word")} == set(strange)
    await store.aclose()


async def test_the_tests_own_server_ends_with_the_program_that_started_it(
    anyio_backend: object,
) -> None:
    code = (
        "from bargein.testing.postgres_server import PostgresServer\n"
        "server = PostgresServer.start()\n"
        "print(server.folder, flush=True)\n"
        "input()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    folder = Path((await process.stdout.readline()).decode().strip())
    assert (folder / "data" / "postmaster.pid").exists()
    process.kill()
    await process.wait()
    async with asyncio.timeout(15):
        while folder.exists():
            await asyncio.sleep(0.02)
