"""Every phase of a turn times every cause of an interrupt, with the same checks after each.

After whichever row: the receipt was in time and is true; every message is in one place; the log and
what the model was asked are valid; the next message is answered as if nothing had been; another
session has noticed nothing; no task, thread or descriptor is left.
"""

from __future__ import annotations

import anyio
import msgspec
import pytest

from bargein.cancel import Cause as Why
from bargein.contracts.event import Recorded, TurnOutcome, TurnSettled
from bargein.contracts.receipt import ReceiptStatus
from bargein.session.broadcast import Observe
from tests.interrupt.causes import CAUSES, Cause
from tests.interrupt.phases import PHASES, Phase
from tests.interrupt.stage import BYSTANDER, FALL_BACK, Hold, Stage, check_nothing_left, footprint
from tests.session.laws import check_log, check_receipt, check_requests, events_of
from tests.session.world import (
    LIMITS,
    WITHIN_S,
    World,
    a_while,
    a_world,
    answered,
    completes,
    until,
    until_idle,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
async def test_row(phase: Phase, cause: Cause) -> None:
    before = footprint()
    hold = Hold()
    try:
        await row(phase, cause, hold)
    finally:
        hold.open()
    await check_nothing_left(before)


async def row(phase: Phase, cause: Cause, hold: Hold, observe: Observe | None = None) -> None:
    setting = phase.make(hold)
    limits = msgspec.structs.replace(LIMITS, **setting.limits)
    async with anyio.create_task_group() as tasks:
        async with a_world(
            [BYSTANDER, *setting.script, *FALL_BACK],
            tools=setting.tools,
            hooks=setting.hooks,
            policy=setting.policy,
            sleep=setting.sleep,
            wrap=setting.wrap,
            limits=limits,
            context_tokens=setting.context_tokens,
            titles=setting.titles,
            observe=observe,
        ) as world:
            stage = Stage(world, tasks, hold, await world.session())
            await stage.start_bystander()
            with anyio.fail_after(WITHIN_S):
                await phase.reach(stage)
            began = anyio.current_time()
            tasks.start_soon(release_when_landed, phase, cause, stage)
            await cause.apply(stage)
            if not cause.closes:
                assert anyio.current_time() - began < limits.receipt_s
                await check_after(phase, cause, stage)
                await stage.check_bystander()
                stage.let_go()
        if cause.closes:
            assert anyio.current_time() - began < 2 * limits.receipt_s
        tasks.cancel_scope.cancel()
    if cause.closes:
        stage.let_go()
        await check_next_engine(phase, cause, stage)
    check_requests(world.model.requests)


async def release_when_landed(phase: Phase, cause: Cause, stage: Stage) -> None:
    """Let go of the store, once the cause has done all that it can without it."""
    if phase.lands and cause.lands:
        await until(stage.has_landed)
    await a_while()
    phase.release(stage)


async def check_after(phase: Phase, cause: Cause, stage: Stage) -> None:
    stopped = phase.lands and (cause.lands or phase.stopped)
    if not stopped or phase.either:
        await go_on(phase, stage)
    result = await stage.first_result()
    landed = result.outcome is TurnOutcome.STOPPED
    assert phase.either or landed == stopped, result
    check_told(phase, cause, stage, landed)
    if stage.message is not None:
        assert (await answered(stage.message)).outcome is TurnOutcome.COMPLETED
    await until_idle(stage.session)
    if (await stage.session.state()).held:
        await stage.session.continue_()
        await until_idle(stage.session)
    assert (await completes(stage.session, "next")).text == "Next"
    await stage.world.check()
    check_settled(phase, cause, await stage.session.events(), landed)


async def go_on(phase: Phase, stage: Stage) -> None:
    """Nobody stopped the turn: let it come to its own end."""
    stage.let_go()
    for asked in await stage.session.questions():
        await stage.session.answer(asked.id, "allow")
    if phase.name == "paused":
        await stage.session.resume()


def check_told(phase: Phase, cause: Cause, stage: Stage, landed: bool) -> None:
    """What was said to whoever asked is what happened."""
    receipt = stage.receipt
    if receipt is None:
        return
    check_receipt(receipt)
    if receipt.status is ReceiptStatus.TOO_LATE and phase.stopped and cause.takes_time:
        # The one before it has had its grace meanwhile.
        return
    told = receipt.status is ReceiptStatus.STOPPED
    assert told == (landed and cause.lands), (receipt, landed)
    if told:
        assert receipt.target == "t1"
        assert receipt.stored


def check_settled(phase: Phase, cause: Cause, log: list[Recorded], landed: bool) -> None:
    settled = [e for e in events_of(log) if isinstance(e, TurnSettled) and e.turn == "t1"]
    assert len(settled) == 1
    receipt = settled[0].receipt
    assert (receipt is not None) == landed
    if receipt is None:
        return
    assert receipt.reason is not None
    assert phase.stopped or receipt.reason.root.cause is cause.why
    assert bool(receipt.abandoned) == phase.abandons, receipt
    if phase.steered:
        # A stop without a message holds it; after any other it goes on by itself.
        holds = receipt.reason.root.cause is Why.USER_STOP
        assert (phase.steered in receipt.held) == holds, receipt
        assert (phase.steered in receipt.queued) != holds, receipt


async def check_next_engine(phase: Phase, cause: Cause, stage: Stage) -> None:
    """The engine is gone; the next one on the same store goes on."""
    store = stage.store
    store.before_read = None
    async with a_world(FALL_BACK, store=store) as world:
        session = await world.session()
        await until_idle(session)
        assert (await completes(session, "next")).text == "Next"
        await check_both(world)
        log = await session.events()
        check_log(log, waiting=[item.message.id for item in await session.inbox()])
        settled = {e.turn: e for e in events_of(log) if isinstance(e, TurnSettled)}
        assert "t1" in settled
        if not phase.either:
            landed = settled["t1"].outcome is TurnOutcome.STOPPED
            assert landed == phase.lands, settled["t1"]
            check_settled(phase, cause, log, landed)


async def check_both(world: World) -> None:
    await world.check("alice")
    await world.check("bob")
