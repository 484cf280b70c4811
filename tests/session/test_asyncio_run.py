"""An engine in a loop that anyio did not start: a program of `asyncio.run`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine

import anyio
import pytest

from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallStatus
from bargein.models.script import Answer, Call, Say, Wait
from bargein.tools import tool
from bargein.tools.delegate import delegate_tool
from tests.session.family import delegating, held, holding
from tests.session.laws import outcomes
from tests.session.world import WITHIN_S, HeldStore, a_while, a_world, answered, completes


def test_a_stop_of_the_parent_ends_its_sub_agent_there_too() -> None:
    async def main() -> None:
        script = [delegating("go", "ann"), holding("ann")]
        async with a_world(script, tools=[delegate_tool()]) as world:
            session = await world.session()
            await session.send("go")
            await held(world, "ann")
            receipt = await session.interrupt()
        statuses = {step.kind: step.status for step in receipt.steps}
        assert statuses[StepKind.CHILD] is CallStatus.STOPPED
        assert statuses[StepKind.TOOL] is CallStatus.STOPPED

    asyncio.run(main())


def end_while_open(with_an_engine: Callable[[asyncio.Event], Coroutine[None, None, None]]) -> None:
    """A program that ends while an engine is open in another task. At its end `asyncio.run` cancels
    every task that it knows of, that one among them."""

    async def main() -> None:
        is_open = asyncio.Event()
        task = asyncio.create_task(with_an_engine(is_open))
        await is_open.wait()
        assert not task.done()

    asyncio.run(main())


def test_an_engine_goes_on_though_the_end_of_the_program_has_cancelled_its_tasks() -> None:
    said: list[str] = []

    async def with_an_engine(is_open: asyncio.Event) -> None:
        async with a_world([Answer([Say("Yes.")]), Answer([Say("Bye.")])]) as world:
            session = await world.session()
            await completes(session, "go")
            is_open.set()
            try:
                await asyncio.sleep(WITHIN_S)
            finally:
                said.append(str(await answered(await session.send("the last words"))))

    end_while_open(with_an_engine)
    assert said == ["Bye."]


@pytest.mark.parametrize("leaves", ["at once", "later"])
@pytest.mark.parametrize("kind", ["an answer", "a call"])
def test_the_end_of_the_program_stops_a_turn_in_good_order(kind: str, leaves: str) -> None:
    runs = asyncio.Event()

    @tool
    async def waits() -> str:
        """Waits."""
        runs.set()
        await anyio.sleep_forever()
        return ""

    call = Answer([Call("waits", {})]) if kind == "a call" else Answer([Say("Once"), Wait("end")])
    store = HeldStore()

    async def with_an_engine(is_open: asyncio.Event) -> None:
        async with a_world([call], tools=[waits], store=store) as world:
            await (await world.session()).send("go")
            if kind == "a call":
                await runs.wait()
            else:
                await world.model.gate("end").reached()
            is_open.set()
            try:
                await asyncio.sleep(WITHIN_S)
            finally:
                if leaves == "later":
                    await a_while()

    end_while_open(with_an_engine)
    log = anyio.run(store.events, "alice")
    assert outcomes(log) == {"t1": TurnOutcome.STOPPED}


def tasks_of_engines() -> list[asyncio.Task[object]]:
    """Those that are not over. The loop does not know them."""
    found = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
    return [task for task in found if task.get_name() == "bargein engine" and not task.done()]


@pytest.mark.parametrize("cancels", [1, 2])
def test_who_is_cancelled_while_an_engine_closes_waits_until_it_is_closed(cancels: int) -> None:
    """On asyncio a cancel goes through every shield; so does the one at the end of the program."""
    store = HeldStore()

    async def with_an_engine(is_open: asyncio.Event) -> None:
        async with a_world([Answer([Say("Once"), Wait("end")])], store=store) as world:
            await (await world.session()).send("go")
            await world.model.gate("end").reached()
            store.hold(TurnSettled)
            is_open.set()

    async def main() -> None:
        is_open = asyncio.Event()
        task = asyncio.create_task(with_an_engine(is_open))
        await is_open.wait()
        await store.reached.wait()
        for _ in range(cancels):
            task.cancel()
            await a_while()
            assert not task.done()
        store.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert outcomes(await store.events("alice")) == {"t1": TurnOutcome.STOPPED}
        assert tasks_of_engines() == []

    asyncio.run(main())
