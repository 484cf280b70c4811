"""What a turn leaves behind is freed when it is over, by reference counts alone.

What is in a circle waits for Python's collector. With thousands of turns in flight that looks
through much that is alive to find little that is not, for milliseconds, in the middle of a stop.
(A session that leaves memory, a failure with its trace, and a command are left to it: they are
rarer, or take longer than that themselves.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import anyio
import pytest

from bargein.contracts.event import TurnOutcome
from bargein.contracts.live import StepBegan
from bargein.contracts.message import Mode
from bargein.contracts.receipt import ReceiptStatus, StepKind
from bargein.models.script import Call, Say, Step, Wait
from bargein.session.session import Session
from bargein.tools import tool
from tests.garbage import what_only_the_collector_frees
from tests.session.world import World, a_while, a_world, answered, completes

pytestmark = pytest.mark.anyio

Play = Callable[[World, Session, str], Awaitable[None]]

TIMES = 3


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is fine"


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("as the test says")


@tool
async def sleep() -> str:
    """Wait until it is stopped."""
    await anyio.sleep_forever()
    return ""


async def completed(world: World, session: Session, gate: str) -> None:
    await completes(session, "Go")


async def stopped(world: World, session: Session, gate: str) -> None:
    sent = await session.send("Go")
    await world.model.gate(gate).reached()
    assert (await session.interrupt()).status is ReceiptStatus.STOPPED
    assert (await answered(sent)).outcome is TurnOutcome.STOPPED


async def stopped_in_calls(world: World, session: Session, gate: str) -> None:
    async with aclosing(session.watch()) as seen:
        sent = await session.send("Go")
        async for each in seen:
            if isinstance(each, StepBegan) and each.kind is StepKind.TOOL:
                break
    assert (await session.interrupt()).status is ReceiptStatus.STOPPED
    assert (await answered(sent)).outcome is TurnOutcome.STOPPED


async def steered(world: World, session: Session, gate: str) -> None:
    sent = await session.send("Go")
    await world.model.gate(gate).reached()
    await session.send("there")
    assert (await answered(sent)).outcome is TurnOutcome.COMPLETED


async def redirected(world: World, session: Session, gate: str) -> None:
    sent = await session.send("Go")
    await world.model.gate(gate).reached()
    other = await session.send("there", mode=Mode.INTERRUPT)
    assert (await answered(sent)).outcome is TurnOutcome.STOPPED
    assert (await answered(other)).outcome is TurnOutcome.COMPLETED


def hold(gate: str) -> Sequence[Step]:
    return [Say("It is "), Wait(gate), Say("done.")]


def say(gate: str) -> Sequence[Step]:
    return [Say("Fine.")]


def call(gate: str) -> Sequence[Step]:
    return [Call("look", {"at": "it"}), Call("fail")]


def sleep_twice(gate: str) -> Sequence[Step]:
    return [Call("sleep"), Call("sleep")]


@pytest.mark.parametrize(
    ("play", "answers"),
    [
        pytest.param(completed, [say], id="completed"),
        pytest.param(completed, [call, say], id="completed with calls"),
        pytest.param(stopped, [hold], id="stopped in a stream"),
        pytest.param(stopped_in_calls, [sleep_twice], id="stopped in calls"),
        pytest.param(steered, [hold, say], id="steered"),
        pytest.param(redirected, [hold, say], id="redirected"),
    ],
)
async def test_the_collector_finds_nothing_of_a_turn(
    play: Play, answers: Sequence[Callable[[str], Sequence[Step]]]
) -> None:
    gates = [f"gate {number}" for number in range(TIMES + 1)]
    script = [answer(gate) for gate in gates for answer in answers]
    async with a_world(script, tools=[look, sleep, fail]) as world:
        session = await world.session()
        await play(world, session, gates[0])
        await a_while()
        with what_only_the_collector_frees(of="bargein.") as found:
            for gate in gates[1:]:
                await play(world, session, gate)
            await a_while()
        assert found == []


@pytest.mark.parametrize("way", ["let go", "ended"])
async def test_a_session_that_has_left_memory_holds_no_words(way: str) -> None:
    """Its actor waits for the collector, which does not know how much it holds."""
    async with a_world([[Say("Fine.")], [Say("On and on"), Wait("never")]]) as world:
        session = await world.session()
        await completes(session, "Go")
        await session.settled()
        actor = session._engine.actor_in_memory(session.id)
        assert actor is not None
        if way == "let go":
            session._engine.let_go(session.id)
        else:
            await session.send("Go on")
            await world.model.gate("never").reached()
            await session.send("And then", mode=Mode.QUEUE)
            await session.end()
        assert world.in_memory == ()
        assert actor.held_bytes == 0
        assert actor.logbook.transcript.messages() == ()
        assert actor.state.waiting == ()
