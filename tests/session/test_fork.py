"""Forks: a new session that begins with what another one said."""

from __future__ import annotations

import pytest

from bargein import Agent, Engine
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.models.script import Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.stores.memory import MemoryStore
from tests.session.laws import check_log

pytestmark = pytest.mark.anyio


async def test_a_fork_begins_after_a_turn_and_changes_nothing() -> None:
    model = ScriptedModel([[Say("one")], [Say("two")], [Say("three")], [Wait("gate")]])
    async with Engine(Agent(model), store=MemoryStore()) as engine:
        session = await engine.session("s")
        await session.set_place(SessionPlace("/work", "m"))
        for words in ("first", "second"):
            await (await session.send(words)).result()
        log = await session.events()
        after_first = await engine.session(await session.fork("t1"))
        after_all = await engine.session(await session.fork())
        assert await after_first.transcript() == (await session.transcript())[:2]
        assert await after_all.transcript() == await session.transcript()
        assert await after_all.place() == SessionPlace("/work", "m")
        assert await session.events() == log
        assert (await (await after_first.send("other")).result()).text == "three"
        assert "second" not in str(model.requests[-1].messages)
        check_log(await after_first.events())
        # A turn that runs is not over: the fork ends before it.
        await session.send("third")
        running = await engine.session(await session.fork())
        assert await running.transcript() == await after_all.transcript()
        with pytest.raises(UserError, match="no turn t3 that is over"):
            await session.fork("t3")
        with pytest.raises(UserError, match="nothing to fork from"):
            await (await engine.session("empty")).fork()


async def test_everything_is_stopped_at_once() -> None:
    model = ScriptedModel([[Say("a"), Wait("gate")]] * 3)
    async with Engine(Agent(model), store=MemoryStore()) as engine:
        assert await engine.stop_all() == ()
        sent = [await (await engine.session(name)).send("go") for name in "abc"]
        receipts = await engine.stop_all(by="panic")
        assert {receipt.session for receipt in receipts} == set("abc")
        assert {receipt.by for receipt in receipts} == {"panic"}
        assert {str((await each.result()).outcome) for each in sent} == {"stopped"}
