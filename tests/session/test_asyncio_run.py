"""An engine in a loop that anyio did not start: a program of `asyncio.run`."""

from __future__ import annotations

import asyncio

from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallStatus
from bargein.tools.delegate import delegate_tool
from tests.session.family import delegating, held, holding
from tests.session.world import a_world


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
