"""Several engines on one store, each an owner of its own: no engine takes what another one has."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.store import OwnedElsewhere, StoreFailed
from bargein.models.script import Say, Wait
from bargein.session.reply import SessionGone
from bargein.stores.memory import MemoryStore
from tests.session.world import WITHIN_S, a_world

pytestmark = pytest.mark.anyio


async def test_an_engine_that_starts_takes_no_session_of_a_living_one() -> None:
    first = MemoryStore("first", shared=True)
    async with a_world([[Wait("hold"), Say("done")]], store=first) as one:
        alice = await one.session("alice")
        turn = await alice.send("go")
        await one.model.gate("hold").reached()
        async with a_world([[Say("own")]], store=first.beside("second")) as two:
            assert await first.unfinished() == ["alice"]
            assert two.in_memory == ()
            with pytest.raises(OwnedElsewhere, match="'alice' belongs to first"):
                await two.session("alice")
            bob = await two.session("bob")
            assert (await (await bob.send("hi")).result()).text == "own"
            with pytest.raises(OwnedElsewhere, match="'bob' belongs to second"):
                await one.session("bob")
        one.model.gate("hold").open()
        assert (await turn.result()).text == "done"


async def test_an_engine_goes_on_with_the_sessions_of_a_dead_one() -> None:
    first = MemoryStore("first", shared=True)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(a_world([[Wait("hold")]], store=first))
        alice = await one.session("alice")
        turn = await alice.send("go")
        await one.model.gate("hold").reached()
        first.bury("first")
        async with a_world([[Say("again")]], store=first.beside("second")) as two:
            again = await two.session("alice")
            await again.settled()
            outcomes = [
                each.event.outcome
                for each in await two.log()
                if isinstance(each.event, TurnSettled)
            ]
            assert outcomes == [TurnOutcome.CRASHED]
            # The first engine notices at its next write, stops, and takes nothing back.
            one.model.gate("hold").open()
            with anyio.fail_after(WITHIN_S), pytest.raises(SessionGone):
                await turn.result()
            with pytest.raises(StoreFailed, match="declared dead"):
                await one.engine.session("alice")
            assert (await (await again.send("hi")).result()).text == "again"
