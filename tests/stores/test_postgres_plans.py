"""Plans that PostgreSQL makes while a database is empty, and keeps, are good for one that is full:
what a turn waits for finds its sessions by their ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from bargein.contracts.store import OwnedElsewhere, commit_one
from bargein.stores.postgres import PostgresStore, commit_sql, session_sql
from bargein.stores.postgres.connection import Connection
from bargein.testing.store_conformance.scene import claimed, looked, made, made_under, said, step
from tests.stores.postgres_kinds import database

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

# PostgreSQL plans so often for the values at hand, and then once for all.
OFTEN = 8
PREPARED = """SELECT name, parameter_types, custom_plans FROM pg_prepared_statements
    WHERE statement = $1"""
WAITED_FOR = ("COMMIT", "OWNER", "CLAIM", "CREATE_UNDER_ROOT", "RELEASE")


@pytest.fixture
async def address(anyio_backend: object) -> AsyncIterator[str]:
    async with database() as given:
        yield given


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes_of(below)


async def reads_of_sessions(connection: Connection, statement: str) -> list[str]:
    """How the plan that the connection keeps for a statement reads the sessions."""
    name, types, planned_anew = await connection.fetchrow(PREPARED, statement) or ("", (), 0)
    assert name, "the statement is not prepared"
    assert not planned_anew
    values = ", ".join(["NULL"] * len(types))
    plan = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name}({values})"))
    reads = [
        (each.get("Plans", [each])[0] if "Bitmap" in each["Node Type"] else each)
        for each in nodes_of(plan[0]["Plan"])
        if each.get("Relation Name") == "sessions" and each["Node Type"] != "ModifyTable"
    ]
    return [
        " ".join([each["Node Type"], each.get("Index Name", ""), each.get("Index Cond", "")])
        for each in reads
    ]


async def test_plans_of_an_empty_database_find_sessions_by_their_ids(address: str) -> None:
    store = await PostgresStore.open(address, owner="one")
    other = await PostgresStore.open(address, owner="two")
    theirs = await made(other, "theirs")
    root = await made(store, "root")
    for number in range(OFTEN):
        child = await made_under(store, root, f"root/{number}")
        for head in (root, child):
            await commit_one(store, step(await looked(store, head.id), said(number)))
        with pytest.raises(OwnedElsewhere):
            await store.claim(theirs.id)
        root = await claimed(store, "root")
        assert await store.release("root", epoch=root.epoch)
        root = await claimed(store, "root")
    statements = {
        name: getattr(commit_sql if name == "COMMIT" else session_sql, name) for name in WAITED_FOR
    }
    for name, statement in statements.items():
        reads = await store._write_link.run(partial(reads_of_sessions, statement=statement))
        assert reads, name
        for read in reads:
            assert "sessions_id_key" in read or "sessions_pkey" in read, f"{name}: {reads}"
            assert "id = " in read, f"{name}: {reads}"
    await store.aclose()
    await other.aclose()
