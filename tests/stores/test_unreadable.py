"""A session that cannot be read, on disk and in PostgreSQL: every other session starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.store import SessionUnreadable, Store, commit_one
from bargein.models.script import Say, Wait
from bargein.testing.store_conformance import StoreUnderTest
from bargein.testing.store_conformance.scene import claimed, step
from tests.session.world import WITHIN_S, Script, a_world
from tests.stores.kinds import SqliteStores
from tests.stores.postgres_kinds import PostgresStores

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
KINDS = pytest.mark.parametrize("kind", [SqliteStores, PostgresStores])

NEWER = msgspec.msgpack.encode({"type": "dream_dreamt", "turn": "t1"})


@asynccontextmanager
async def data(kind: type[StoreUnderTest], directory: Path) -> AsyncIterator[StoreUnderTest]:
    stores = kind(directory)
    try:
        yield stores
    finally:
        if isinstance(stores, PostgresStores):
            await stores.drop()


@asynccontextmanager
async def opened(stores: StoreUnderTest, owner: str) -> AsyncIterator[Store]:
    store = await stores.open(owner)
    try:
        yield store
    finally:
        await store.aclose()


@KINDS
@pytest.mark.parametrize("body", [b"\xc1", NEWER], ids=["damaged", "newer"])
async def test_a_start_goes_on_with_the_others_and_names_those_it_cannot_read(
    kind: type[StoreUnderTest], body: bytes, tmp_path: Path
) -> None:
    """`a` has an event and `b` a state that cannot be read; `c` has a turn to go on with. All
    three are unfinished, so a start brings them back."""
    script: Script = [[Say("One "), Wait(name)] for name in "abc"]
    async with data(kind, tmp_path) as stores:
        async with opened(stores, "one") as store, a_world(script, store=store) as world:
            for name in "abc":
                session = await world.session(name)
                await session.send("1")
                await world.model.gate(name).reached()
                await session.send("2", mode="queue")
                await session.interrupt()
            last = (await store.events("a"))[-1].seq
        await stores.damage_event("a", last - 1, body)
        async with opened(stores, "two") as store:
            head = await claimed(store, "b")
            await commit_one(store, step(head, state=b"\xc1", unfinished=True))
        async with opened(stores, "three") as store:
            assert await store.unfinished() == ["a", "b", "c"]
            async with a_world([[Say("two")], [Say("three")]], store=store) as world:
                with anyio.fail_after(WITHIN_S):
                    assert world.engine.core.unreadable.keys() == {"a", "b"}
                    for name in "ab":
                        words = f"of session '{name}' cannot be read"
                        with pytest.raises(SessionUnreadable, match=words):
                            await world.engine.session(name)
                    session = await world.session("c")
                    await session.continue_()
                    await session.settled()
                    ends = [each.event for each in await session.events()]
                    assert [each.outcome for each in ends if isinstance(each, TurnSettled)] == [
                        TurnOutcome.STOPPED,
                        TurnOutcome.COMPLETED,
                    ]
                    new = await world.session("d")
                    assert (await (await new.send("hi")).result()).text == "three"
