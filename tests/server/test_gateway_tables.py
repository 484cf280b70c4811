"""The contract of the gateway's tables, for the SQLite file and for PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import asyncpg
import pytest

from bargein.contracts.store import StoreFailed
from bargein.server import gateway_postgres
from bargein.server.access import add_token, revoke_token
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.gateway_postgres import GatewayPostgres
from bargein.server.gateway_tables import GatewayTables, NewOwner, OwnerRow, ReplyRow
from tests.server.stage import WITHIN_S
from tests.stores.postgres_kinds import database, server, sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
KINDS = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


@asynccontextmanager
async def opened(kind: str, tmp_path: Path) -> AsyncIterator[GatewayTables]:
    if kind == "sqlite":
        file = GatewayDb.open(tmp_path / FILE)
        yield file
        await file.aclose()
        return
    async with database() as address:
        tables = await GatewayPostgres.open(address)
        yield tables
        await tables.aclose()


@KINDS
async def test_tokens_are_kept_and_revoked_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as db:
        first, _ = await add_token(db, "alice", admin=True, note="laptop \x00 odd")
        second, _ = await add_token(db, "bob", expires_at=100.0, read_only=True, sessions=("s", ""))
        none, _ = await add_token(db, "carol", sessions=())
        assert db.tokens() == [first, second, none]
        assert (db.token(first.id), db.token("nobody")) == (first, None)
        named = [first.id, second.id, "nobody"]
        assert db.valid_among(named, 99.0) == {first.id, second.id}
        assert db.valid_among(named, 100.0) == {first.id}
        assert await revoke_token(db, first.id)
        assert not await revoke_token(db, first.id)
        assert not await revoke_token(db, "nobody")
        assert db.valid_among(named, 99.0) == {second.id}
        changed = db.token(first.id)
        assert changed is not None
        assert changed.revoked_at is not None
        # One entry a change, in order.
        entries = await db.entries(0, 10)
        assert [values[4] for _, values in entries] == ["add_token"] * 3 + ["revoke_token"]
        assert entries[0][1][6:] == (f"{first.id} for alice", 200, "admin")


@KINDS
async def test_owners_members_and_answers(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as db:
        assert await db.own(NewOwner("s", "alice", 1.0)) is None
        assert await db.own(NewOwner("t\x00", "bob", 2.0)) is None
        # Named by two at once: the first owns it.
        assert await db.own(NewOwner("s", "carol", 3.0)) is None
        await db.share("s", {"bob": "write", "c\x00": "read"})
        await db.consent("s", "bob", "accepted")
        await db.consent("s", "c\x00", "hidden")
        whole = OwnerRow(
            "s",
            "alice",
            1.0,
            {"bob": "write", "c\x00": "read"},
            {"bob": "accepted", "c\x00": "hidden"},
        )
        assert await db.owners(["s", "nobody"]) == [whole]
        assert {row.session for row in await db.owners()} == {"s", "t\x00"}
        assert await db.answers_of("alice") == {"s": None}
        assert await db.answers_of("bob") == {"s": "accepted", "t\x00": None}
        assert await db.answers_of("c\x00") == {"s": "hidden"}
        assert await db.answers_of("nobody") == {}
        # A new answer replaces the old one, and a new role the old role.
        await db.consent("s", "bob", "hidden")
        await db.consent("s", "bob", "accepted")
        await db.share("s", {"bob": "read"})
        (row,) = await db.owners(["s"])
        assert row.members == {"bob": "read"}
        assert row.consents == {"bob": "accepted", "c\x00": "hidden"}, "hidden stays hidden"
        await db.share("s", {})
        (row,) = await db.owners(["s"])
        assert (row.members, row.consents) == ({}, {"c\x00": "hidden"})
        await db.disown("s")
        assert await db.owners(["s"]) == []
        await db.own(NewOwner("s", "alice", 4.0))
        assert await db.owners(["s"]) == [OwnerRow("s", "alice", 4.0)]


@KINDS
async def test_a_key_makes_one_session(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as db:
        new = NewOwner("one", "alice", 1.0, "k", b"print", "\x01passing one")
        assert await db.own(new) is None
        again = NewOwner("two", "alice", 2.0, "k", b"other", "\x01passing two")
        assert await db.own(again) == ReplyRow(b"print", 0, b"one")
        assert [row.session for row in await db.owners()] == ["one"]
        assert await db.own(NewOwner("three", "bob", 2.0, "k", b"print")) is None
        assert await db.passing("\x01passing ") == ["one"]
        await db.disown("one", "\x01passing one")
        assert await db.passing("\x01passing ") == []
        assert await db.reply("alice", "k") == ReplyRow(b"print", 0, b"one")


@KINDS
async def test_answers_are_kept_for_a_while(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as db:
        assert await db.reply("alice", "k") is None
        for number in range(4):
            row = ReplyRow(b"p", 200, b"\x00body %d" % number)
            await db.keep_reply("alice", f"k{number}", row, float(number))
        await db.keep_reply("alice", "k0", ReplyRow(b"q", 201, b""), 10.0)
        assert await db.reply("alice", "k0") == ReplyRow(b"q", 201, b"")
        await db.prune_replies(3.0, 1)
        left = [await db.reply("alice", f"k{number}") is not None for number in range(4)]
        assert left == [True, False, True, True]


@KINDS
async def test_a_ticket_is_taken_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as db:
        await db.keep_ticket(b"one", b"body", 10.0)
        await db.keep_ticket(b"two", b"late", 10.0)
        assert await db.take_ticket(b"one", 9.0) == b"body"
        assert await db.take_ticket(b"one", 9.0) is None
        assert await db.take_ticket(b"two", 10.0) is None
        assert await db.take_ticket(b"two", 9.0) is None


@KINDS
async def test_the_audit_log_can_only_be_added_to(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as db:
        rows = [(float(n), "a", "t", "1", "stop", f"s{n}\x00", "c", 200, "x") for n in range(5)]
        db.add_entries(rows[:2])
        db.add_entries(rows[2:])
        found = await db.entries(0, 10)
        assert [values for _, values in found] == rows
        numbers = [number for number, _ in found]
        assert numbers == sorted(set(numbers))
        assert await db.entries(numbers[2], 1) == [found[3]]
        assert await db.old_entries(3.0, 0, 2) == [(numbers[0], "s0\x00"), (numbers[1], "s1\x00")]
        await db.remove_entries(numbers[:2], 2.0)
        with pytest.raises((StoreFailed, Exception), match=r"added to|failed|cannot"):
            await db.remove_entries(numbers[3:4], 2.0)
        assert [values for _, values in await db.entries(0, 10)] == rows[2:]


async def test_postgres_refuses_to_change_or_empty_the_audit_log() -> None:
    async with database() as address, sql(address) as session:
        tables = await GatewayPostgres.open(address)
        tables.add_entries([(1.0, "a", "t", "1", "stop", "s", "c", 200, "x")])
        await tables.entries(0, 1)
        for statement in (
            "UPDATE bargein.gateway_audit SET detail = ''",
            "DELETE FROM bargein.gateway_audit",
            "TRUNCATE bargein.gateway_audit",
        ):
            with pytest.raises(asyncpg.RaiseError, match="can only be added to"):
                await session.execute(statement)
        await tables.aclose()


async def test_changes_of_one_node_are_heard_by_the_others() -> None:
    async with database() as address:
        one, two = await GatewayPostgres.open(address), await GatewayPostgres.open(address)
        heard: list[frozenset[str] | None] = []
        used: list[tuple[str, bytes]] = []
        came = anyio.Event()

        async def changed(sessions: frozenset[str] | None) -> None:
            nonlocal came
            heard.append(sessions)
            came.set()
            came = anyio.Event()

        async def until_heard(count: int) -> None:
            with anyio.fail_after(WITHIN_S):
                while len(heard) < count:
                    await came.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(two.hear, changed, lambda *told: used.append(told))
            await until_heard(1)
            assert heard == [None], "it reads everything when it begins to listen"
            row, _ = await add_token(one, "alice")
            await until_heard(2)
            assert two.token(row.id) == row
            await one.own(NewOwner("s\x00", "alice", time.time()))
            await until_heard(3)
            await one.share("s\x00", {"bob": "read"})
            await until_heard(4)
            assert heard[1:] == [frozenset(), {"s\x00"}, {"s\x00"}]
            await one.own(NewOwner("x" * 9000, "alice", time.time()))
            await until_heard(5)
            assert heard[4] is None, "a name that does not fit stands for any"
            await two.tell_use(b'{"not": "mine"}')
            await one.tell_use(b"{}")
            assert await revoke_token(one, row.id)
            await until_heard(6)
            revoked = two.token(row.id)
            assert revoked is not None
            assert not revoked.is_valid(time.time())
            assert used == [(one._name, b"{}")]
            # A connection that is lost may have missed something.
            async with sql(address) as session:
                await session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'bargein changes' AND datname = current_database()"
                )
            await until_heard(7)
            assert heard[6] is None
            group.cancel_scope.cancel()
        await one.aclose()
        await two.aclose()


async def test_a_node_that_cannot_hear_the_database_admits_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_postgres, "STALE_S", 0.05)
    async with database() as address:
        tables = await GatewayPostgres.open(address)
        row, _ = await add_token(tables, "alice")
        await anyio.sleep(0.06)
        with pytest.raises(StoreFailed, match="was not heard"):
            tables.token(row.id)
        with pytest.raises(StoreFailed, match="was not heard"):
            await tables.check()
        await tables.aclose()


async def test_entries_wait_while_the_database_is_away() -> None:
    async with database() as address:
        tables = await GatewayPostgres.open(address)
        server().kill()
        try:
            tables.add_entries([(1.0, "a", "t", "1", "stop", "s", "c", 200, "x")])
            with pytest.raises(StoreFailed):
                await tables.check()
        finally:
            server().run()
        with anyio.fail_after(WITHIN_S):
            while not await tables.entries(0, 10):
                pass
        await tables.aclose()
