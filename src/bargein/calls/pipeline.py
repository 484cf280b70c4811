"""The pipeline for every call: of the model, of a tool, or of a program without a session.

    plan -> approve -> start -> run -> settle -> result

`invoke` does all of it. A session plans by itself, because it shows the call before it runs. It
gives `run_planned` a `start` that stores the call before it may have an effect.

- Approve: `decide` says whether the call runs, is refused, or needs the user's approval. The user
  is asked under the call's token.
- Run: `Toolbox.run` runs in a task that can be abandoned, under a token below the call's. That is
  the only containment of an async tool; the toolbox adds what threads and processes need.
- Settle: the pipeline sweeps what the work left running and makes the result from the outcome and
  the record. So the result is true even if the work never returned.

If the call's token is cancelled before the run, the result is "not started". After that the work is
cancelled, and abandoned when its grace is over. `run_planned` always returns a result. Call it
outside of a scope of the call's token: such a scope would drop the result.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from bargein.calls import words
from bargein.calls.record import CallRecord
from bargein.cancel import (
    CancelSource,
    Cause,
    Outcome,
    Token,
    TooManyAbandoned,
    bridge,
    current_token,
    run_abandonable,
)
from bargein.contracts.grace import TOOL_S
from bargein.contracts.model import ToolCall
from bargein.contracts.permission import PermissionMode, Permits, Reach
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    PlannedCall,
    Question,
    QuestionKind,
    Refused,
    Toolbox,
)
from bargein.errors import BargeinError

_log = logging.getLogger("bargein.calls")

Start = Callable[[PlannedCall], Awaitable[object]]
"""Stores that a call starts; it is durable when this returns."""


class CallAbandoned(Exception):
    """`Toolbox.run` raises this when it had to abandon work, such as a thread."""

    def __init__(self, grace_s: float) -> None:
        super().__init__(f"it did not stop within {grace_s:g} s")
        self.grace_s = grace_s


async def invoke(toolbox: Toolbox, call: ToolCall, context: CallContext) -> CallResult:
    """Take a call from plan to result."""
    planned = toolbox.plan(call)
    if isinstance(planned, Refused):
        return words.refused(planned.content, planned.why)
    return await run_planned(toolbox, planned, context)


async def run_planned(
    toolbox: Toolbox,
    planned: PlannedCall,
    context: CallContext,
    *,
    approved: bool = False,
    start: Start | None = None,
    grace_s: float = 0.0,
) -> CallResult:
    """Take a planned call to its result. `approved`: the user has already approved exactly this
    call. `grace_s`: how long the work may take to stop; 0 lets the plan decide."""
    token = context.token
    if token.cancelled:
        return words.not_started(token)
    refusal: CallResult | None = None
    with token.scope():
        refusal = await _approve_and_start(planned, context, approved, start)
    if token.cancelled:
        return words.not_started(token)
    if refusal is not None:
        return refusal
    if token.ended:
        return words.caller_over()
    result = await _run(toolbox, planned, context, grace_s or planned.grace_s or TOOL_S)
    if context.hooks is not None:
        await context.hooks.after(planned, result, token)
    return result


def decide(planned: PlannedCall, permits: Permits | None) -> Refused | Question | None:
    """Decide whether a call may run, from its plan, the mode and the grants. Pure.

    Returns a refusal, a question to the user, or None if the call may run. Without `permits` only
    the plan decides.
    """
    mode = permits.mode if permits is not None else PermissionMode.ASK
    if mode is PermissionMode.PLAN and planned.reach is not Reach.NOTHING and not planned.confined:
        return words.read_only(planned.call.name)
    question = planned.approval
    if question is None or mode is PermissionMode.FULL:
        return None
    if mode is PermissionMode.AUTO_EDIT and planned.reach is Reach.FILES:
        return None
    granted = permits is not None and question.grant is not None and permits.covers(question.grant)
    return None if granted else question


async def _approve_and_start(
    planned: PlannedCall, context: CallContext, approved: bool, start: Start | None
) -> CallResult | None:
    """Do everything between the plan and the run. Returns a result if the call must not run."""
    verdict = decide(planned, context.permits)
    if isinstance(verdict, Refused):
        return words.refused(verdict.content, verdict.why)
    if verdict is not None and not approved:
        answer = await context.ask(verdict, context.token)
        if not words.allows(answer):
            return words.not_approved(answer)
    if context.hooks is not None:
        refused = await context.hooks.before(planned, context.token)
        if refused is not None:
            return words.refused(refused.content, refused.why)
    if start is not None:
        await start(planned)
    return None


async def _run(
    toolbox: Toolbox, planned: PlannedCall, context: CallContext, grace_s: float
) -> CallResult:
    name = planned.call.name
    with context.token.child(name) as source:
        record = CallRecord(source, context.emit)
        inside = msgspec.structs.replace(context, token=source.token, record=record)

        async def work() -> CallResult:
            # The task has its own token below the record's, and a cancel of the task alone would
            # not reach the record: pass it on.
            task = current_token()
            assert task is not None
            bridge(task, lambda: _pass_on(task, source))
            source.token.check()
            record.begin()
            return await toolbox.run(planned, inside)

        try:
            outcome = await run_abandonable(
                work,
                token=source.token,
                grace_s=grace_s,
                stop="token",
                name=name,
                owner=context.owner,
            )
            return await _settle(planned, record, outcome, grace_s)
        except TooManyAbandoned as error:
            return words.refused(f"Not started: {error}.")
        finally:
            record.close()


def _pass_on(task: Token, source: CancelSource) -> None:
    reason = task.reason
    source.cancel(reason.root if reason is not None else Cause.CLIENT_GONE)


async def _settle(
    planned: PlannedCall, record: CallRecord, outcome: Outcome[CallResult], grace_s: float
) -> CallResult:
    error = outcome.error
    if isinstance(error, CallAbandoned):
        grace_s = error.grace_s
    is_abandoned = outcome.status == "abandoned" or isinstance(error, CallAbandoned)
    swept, cut_short = "", False
    leftovers = record.leftovers
    if leftovers is not None:
        swept = await leftovers.sweep(abandoned=is_abandoned)
        cut_short = leftovers.cut_short
    result = _result(planned, record, outcome, is_abandoned, cut_short, grace_s)
    return words.with_more(result, swept)


def _result(
    planned: PlannedCall,
    record: CallRecord,
    outcome: Outcome[CallResult],
    is_abandoned: bool,
    cut_short: bool,
    grace_s: float,
) -> CallResult:
    """Make the result. `cut_short`: the stop ended processes of the work, so its value may be
    wrong."""
    title, effect = planned.title, planned.effect
    if outcome.status == "finished" and outcome.value is not None and not cut_short:
        return outcome.value
    if is_abandoned:
        return words.abandoned(title, effect, record, grace_s)
    if record.token.cancelled:
        if not record.started:
            return words.not_started(record.token)
        # An error after the cancel is most likely caused by it.
        return words.stopped(title, effect, record, outcome.error)
    error = outcome.error or RuntimeError("it was cancelled by something inside itself")
    if not isinstance(error, BargeinError):
        _log.warning("tool %s failed", planned.call.name, exc_info=error)
    return words.failed(error)


async def nobody_to_ask(question: Question, token: Token) -> str:
    """An `ask` for programs without a user: it denies every approval."""
    if question.kind is QuestionKind.APPROVAL:
        return words.NOBODY_APPROVES
    return words.NOBODY_ANSWERS
