"""Simulated tools: quick or slow, obedient or not, that raise, ask, and have counted effects."""

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.model import Text, ToolCall, ToolSchema
from bargein.contracts.tool import (
    Approval,
    CallContext,
    CallResult,
    CallStatus,
    ChildTask,
    Effect,
    PlannedCall,
    Question,
    QuestionKind,
    Refused,
)
from bargein.errors import ModelMisbehaved, WorldError
from bargein.session.turn import Turn
from bargein.testing.simulation.plan import Moment
from bargein.testing.simulation.record import Work

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life


class SimulatedToolbox:
    """The tools of one turn. The name of a tool says what it does."""

    def __init__(self, life: "Life", turn: Turn) -> None:
        self._life = life
        self._turn = turn

    def schemas(self) -> tuple[ToolSchema, ...]:
        return ()

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        if call.name == "refused":
            return Refused("no such file")
        rng = self._random(call.id)
        approval = None
        if call.name == "approval":
            choices = (Approval.ALLOW, Approval.DENY)
            approval = Question("may it?", QuestionKind.APPROVAL, choices)
        effect, grace_s = rng.choice(tuple(Effect)), rng.choice((0.0, 0.0, 0.0, 2.0, 60.0))
        return PlannedCall(call, effect, call.name, (), approval, grace_s=grace_s)

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        life, call = self._life, planned.call
        work = Work(
            life.number,
            context.session_id,
            self._turn.id,
            context.token,
            call.name,
            call.id,
            planned.effect,
            planned.grace_s,
        )
        if life.dead:
            return _result(CallStatus.STOPPED)
        life.note("the tool", call.name, "runs as", context.session_id, call.id)
        life.record.run_begins(work)
        life.world.happens(Moment.RUNS, context.session_id)
        rng = self._random(call.id)
        try:
            work.result = await _KINDS[call.name](_Running(life, work, context, rng))
            return work.result
        except anyio.get_cancelled_exc_class():
            if not context.token.cancelled and not life.dead:
                life.record.blame(1, f"{call.id} was cancelled, and its token was not")
            raise
        finally:
            if not life.dead:
                life.note("the tool", call.name, "ends as", context.session_id, call.id)
                life.record.ends(work)

    def _random(self, call: str) -> random.Random:
        return self._life.world.random("tool", self._turn.session, call)


class _Running:
    """One run, with what all kinds of tools need."""

    def __init__(self, life: "Life", work: Work, context: CallContext, rng: random.Random) -> None:
        self.life = life
        self.work = work
        self.context = context
        self.rng = rng
        self.seconds = rng.choice((0.0, 0.1, 0.5, 1.0, 3.0, 30.0))

    def take_effect(self) -> None:
        if not self.life.dead and self.work.effect is not Effect.NONE:
            self.work.effects += 1

    async def heed(self, seconds: float) -> bool:
        """Sleeps as an obedient tool does. Returns False if it was told to stop."""
        with self.context.token.scope():
            await self.life.sleep(seconds)
        return not self.context.token.cancelled


async def _quick(run: _Running) -> CallResult:
    run.take_effect()
    return _result(CallStatus.FINISHED)


async def _slow(run: _Running) -> CallResult:
    if run.rng.random() < 0.5:
        run.take_effect()
    if not await run.heed(run.seconds):
        return _result(CallStatus.STOPPED)
    run.take_effect()
    return _result(CallStatus.FINISHED)


async def _stubborn(run: _Running) -> CallResult:
    run.take_effect()
    await run.life.sleep(run.seconds)
    run.take_effect()
    return _result(CallStatus.FINISHED)


async def _crowd(run: _Running) -> CallResult:
    """Ignores cancels, with tasks of its own that do too. Not on trio, which cannot survive the
    closing of a task with an open nursery; the product does not run there."""
    if run.life.world.backend == "trio":
        return await _stubborn(run)
    async with anyio.create_task_group() as group:
        group.start_soon(run.life.sleep, run.seconds)
        await run.life.sleep(run.seconds / 2)
        run.take_effect()
    return _result(CallStatus.FINISHED)


async def _shielded(run: _Running) -> CallResult:
    with anyio.CancelScope(shield=True):
        await run.life.sleep(run.seconds)
        run.take_effect()
    return _result(CallStatus.FINISHED)


async def _late(run: _Running) -> CallResult:
    """Notices the stop and finishes anyway, a little later."""
    if not await run.heed(run.seconds):
        await run.life.sleep(run.rng.choice((0.0, 0.2, 1.0)))
    run.take_effect()
    return _result(CallStatus.FINISHED)


async def _background(run: _Running) -> CallResult:
    """Moves itself to the background and goes on there; told to stop, it may finish anyway.
    Sometimes the model has already seen its end."""
    assert run.context.background is not None
    if run.context.background.enter(_result(CallStatus.DETACHED)) and run.rng.random() < 0.2:
        run.context.background.outcome_is_known()
    return await (_late if run.rng.random() < 0.3 else _slow)(run)


async def _raises(run: _Running) -> CallResult:
    await run.life.sleep(run.seconds)
    raise WorldError("the tool failed (simulated)", retryable=False)


async def _asks(run: _Running) -> CallResult:
    for number in range(run.rng.choice((1, 2))):
        await run.context.ask(Question(f"question {number}?"), run.context.token)
    run.take_effect()
    return _result(CallStatus.FINISHED)


async def _delegates(run: _Running) -> CallResult:
    """Starts sub-agents, which are agents of this world too, so they delegate and ask as well."""
    assert run.context.delegate is not None
    tasks = [ChildTask(f"{run.work.call_id} part {n}") for n in range(run.rng.choice((1, 2)))]
    if run.rng.random() < 0.2:
        tasks = [msgspec.structs.replace(task, timeout_s=1.0) for task in tasks]
    try:
        await run.context.delegate(tasks, run.context.token, detached=run.rng.random() < 0.3)
    except ModelMisbehaved:
        return _result(CallStatus.FAILED)
    return _result(CallStatus.FINISHED)


_KINDS: dict[str, Callable[[_Running], Awaitable[CallResult]]] = {
    "crowd": _crowd,
    "quick": _quick,
    "slow": _slow,
    "stubborn": _stubborn,
    "shielded": _shielded,
    "late": _late,
    "background": _background,
    "raises": _raises,
    "asks": _asks,
    "delegates": _delegates,
    "approval": _slow,
}


def _result(status: CallStatus) -> CallResult:
    return CallResult(status, (Text(f"it {status}"),), str(status))
