"""A turn that is about to be ended by its budget, or just was, and every cause of an interrupt.

Whoever comes first has ended it: the receipt names the one cause, nobody is told what is not true,
and afterwards everything is as if nothing had been.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from bargein.cancel import Cause as Why
from bargein.contracts.budget import Budget
from bargein.contracts.event import BudgetUsedUp, TurnOutcome, TurnSettled
from bargein.models.script import Answer, Call, Say
from tests.interrupt.causes import CAUSES, Cause
from tests.interrupt.phases import coroutine, send_and_reach
from tests.interrupt.stage import BYSTANDER, FALL_BACK, Act, Hold, Stage, nothing_left
from tests.session.laws import check_receipt, events_of
from tests.session.world import (
    WITHIN_S,
    HeldStore,
    a_while,
    a_world,
    answered,
    completes,
    until_idle,
)

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Moment:
    """`lands`: the budget has not ended the turn yet."""

    name: str
    reach: Act
    lands: bool


async def end_the_last_step(stage: Stage) -> None:
    await send_and_reach(stage)
    stage.hold.open()
    await anyio.lowlevel.checkpoint()


async def be_ended(stage: Stage) -> None:
    stage.store.hold(BudgetUsedUp)
    stage.hold.open()
    await stage.send()
    await stage.store.reached.wait()


MOMENTS = [
    Moment("in the last step", send_and_reach, lands=True),
    Moment("as the last step ends", end_the_last_step, lands=True),
    Moment("ended, not durable", be_ended, lands=False),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
async def test_row(moment: Moment, cause: Cause) -> None:
    hold = Hold()
    store = HeldStore()
    work = Answer([Say("I work."), Call("wait")], when="go")
    script = [BYSTANDER, work, *FALL_BACK]
    async with nothing_left(), anyio.create_task_group() as tasks:
        tools = [coroutine(hold)]
        async with a_world(script, tools=tools, store=store, budget=Budget(steps=2)) as world:
            stage = Stage(world, tasks, hold, await world.session())
            await stage.start_bystander()
            with anyio.fail_after(WITHIN_S):
                await moment.reach(stage)
            tasks.start_soon(let_go_soon, stage)
            with anyio.fail_after(WITHIN_S):
                await cause.apply(stage)
            if not cause.closes:
                await check_after(cause, stage)
        tasks.cancel_scope.cancel()
    async with a_world(FALL_BACK, store=store) as world:
        session = await world.session()
        await until_idle(session)
        await completes(session, "next")
        await world.check()
    await check_end(moment, cause, store)


async def let_go_soon(stage: Stage) -> None:
    await a_while()
    stage.store.release()
    await a_while()
    stage.hold.open()


async def check_after(cause: Cause, stage: Stage) -> None:
    result = await stage.first_result()
    assert result.outcome is TurnOutcome.STOPPED
    if stage.receipt is not None:
        check_receipt(stage.receipt)
    if stage.message is not None:
        assert (await answered(stage.message)).outcome is TurnOutcome.COMPLETED
    await until_idle(stage.session)
    if (await stage.session.state()).held:
        await stage.session.continue_()
        await until_idle(stage.session)
    assert (await completes(stage.session, "next")).text == "Next"
    await stage.world.check()
    await stage.check_bystander()


async def check_end(moment: Moment, cause: Cause, store: HeldStore) -> None:
    log = events_of(await store.events("alice"))
    (settled,) = [e for e in log if isinstance(e, TurnSettled) and e.turn == "t1"]
    assert settled.receipt is not None
    assert settled.receipt.reason is not None
    why = settled.receipt.reason.root.cause
    assert why in ((Why.BUDGET, cause.why) if moment.lands and cause.lands else (Why.BUDGET,))
    used_up = [e for e in log if isinstance(e, BudgetUsedUp) and e.turn == "t1"]
    assert len(used_up) == (why is Why.BUDGET)
