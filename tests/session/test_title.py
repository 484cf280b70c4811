"""Titles: made while nothing else runs, stopped by anything else, and never waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import msgspec
import pytest

from bargein.contracts.budget import Purpose
from bargein.contracts.event import ModelUsed, SessionTitled
from bargein.errors import UserError
from bargein.models.script import Answer, Expect, Fail, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.session.limits import Limits
from bargein.session.title import TRIES_MAX
from bargein.stores.memory import MemoryStore
from tests.session.laws import events_of
from tests.session.world import (
    CONFIG,
    LIMITS,
    HeldStore,
    World,
    a_while,
    completes,
    until,
    until_idle,
    wait_for,
)

pytestmark = pytest.mark.anyio

ANSWER = Answer([Say("Boil it for four minutes.")])
TITLE = Answer([Expect(system="a title", user="boil an egg"), Say('"Boiling an egg"\n')])
SLOW = Answer([Expect(system="a title"), Wait("title"), Say("Too late")])
WORDS = "How do I boil an egg?"


@asynccontextmanager
async def a_titled_world(
    *answers: Answer,
    store: MemoryStore | None = None,
    name: str = "model",
    limits: Limits = LIMITS,
) -> AsyncIterator[World]:
    model = ScriptedModel(answers, name=name)
    store = store or HeldStore()
    agent = Agent(model=model, titles=True)
    async with Engine(agent, store=store, config=CONFIG, limits=limits) as engine:
        yield World(engine, model, store)


async def titles(world: World) -> list[tuple[str, str]]:
    log = events_of(await world.log())
    return [(each.title, each.by) for each in log if isinstance(each, SessionTitled)]


def has_played(world: World, answers: int) -> bool:
    return len(world.model.plays) == answers


async def title_in_store(world: World) -> str:
    head = await world.store.head("alice")
    assert head is not None
    return str(head.title)


async def test_the_model_gives_a_title_after_the_first_turn() -> None:
    async with a_titled_world(ANSWER, TITLE, ANSWER) as world:
        session = await world.session()
        await completes(session, WORDS)
        await wait_for(session, SessionTitled)
        assert await titles(world) == [("Boiling an egg", "model")]
        assert await title_in_store(world) == "Boiling an egg"
        used = [e for e in events_of(await world.log()) if isinstance(e, ModelUsed)]
        assert [each.purpose for each in used] == [Purpose.ANSWER, Purpose.TITLE]
        await completes(session, "and then?")
        await a_while()
        assert len(await titles(world)) == 1
        await world.check()


async def test_a_title_keeps_no_message_waiting() -> None:
    """One that comes while it is made stops it; it is tried again afterwards."""
    async with a_titled_world(ANSWER, SLOW, ANSWER, TITLE) as world:
        session = await world.session()
        await completes(session, WORDS)
        await world.model.gate("title").reached()
        await completes(session, "and then?")
        assert world.model.plays[1].outcome == "cancelled"
        await wait_for(session, SessionTitled)
        assert await titles(world) == [("Boiling an egg", "model")]
        await world.check()


async def test_a_title_that_never_finds_the_time_is_made_of_words() -> None:
    script = [*[ANSWER, SLOW] * TRIES_MAX, ANSWER]
    async with a_titled_world(*script) as world:
        session = await world.session()
        for number in range(TRIES_MAX):
            await completes(session, WORDS)
            await until(partial(has_played, world, 2 * number + 2))
        await completes(session, "last")
        await wait_for(session, SessionTitled)
        assert await titles(world) == [(WORDS, "words")]


@pytest.mark.parametrize("scope", ["turn", "session"])
async def test_a_stop_stops_the_title_too(scope: str) -> None:
    async with a_titled_world(ANSWER, SLOW, ANSWER) as world:
        session = await world.session()
        await completes(session, WORDS)
        await world.model.gate("title").reached()
        receipt = await session.interrupt(scope=scope)
        assert receipt.status == "too_late"
        await wait_for(session, SessionTitled)
        assert world.model.plays[1].outcome == "cancelled"
        assert await titles(world) == [(WORDS, "words")]
        await completes(session, "next")
        await world.check()


async def test_an_album_that_stops_the_title_and_is_held_leaves_the_words() -> None:
    """Then there may be no other turn to make it after."""
    limits = msgspec.structs.replace(LIMITS, gather_s=30.0)
    async with a_titled_world(ANSWER, SLOW, limits=limits) as world:
        session = await world.session()
        await completes(session, WORDS)
        await world.model.gate("title").reached()
        await session.send("look", mode="interrupt", group="album")
        receipt = await session.interrupt()
        assert receipt.held == ("m2",)
        await wait_for(session, SessionTitled)
        assert await titles(world) == [(WORDS, "words")]
        await world.check()


async def test_a_stop_aimed_at_another_turn_does_not() -> None:
    async with a_titled_world(ANSWER, SLOW) as world:
        session = await world.session()
        await completes(session, WORDS)
        await world.model.gate("title").reached()
        await session.interrupt(expected_turn="t7")
        await a_while()
        assert world.model.plays[1].outcome == "playing"
        world.model.gate("title").open()
        await wait_for(session, SessionTitled)
        assert await titles(world) == [("Too late", "model")]


async def test_closing_waits_for_no_title_and_the_next_life_makes_one() -> None:
    store = HeldStore()
    async with a_titled_world(ANSWER, SLOW, store=store) as world:
        await completes(await world.session(), WORDS)
        await world.model.gate("title").reached()
        began = anyio.current_time()
    assert anyio.current_time() - began < LIMITS.settle_s
    async with a_titled_world(ANSWER, TITLE, store=store) as world:
        session = await world.session()
        assert not await titles(world)
        await completes(session, "again")
        await wait_for(session, SessionTitled)
        assert await titles(world) == [("Boiling an egg", "model")]


@pytest.mark.parametrize("bad", [Answer([Fail(status=400)]), Answer([Say(" \n ")])])
async def test_a_model_that_gives_none_leaves_the_first_words(bad: Answer) -> None:
    async with a_titled_world(ANSWER, bad) as world:
        session = await world.session()
        await completes(session, WORDS)
        await wait_for(session, SessionTitled)
        assert await titles(world) == [(WORDS, "words")]


async def test_after_a_turn_that_was_stopped_no_model_is_asked() -> None:
    async with a_titled_world(Answer([Say("Boil"), Wait("hold")])) as world:
        session = await world.session()
        await session.send(f"{WORDS}\nI have never " + "ever " * 40)
        await world.model.gate("hold").reached()
        await session.interrupt()
        await wait_for(session, SessionTitled)
        assert len(world.model.requests) == 1
        ((title, by),) = await titles(world)
        assert by == "words"
        assert title.startswith(f"{WORDS} I have never ever")
        assert title.endswith("…")
        assert len(title) <= 61


async def test_a_session_that_has_a_title_keeps_it() -> None:
    async with a_titled_world(ANSWER) as world:
        session = await world.session()
        await session.rename("  Eggs,\n mostly ", by="alice")
        await completes(session, WORDS)
        await a_while()
        assert await titles(world) == [("Eggs, mostly", "alice")]
        assert len(world.model.requests) == 1


async def test_renaming_while_the_title_is_made() -> None:
    async with a_titled_world(ANSWER, SLOW) as world:
        session = await world.session()
        await completes(session, WORDS)
        await world.model.gate("title").reached()
        await session.rename("Eggs")
        await a_while()
        assert await titles(world) == [("Eggs", "user")]
        assert await title_in_store(world) == "Eggs"
        await session.rename("More eggs")
        assert await title_in_store(world) == "More eggs"


async def test_a_title_has_a_bound() -> None:
    async with a_titled_world() as world:
        session = await world.session()
        for wrong in ("", " \n", "x" * 201):
            with pytest.raises(UserError, match="1 to 200"):
                await session.rename(wrong)
        assert not await titles(world)


async def test_a_script_keeps_its_answers_for_the_user() -> None:
    async with a_titled_world(ANSWER, Answer([Say("second")]), name="scripted") as world:
        session = await world.session()
        await completes(session, WORDS)
        await wait_for(session, SessionTitled)
        assert await titles(world) == [(WORDS, "words")]
        assert (await completes(session, "and?")).text == "second"
        await until_idle(session)
