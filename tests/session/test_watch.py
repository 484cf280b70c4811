"""Watching a session: nothing missed, nothing twice, and a slow reader hurts nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest

from bargein.contracts.event import AssistantSaid, MessageAccepted, Recorded, TurnSettled
from bargein.contracts.live import CallOutput, Paused, StepBegan, Stopping, TextDelta
from bargein.models.script import Call, Say, Step, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.session.broadcast import TooSlow, Watched
from bargein.session.journal import JournalBroken
from bargein.session.session import Session
from bargein.tools import ToolContext
from tests.session.world import (
    CONFIG,
    WITHIN_S,
    Script,
    a_while,
    a_world,
    completes,
    until,
    watching,
)

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


def seqs(seen: list[Watched]) -> list[int]:
    return [each.seq for each in seen if isinstance(each, Recorded)]


async def seen_until_settled(session: Session, after: int | None, turns: int) -> list[Watched]:
    seen: list[Watched] = []
    with anyio.fail_after(WITHIN_S):
        async with aclosing(session.watch(after=after)) as events:
            async for each in events:
                seen.append(each)
                if isinstance(each, Recorded) and isinstance(each.event, TurnSettled):
                    turns -= 1
                    if not turns:
                        break
    return seen


async def test_events_and_what_happens_between_them_come_in_order() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        async with watching(session) as seen:
            await session.send("Hi")
            await world.model.gate("hold").reached()
            world.model.gate("hold").open()
            await until(lambda: any(isinstance(getattr(e, "event", e), TurnSettled) for e in seen))
        assert seqs(seen) == list(range(1, len(await session.events()) + 1))
        words = [each.text for each in seen if isinstance(each, TextDelta)]
        assert words == ["One ", "two"]
        kinds = [type(getattr(each, "event", each)) for each in seen]
        assert kinds.index(MessageAccepted) < kinds.index(StepBegan) < kinds.index(TextDelta)
        assert kinds.index(TextDelta) < kinds.index(AssistantSaid) < kinds.index(TurnSettled)


async def test_a_stop_is_shown_at_once() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        async with watching(session) as seen:
            await session.send("Hi")
            await world.model.gate("hold").reached()
            await session.interrupt()
            await until(lambda: Stopping("t1") in seen)
        assert seen.count(Stopping("t1")) == 1


async def test_a_pause_is_shown_at_once_and_only_what_changes() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        async with watching(session) as seen:
            await session.send("Hi")
            await world.model.gate("hold").reached()
            for _ in range(2):
                await session.pause()
            for _ in range(2):
                await session.resume()
            await session.interrupt()
            await until(lambda: Stopping("t1") in seen)
        pauses = [each for each in seen if isinstance(each, Paused)]
        assert pauses == [Paused("t1", paused=True), Paused("t1", paused=False)]


@pytest.mark.parametrize("after", [0, 1, 3, 6])
async def test_one_who_begins_late_misses_nothing_and_sees_nothing_twice(after: int) -> None:
    async with a_world([[Say("a")], HOLD]) as world:
        session = await world.session()
        await completes(session, "1")
        async with anyio.create_task_group() as group:
            results: list[list[Watched]] = []

            async def watch() -> None:
                results.append(await seen_until_settled(session, after, 2 if after < 6 else 1))

            for _ in range(3):
                group.start_soon(watch)
            group.start_soon(session.send, "2")
            await world.model.gate("hold").reached()
            for _ in range(3):
                group.start_soon(watch)
            await a_while()
            world.model.gate("hold").open()
        last = len(await session.events())
        assert len(results) == 6
        for seen in results:
            assert seqs(seen) == list(range(after + 1, last + 1))


async def read_all(events: AsyncIterator[Watched], into: list[Watched]) -> None:
    async for each in events:
        into.append(each)  # noqa: PERF401 - what came before an error is wanted too


async def test_a_watcher_that_is_too_slow_is_cut_off_and_can_go_on_where_it_was() -> None:
    script: Script = [[*(Say(f"{n} ") for n in range(50))], [Say("fine")]]
    async with a_world(script, watcher_events_max=20) as world:
        session = await world.session()
        slow = session.watch(after=0)
        async with aclosing(slow):
            async with anyio.create_task_group() as group:
                group.start_soon(slow.__anext__)
                await a_while()
                await completes(session, "Count")
            seen: list[Watched] = []
            with pytest.raises(TooSlow, match="more than 20 events or ") as cut:
                await read_all(slow, seen)
            assert cut.value.retryable
        last = max([1, *seqs(seen)])
        await completes(session, "And?")
        rest = await seen_until_settled(session, last, 2)
        assert seqs(rest)[0] == last + 1
        await world.check()


async def test_a_watcher_that_goes_away_stops_nothing() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        async with watching(session):
            sent = await session.send("Hi")
            await world.model.gate("hold").reached()
        world.model.gate("hold").open()
        with anyio.fail_after(WITHIN_S):
            assert (await sent.result()).text == "One two"


async def test_watching_goes_on_when_the_store_failed_and_the_session_came_back() -> None:
    async with a_world([[Say("a")], [Say("b")]]) as world:
        session = await world.session()
        async with watching(session, after=0) as seen:
            await completes(session, "1")
            world.held_store.fail_next(MessageAccepted)
            with pytest.raises(JournalBroken):
                await session.send("lost")
            await completes(session, "2")
            last = len(await session.events())
            await until(lambda: last in seqs(seen))
        assert seqs(seen) == list(range(1, last + 1))


async def test_who_only_watches_takes_no_session_back_from_another_owner() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        watched = anyio.Event()

        async def watch() -> None:
            async with aclosing(session.watch()) as events:
                async for _ in events:
                    watched.set()

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                await a_while()
                await session.send("Hi")
                await watched.wait()
                taken = await world.store.claim("alice")
                with pytest.raises(JournalBroken):
                    await session.send("one more")
        now = await world.store.head("alice")
        assert taken is not None
        assert now is not None
        assert now.epoch == taken.epoch
        assert world.in_memory == ()


async def test_a_session_that_is_watched_does_not_leave_memory() -> None:
    async with a_world([[Say("a")]], idle_s=0.01) as world:
        session = await world.session()
        async with watching(session) as seen:
            with anyio.move_on_after(0.1):
                await anyio.sleep_forever()
            assert world.in_memory == ("alice",)
            await completes(session, "1")
            assert seqs(seen)
        await until(lambda: world.in_memory == ())


async def test_output_of_a_call_is_shown_as_it_comes() -> None:
    async def talk(context: ToolContext) -> str:
        """Talk."""
        context.emit("line 1\n")
        return "talked"

    async with a_world([[Call("talk")], [Say("Done")]], tools=[talk]) as world:
        session = await world.session()
        async with watching(session) as seen:
            await completes(session, "Talk")
            await until(lambda: CallOutput("t1", "t1_1_1", "line 1\n") in seen)


async def test_watching_ends_with_the_engine() -> None:
    async with anyio.create_task_group() as group:
        async with a_world([[Say("a")]]) as world:
            session = await world.session()
            ended = anyio.Event()

            async def watch() -> None:
                async with aclosing(session.watch()) as events:
                    async for _ in events:
                        pass
                ended.set()

            group.start_soon(watch)
            await a_while()
        with anyio.fail_after(WITHIN_S):
            await ended.wait()


async def test_an_observer_sees_every_session_and_harms_none_when_it_fails() -> None:
    seen: list[tuple[str, Watched]] = []

    def observe(session: str, event: Watched) -> None:
        seen.append((session, event))
        raise ValueError("as the test says")

    agent = Agent(model=ScriptedModel([[Say("a")], [Say("b")]]))
    async with Engine(agent, store="memory", config=CONFIG, observe=observe) as engine:
        for name in ("alice", "bob"):
            session = await engine.session(name)
            await completes(session, "Hi")
            await session.settled()
            told = [event for whose, event in seen if whose == name]
            assert [each.seq for each in told if isinstance(each, Recorded)] == [
                each.seq for each in await session.events()
            ]
            assert sum(isinstance(each, TextDelta) for each in told) == 1
