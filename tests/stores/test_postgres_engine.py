"""Engines on one PostgreSQL: each takes what is free, and stops what it may have lost."""

# ruff: noqa: ASYNC110  (what is waited for is in another thread)

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bargein import Agent, Engine
from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.live import Notice
from bargein.contracts.mail import Letter, StopAsked
from bargein.contracts.receipt import ReceiptStatus
from bargein.contracts.store import OwnedElsewhere
from bargein.models.script import Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import load_config
from bargein.session.elsewhere import Elsewhere
from bargein.session.reply import SessionGone
from bargein.session.retention import delete_unused, deleting
from bargein.session.session import Session
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres import store as store_module
from bargein.stores.postgres.lease import LeaseTimes
from tests.session.world import CONFIG, WITHIN_S, Script, World, a_world
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


async def test_an_engine_keeps_its_sessions_where_its_address_says(
    address: str, tmp_path: Path
) -> None:
    config = replace(CONFIG, home=tmp_path)

    def engine() -> Engine:
        model = ScriptedModel([[Say("hello")], [Say("again")]])
        return Engine(Agent(model=model), store=address, config=config)

    async with engine() as first:
        alice = await first.session("alice")
        assert (await (await alice.send("hi")).result()).text == "hello"
        async with engine() as second:
            with pytest.raises(OwnedElsewhere, match="'alice' belongs to"):
                await (await second.session("alice")).send("hi")
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


async def test_a_node_that_leaves_hands_its_work_over_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the bell can bring it.
    monkeypatch.setattr(store_module, "LOOK_S", 60.0)
    two = await PostgresStore.open(address, owner="two")
    async with a_world([[Say("taken over")]], store=two) as second:
        one = await PostgresStore.open(address, owner="one")
        async with a_world([[Wait("hold"), Say("first")]], store=one) as first:
            alice = await first.session("alice")
            await alice.send("go")
            await first.model.gate("hold").reached()
            await alice.send("and then", mode="queue")
            draining = asyncio.ensure_future(first.engine.core.drain())
            await asyncio.sleep(0)
            first.model.gate("hold").open()
            await draining
        await asyncio.sleep(0.1)
        assert second.in_memory == ()
        began = asyncio.get_running_loop().time()
        await one.aclose()
        again = Session(second.engine.core, "alice")
        async with asyncio.timeout(WITHIN_S):
            while "alice" not in second.in_memory:
                await asyncio.sleep(0.005)
        assert asyncio.get_running_loop().time() - began < 5
        await again.settled()
        settled = [
            each.event.outcome
            for each in await two.events("alice")
            if isinstance(each.event, TurnSettled)
        ]
        assert settled == [TurnOutcome.COMPLETED, TurnOutcome.COMPLETED]
    await two.aclose()


# --- a stop through another node


class TwoNodes:
    def __init__(self, one: World, two: World) -> None:
        self.one = one
        self.two = two


@asynccontextmanager
async def two_nodes(address: str, script: Script) -> AsyncIterator[TwoNodes]:
    one = await PostgresStore.open(address, owner="one")
    two = await PostgresStore.open(address, owner="two")
    async with a_world(script, store=one) as first, a_world([[Say("two")]], store=two) as second:
        yield TwoNodes(first, second)
    await one.aclose()
    await two.aclose()


async def test_a_stop_through_another_node_ends_the_turn(address: str) -> None:
    async with two_nodes(address, [[Wait("hold")], [Say("next")]]) as nodes:
        alice = await nodes.one.session("alice")
        sent = await alice.send("go")
        await nodes.one.model.gate("hold").reached()
        queued = await alice.send("later", mode="queue")
        there = await nodes.two.engine.session("alice")
        receipt = await there.interrupt(by="bob")
        assert (receipt.status, receipt.by) == (ReceiptStatus.STOPPED, "bob")
        assert receipt.held == (queued.message,)
        assert (await sent.result()).outcome is TurnOutcome.STOPPED
        assert nodes.two.in_memory == ()
        # Nothing runs any more: too late, and nothing is touched.
        again = await there.interrupt()
        assert again.status is ReceiptStatus.TOO_LATE
        await alice.continue_()
        assert (await queued.result()).text == "next"


async def late_letter(address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ReceiptStatus, bool]:
    """A stop is asked for while the first turn runs, and its letter arrives in the second. Returns
    its receipt, and whether the second turn was stopped."""
    held: list[asyncio.Event] = []
    receive = Elsewhere._receive

    async def hold(self: Elsewhere, letter: Letter) -> None:
        if not letter.answers:
            held.append(asyncio.Event())
            await held[-1].wait()
        await receive(self, letter)

    monkeypatch.setattr(Elsewhere, "_receive", hold)
    script: Script = [[Wait("first"), Say("1")], [Wait("second"), Say("2")]]
    async with two_nodes(address, script) as nodes:
        alice = await nodes.one.session("alice")
        first = await alice.send("go")
        await nodes.one.model.gate("first").reached()
        there = await nodes.two.engine.session("alice")
        stopping = asyncio.ensure_future(there.interrupt())
        async with asyncio.timeout(WITHIN_S):
            while not held:
                await asyncio.sleep(0.005)
        nodes.one.model.gate("first").open()
        await first.result()
        second = await alice.send("again")
        await nodes.one.model.gate("second").reached()
        monkeypatch.setattr(Elsewhere, "_receive", receive)
        for each in held:
            each.set()
        receipt = await stopping
        nodes.one.model.gate("second").open()
        return receipt.status, (await second.result()).outcome is TurnOutcome.STOPPED


async def test_a_letter_that_comes_late_stops_nothing_else(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await late_letter(address, monkeypatch) == (ReceiptStatus.TOO_LATE, False)


async def test_a_letter_without_an_aim_is_caught(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unaimed(self: Elsewhere, asked: StopAsked) -> StopAsked:
        return asked

    async def whatever_runs(self: Elsewhere, asked: StopAsked) -> None:
        return None

    monkeypatch.setattr(Elsewhere, "aim", unaimed)
    monkeypatch.setattr(Elsewhere, "meant", whatever_runs)
    assert await late_letter(address, monkeypatch) == (ReceiptStatus.STOPPED, True)


async def test_a_stop_for_a_node_that_died_is_answered_truthfully(address: str) -> None:
    async with two_nodes(address, [[Wait("hold")]]) as nodes:
        alice = await nodes.one.session("alice")
        await alice.send("go")
        await nodes.one.model.gate("hold").reached()
        there = await nodes.two.engine.session("alice")
        # It hears nothing more, and does not renew.
        await nodes.one.store.mail.aclose()
        async with sql(address) as connection:
            stopping = asyncio.ensure_future(there.interrupt())
            async with asyncio.timeout(WITHIN_S):
                while not await connection.fetchval("SELECT count(*) FROM bargein.mail"):
                    await asyncio.sleep(0.01)
            await connection.execute(
                "UPDATE bargein.nodes SET lease_until = clock_timestamp() - interval '1 s' "
                "WHERE id = 'one'"
            )
        receipt = await asyncio.wait_for(stopping, WITHIN_S)
        assert receipt.status is ReceiptStatus.TOO_LATE
        settled = [
            each.event.outcome
            for each in await nodes.two.log()
            if isinstance(each.event, TurnSettled)
        ]
        assert settled == [TurnOutcome.CRASHED]
        assert nodes.two.in_memory == ("alice",)


# --- files stay where they are


async def words_after_a_move(
    address: str, monkeypatch: pytest.MonkeyPatch, **environment: str
) -> tuple[list[str], list[str]]:
    """A session goes on at another machine. Returns what the model is asked there, request by
    request, and what the user is shown beside."""
    config = load_config(environment)
    models: list[ScriptedModel] = []

    @asynccontextmanager
    async def machine(name: str, script: Script) -> AsyncIterator[Engine]:
        monkeypatch.setattr(socket, "gethostname", lambda: name)
        models.append(ScriptedModel(script))
        store = await PostgresStore.open(address)
        async with Engine(Agent(model=models[-1]), store=store, config=config) as engine:
            yield engine
        await store.aclose()

    async with machine("left", [[Say("first")]]) as engine:
        await (await (await engine.session("alice")).send("hi")).result()
    async with machine("right", [[Say("second")], [Say("third")]]) as engine:
        alice = await engine.session("alice")
        shown = [event.text async for event in alice.stream("where?") if isinstance(event, Notice)]
        await (await alice.send("and now?")).result()
    return [str(each.messages[-1]) for each in models[-1].requests], shown


MOVED = "Files that were changed before are on left; files and commands are those of right"


async def test_model_and_user_hear_that_the_files_did_not_move(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), shown = await words_after_a_move(address, monkeypatch)
    assert MOVED in first
    assert MOVED not in second
    (notice,) = shown
    assert MOVED in notice


async def test_nobody_hears_so_where_the_files_are_shared(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, shown = await words_after_a_move(
        address, monkeypatch, BARGEIN_CLUSTER_SHARED_FILES="true"
    )
    assert not any("another machine" in each for each in asked)
    assert shown == []


# --- retention


async def test_retention_leaves_what_another_node_has(address: str) -> None:
    """That node may be about to use it: nothing of it shows in the list."""
    async with two_nodes(address, [[Say("first")], [Say("again")]]) as nodes:
        alice = await nodes.one.session("alice")
        await (await alice.send("hi")).result()
        core, store = nodes.two.engine.core, nodes.two.store

        async def unused() -> int:
            return await delete_unused(core, before=time.time() + 60, delete=deleting(store))

        assert await unused() == 0
        assert (await (await alice.send("still there?")).result()).text == "again"
        await nodes.one.store.aclose()
        assert await unused() == 1
        assert await store.head("alice") is None
