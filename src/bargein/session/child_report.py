"""Reports of sub-agents, for the parent's model, for receipts and for the log. Pure."""

from collections.abc import Sequence

import msgspec

from bargein.calls.words import step_line
from bargein.cancel import Cause, Reason
from bargein.contracts.event import TurnOutcome
from bargein.contracts.message import Message, Mode
from bargein.contracts.model import Text, Usage
from bargein.contracts.receipt import StepKind, StoppedStep
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.session.results import TurnResult
from bargein.session.steps import may_be_half_done

TEXT_CHARACTERS_MAX = 20_000
STEPS_TOLD_MAX = 20

_STATUS_OF = {
    TurnOutcome.COMPLETED: CallStatus.FINISHED,
    TurnOutcome.STOPPED: CallStatus.STOPPED,
    TurnOutcome.FAILED: CallStatus.FAILED,
    TurnOutcome.CRASHED: CallStatus.UNKNOWN,
}


def report(
    child: str,
    result: TurnResult,
    *,
    reason: Reason | None,
    did: Sequence[StoppedStep],
    beside: Sequence[StoppedStep],
    unheard: Sequence[Message],
) -> CallResult:
    """Report the outcome for the parent's model. `did` are the steps that may have changed
    something or that the stop found, `beside` those of them that ran in its background; `unheard`
    are messages that came too late."""
    lines = [f"[Sub-agent {child}: {_outcome(result, reason)}]"]
    if result.text.strip():
        if result.outcome is not TurnOutcome.COMPLETED:
            lines.append("[What it had said until then:]")
        lines.append(_bounded(result.text))
    elif result.outcome is TurnOutcome.COMPLETED:
        lines.append("(It said nothing.)")
    if result.outcome is not TurnOutcome.COMPLETED:
        lines += map(step_line, did[:STEPS_TOLD_MAX])
        if len(did) > STEPS_TOLD_MAX:
            lines.append(f"[and {len(did) - STEPS_TOLD_MAX} more steps]")
    elif beside:
        lines.append("[It left this running in its background, which was ended with it:]")
        lines += map(step_line, beside[:STEPS_TOLD_MAX])
    lines += [f"[Came too late for it, from {m.sender}:] {_bounded(m.text)}" for m in unheard]
    status = _STATUS_OF[result.outcome]
    return CallResult(status, (Text("\n".join(lines)),), summary(result, reason))


def summary(result: TurnResult, reason: Reason | None) -> str:
    """Describe the outcome in a few words, for people."""
    words = result.text.strip().splitlines()
    if result.outcome is TurnOutcome.COMPLETED and words:
        return words[0][:120]
    return _outcome(result, reason)


def not_begun(child: str, why: str) -> CallResult:
    told = f"[Sub-agent {child}: not started: {why}]"
    return CallResult(CallStatus.NOT_STARTED, (Text(told),), f"not started: {why}")


def begun_detached(child: str) -> CallResult:
    told = f"Sub-agent {child} is at work in the background. Its outcome will come as a message."
    return CallResult(CallStatus.DETACHED, (Text(told),), "in the background")


def given_up(child: str) -> CallResult:
    told = (
        f"[Sub-agent {child}: it did not stop in time. Anything it still does is dropped; what it "
        "did is not known.]"
    )
    return CallResult(CallStatus.ABANDONED, (Text(told),), "abandoned")


def news(child: str, task: str, result: CallResult) -> Message:
    """Make the message that tells the model the outcome of a detached sub-agent."""
    was_to = f" that was to: {_bounded(task, 500)}" if task else ""
    words = Text(f"[The sub-agent in the background{was_to}]")
    return Message(
        id=f"child-{child}", sender="background", mode=Mode.STEER, content=(words, *result.content)
    )


def steps(
    child: str,
    call_id: str,
    result: CallResult,
    below: Sequence[StoppedStep],
    elapsed_ms: float,
    usage: Usage,
) -> tuple[StoppedStep, ...]:
    """Return the steps of a stopped sub-agent for a receipt: itself, then its calls, its own
    sub-agents and everything abandoned, each with the session it belongs to."""
    passed_up = tuple(
        msgspec.structs.replace(step, call_id=f"{child}/{step.call_id}")
        if step.call_id and not step.call_id.startswith(f"{child}/")
        else step
        for step in below
        if step.kind in (StepKind.TOOL, StepKind.CHILD) or step.status is CallStatus.ABANDONED
    )
    half = any(map(may_be_half_done, below)) or result.status in (
        CallStatus.ABANDONED,
        CallStatus.UNKNOWN,
    )
    met = [f"{step.name} {step.status}" for step in below if step.kind is not StepKind.CHILD]
    itself = StoppedStep(
        StepKind.CHILD,
        child,
        result.status,
        elapsed_ms,
        call_id,
        Effect.UNKNOWN if half else Effect.NONE,
        "; ".join([result.summary, *met[:STEPS_TOLD_MAX]]),
        usage=usage,
    )
    return (itself, *passed_up)


def _outcome(result: TurnResult, reason: Reason | None) -> str:
    if result.outcome is TurnOutcome.FAILED:
        return f"failed: {result.error}"
    if result.outcome is not TurnOutcome.STOPPED or reason is None:
        return str(result.outcome)
    root = reason.root
    if root.cause is Cause.DEADLINE:
        return f"stopped: its time limit of {root.detail} was over"
    detail = f", {root.detail}" if root.detail else ""
    return f"stopped ({root.cause}{detail})"


def _bounded(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    if len(text) <= characters_max:
        return text
    half = characters_max // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
