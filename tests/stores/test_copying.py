"""`bargein store copy`: all sessions from SQLite to PostgreSQL and back, compared and resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from bargein.cli.program import run
from bargein.contracts.store import Store, StoreFailed, commit_one
from bargein.stores.copying import RawSession, copy_sessions, verify_copy
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.address import parse_address
from bargein.stores.postgres.raw import RawPostgres, reading, writing
from bargein.stores.sqlite import SqliteStore
from bargein.stores.sqlite.raw import RawSqlite
from bargein.testing.store_conformance.commits import ONE_OF_EACH
from bargein.testing.store_conformance.large import much
from bargein.testing.store_conformance.scene import (
    claimed,
    key,
    looked,
    made,
    made_under,
    said,
    step,
)
from tests.stores.postgres_kinds import database, give_back, server, sql, take_database

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


@pytest.fixture
async def address(anyio_backend: object) -> AsyncIterator[str]:
    async with database() as given:
        yield given


async def fill(store: Store) -> None:
    for number in range(5):
        head = await made(store, f"s{number}", at=float(number))
        events = [said(n) for n in range(130 * number)]
        await commit_one(
            store, step(head, *events, *ONE_OF_EACH, keys=(key("c"),), text="hello \x00", title="T")
        )
    large = await looked(store, "s2")
    await commit_one(store, step(large, much(1), said(1), much(2)))
    child = await made_under(store, await claimed(store, "s1"), "s1/child")
    await commit_one(store, step(child, said(1), unfinished=True, state=b"st\x00"))


async def same(one: Store, other: Store) -> None:
    for name in [*(f"s{number}" for number in range(5)), "s1/child"]:
        assert await looked(one, name) == await looked(other, name)
        assert await one.events(name) == await other.events(name)
        assert await one.find_key(name, "ann", "c") == await other.find_key(name, "ann", "c")
    assert await one.search("hello") == await other.search("hello")
    assert await one.unfinished() == await other.unfinished()
    assert await one.sessions() == await other.sessions()


async def test_there_and_back_again(address: str, tmp_path: Path) -> None:
    file = tmp_path / "one.db"
    first = await SqliteStore.open(file, owner="one")
    await fill(first)
    await first.aclose()
    source = await RawSqlite.open(file)
    async with writing(parse_address(address)) as target:
        assert await copy_sessions(source, target) == 6
        assert await copy_sessions(source, target) == 0, "copied once"
    await source.aclose()
    back = await RawSqlite.create(tmp_path / "two.db")
    async with reading(parse_address(address)) as rows:
        assert await copy_sessions(rows, back) == 6
    await back.aclose()

    one = await SqliteStore.open(file)
    there = await PostgresStore.open(address, owner="new")
    again = await SqliteStore.open(tmp_path / "two.db")
    await same(one, there)
    await same(one, again)
    for store in (there, again):
        # The owner is gone everywhere, no epoch is given twice, and the log goes on.
        before = await looked(store, "s4")
        now = await claimed(store, "s4")
        assert now.epoch > max(before.epoch, (await looked(one, "s1")).epoch)
        await commit_one(store, step(now, said(9)))
    for store in (one, there, again):
        await store.aclose()


async def test_a_copy_that_was_interrupted_goes_on(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await SqliteStore.open(tmp_path / "one.db", owner="one")
    await fill(first)
    await first.aclose()
    source = await RawSqlite.open(tmp_path / "one.db")
    begun: list[str] = []
    begin = RawPostgres.begin

    async def fail(self: RawPostgres, session: RawSession) -> None:
        begun.append(session.id)
        await begin(self, session)
        if len(begun) == 3:
            raise ConnectionResetError("the network went")

    monkeypatch.setattr(RawPostgres, "begin", fail)
    with pytest.raises(StoreFailed, match="cannot be reached or failed"):
        async with writing(parse_address(address)) as target:
            await copy_sessions(source, target)
    monkeypatch.undo()
    async with writing(parse_address(address)) as target:
        assert await copy_sessions(source, target) == 4
    await source.aclose()


async def test_a_difference_is_found(address: str, tmp_path: Path) -> None:
    first = await SqliteStore.open(tmp_path / "one.db", owner="one")
    await fill(first)
    await first.aclose()
    source = await RawSqlite.open(tmp_path / "one.db")
    async with writing(parse_address(address)) as target:
        await copy_sessions(source, target)
        async with sql(address) as connection:
            await connection.execute("DELETE FROM bargein.events WHERE seq = 7")
        with pytest.raises(StoreFailed, match="the copied log of session"):
            await verify_copy(source, target)
    await source.aclose()


def test_the_command_copies_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], anyio_backend: str
) -> None:
    async def prepare() -> None:
        store = await SqliteStore.open(tmp_path / "one.db")
        await fill(store)
        await store.aclose()

    anyio.run(prepare)
    there = str(tmp_path / "two.db")
    given = ["store", "copy", str(tmp_path / "one.db"), there]
    assert run(given) == 0
    assert "6 of 6 sessions copied" in capsys.readouterr().out
    assert run(given) == 0
    assert "0 of 6 sessions copied" in capsys.readouterr().out
    assert run(["store", "copy", there, there]) == 2
    assert run(["store", "copy", str(tmp_path / "no.db"), there]) == 2
    assert run(["store", "copy", str(tmp_path / "one.db"), str(tmp_path / "no" / "x.db")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_a_database_in_use_is_not_copied_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], anyio_backend: str
) -> None:
    async def prepare() -> tuple[str, PostgresStore]:
        file = await SqliteStore.open(tmp_path / "one.db")
        await fill(file)
        await file.aclose()
        address = await take_database(server())
        return address, await PostgresStore.open(address, owner="busy")

    with anyio.from_thread.start_blocking_portal() as portal:
        address, store = portal.call(prepare)
        given = ["store", "copy", str(tmp_path / "one.db"), address]
        assert run(given) == 2
        assert "is in use by busy: stop it first" in capsys.readouterr().err
        portal.call(store.aclose)
        assert run(given) == 0
        assert "6 of 6 sessions copied" in capsys.readouterr().out
        portal.call(give_back, server(), address)
