"""Engines on one PostgreSQL: each takes what is free, and stops what it may have lost."""

# ruff: noqa: ASYNC110  (what is waited for is in another thread)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from bargein import Agent, Engine
from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.store import OwnedElsewhere
from bargein.models.script import Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.reply import SessionGone
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.lease import LeaseTimes
from tests.session.world import CONFIG, WITHIN_S, a_world
from tests.stores.postgres_kinds import database, sql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"]),
]

SHORT = LeaseTimes(renew_s=0.1, lasts_s=1.0, fence_s=0.6)


@pytest.fixture
async def address(anyio_backend: object) -> AsyncIterator[str]:
    async with database() as given:
        yield given


async def test_an_engine_keeps_its_sessions_where_its_address_says(address: str) -> None:
    def engine() -> Engine:
        model = ScriptedModel([[Say("hello")], [Say("again")]])
        return Engine(Agent(model=model), store=address, config=CONFIG)

    async with engine() as first:
        alice = await first.session("alice")
        assert (await (await alice.send("hi")).result()).text == "hello"
        async with engine() as second:
            with pytest.raises(OwnedElsewhere, match="'alice' belongs to"):
                await second.session("alice")
            assert [head.id for head in await second.sessions()] == ["alice"]
    # A node that left in order leaves its sessions free.
    async with engine() as third:
        alice = await third.session("alice")
        assert (await (await alice.send("still there?")).result()).text == "hello"


async def test_a_node_that_lost_its_lease_stops_its_turns_and_another_goes_on(address: str) -> None:
    one = await PostgresStore.open(address, owner="one", lease=SHORT)
    async with a_world([[Wait("hold"), Say("done")]], store=one) as first:
        alice = await first.session("alice")
        turn = await alice.send("go")
        await first.model.gate("hold").reached()
        # The turn writes nothing while it waits: only the lost lease can tell it.
        async with sql(address) as connection:
            await connection.execute("UPDATE bargein.nodes SET dead = true WHERE id = 'one'")
        with anyio.fail_after(WITHIN_S), pytest.raises(SessionGone):
            await turn.result()
        assert first.in_memory == ()
        two = await PostgresStore.open(address, owner="two")
        async with a_world([[Say("hello")]], store=two) as second:
            again = await second.session("alice")
            await again.settled()
            outcomes = [
                each.event.outcome
                for each in await two.events("alice")
                if isinstance(each.event, TurnSettled)
            ]
            assert outcomes == [TurnOutcome.CRASHED]
            assert (await (await again.send("hi")).result()).text == "hello"
        # The first comes back under a new name, and takes what is free.
        await two.aclose()
        async with asyncio.timeout(WITHIN_S):
            while one.owner == "one":
                await asyncio.sleep(0.01)
        await first.engine.session("alice")
        head = await one.head("alice")
        assert head is not None
        assert head.owner == one.owner
    await one.aclose()


async def test_a_living_engine_goes_on_with_what_a_dead_node_left(address: str) -> None:
    """Without being asked, soon after the lease was over."""
    one = await PostgresStore.open(address, owner="one", lease=SHORT)
    two = await PostgresStore.open(address, owner="two")
    async with (
        a_world([[Say("taken over")]], store=two) as second,
        a_world([[Wait("hold")], [Say("never")]], store=one) as first,
    ):
        alice = await first.session("alice")
        await alice.send("go")
        await first.model.gate("hold").reached()
        await alice.send("and then", mode="queue")
        async with sql(address) as connection:
            # As kill -9 would: nothing is said, nothing renews.
            assert one._lease is not None
            one._lease._ask_for_more = None  # type: ignore[method-assign,assignment]
            await connection.execute(
                "UPDATE bargein.nodes SET lease_until = clock_timestamp() WHERE id = 'one'"
            )
        async with asyncio.timeout(WITHIN_S):
            while not any(
                isinstance(each.event, TurnSettled) and each.event.outcome is TurnOutcome.COMPLETED
                for each in await two.events("alice")
            ):
                await asyncio.sleep(0.02)
        settled = [
            each.event.outcome
            for each in await two.events("alice")
            if isinstance(each.event, TurnSettled)
        ]
        assert settled == [TurnOutcome.CRASHED, TurnOutcome.COMPLETED]
        assert second.in_memory == ("alice",)
    await one.aclose()
    await two.aclose()
