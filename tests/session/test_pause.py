"""Pause holds a turn at its next boundary; an interrupt beats it."""

from __future__ import annotations

import pytest

from bargein.contracts.event import TurnOutcome
from bargein.contracts.receipt import ReceiptStatus
from bargein.models.script import Call, Expect, Say, Step, Wait
from bargein.session.session import Session, TooLate
from bargein.session.turn import Turn
from tests.session.world import Gate, Script, World, a_while, a_world, answered, completes, until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Call("work")]


async def work() -> str:
    """Work."""
    return "worked"


SCRIPT: Script = [HOLD, [Say("Done")], [Say("Next")]]


async def paused_at_boundary(world: World, session: Session) -> None:
    await world.model.gate("hold").reached()
    await session.pause()
    world.model.gate("hold").open()
    state = await session.state()
    while not state.boundary:
        await a_while()
        state = await session.state()


async def test_a_paused_turn_lets_its_step_end_and_then_waits() -> None:
    async with a_world(SCRIPT, tools=[work]) as world:
        session = await world.session()
        sent = await session.send("Work")
        await paused_at_boundary(world, session)
        assert (await session.state()).phase == "paused"
        assert len(world.model.plays) == 1
        await session.resume()
        assert (await answered(sent)).text == "Done"
        await world.check()


async def test_a_pause_that_is_resumed_before_the_boundary_is_not_felt() -> None:
    async with a_world(SCRIPT, tools=[work]) as world:
        session = await world.session()
        sent = await session.send("Work")
        await world.model.gate("hold").reached()
        await session.pause()
        await session.pause()
        await session.resume()
        await session.resume()
        world.model.gate("hold").open()
        assert (await answered(sent)).text == "Done"


async def test_an_interrupt_beats_a_pause_and_the_next_turn_is_not_paused() -> None:
    async with a_world([HOLD, [Say("Next")]], tools=[work]) as world:
        session = await world.session()
        sent = await session.send("Work")
        await paused_at_boundary(world, session)
        receipt = await session.interrupt()
        assert receipt.status is ReceiptStatus.STOPPED
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        # The boundary that was left behind must not take the next turn's answer.
        assert (await completes(session, "And?")).text == "Next"
        await world.check()


async def test_a_steer_while_paused_is_taken_when_resumed() -> None:
    script: Script = [HOLD, [Expect(user="hurry"), Say("Done")]]
    async with a_world(script, tools=[work]) as world:
        session = await world.session()
        await session.send("Work")
        await paused_at_boundary(world, session)
        steer = await session.send("hurry")
        assert len(world.model.plays) == 1
        await session.resume()
        assert (await answered(steer)).text == "Done"
        await world.check()


@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
async def test_a_message_that_interrupts_beats_a_pause(mode: str) -> None:
    async with a_world([HOLD, [Say("Next")]], tools=[work]) as world:
        session = await world.session()
        await session.send("Work")
        await paused_at_boundary(world, session)
        assert (await completes(session, "Something else", mode=mode)).text == "Next"
        await world.check()


async def test_nothing_to_pause_and_nothing_to_resume_is_too_late() -> None:
    async with a_world(SCRIPT) as world:
        session = await world.session()
        with pytest.raises(TooLate, match="the session is idle"):
            await session.pause()
        with pytest.raises(TooLate, match="the session is idle"):
            await session.resume()


async def test_a_pause_is_over_with_its_turn() -> None:
    gate = Gate()

    async def agent(turn: Turn) -> str:
        if turn.id == "t1":
            await gate()
        else:
            await turn.boundary()
        return turn.id

    async with a_world(agent=agent) as world:
        session = await world.session()
        first = await session.send("1")
        await gate.reached.wait()
        await session.pause()
        second = await session.send("2", mode="queue")
        gate.opened.set()
        assert [(await answered(each)).text for each in (first, second)] == ["t1", "t2"]
        await until(lambda: world.in_memory == ("alice",))
        await world.check()
