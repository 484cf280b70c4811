"""The receipt: what a stop did. A session gives it when everything has settled."""

from enum import StrEnum

from bargein.cancel import Reason
from bargein.contracts.budget import Spent
from bargein.contracts.model import Usage
from bargein.contracts.tool import CallStatus, Effect, StopDetail
from bargein.contracts.value import Value

__all__ = [
    "Receipt",
    "ReceiptStatus",
    "Scope",
    "StepKind",
    "StoppedStep",
]


class Scope(StrEnum):
    """The kind of target of an interrupt."""

    CALL = "call"
    CHILD = "child"
    TURN = "turn"
    SESSION = "session"
    SIDE = "side"
    """A side question, by its id."""


class ReceiptStatus(StrEnum):
    STOPPED = "stopped"
    """The target was running and has ended."""
    TOO_LATE = "too_late"
    """The target had already ended. The interrupt touched nothing."""


class StepKind(StrEnum):
    MODEL = "model"
    COMPRESSION = "compression"
    TOOL = "tool"
    HOOK = "hook"
    AGENT = "agent"
    CHILD = "child"


class StoppedStep(Value, frozen=True):
    """One running thing that a stop found, and how it ended. `elapsed_ms` counts from the stop
    until its end. `unsuccessful` is copied from the call's result. `usage` is what a model request
    or a sub-agent used until it ended; that of a call is the sum of its sub-agents. None if the
    step asked no model."""

    kind: StepKind
    name: str
    status: CallStatus
    elapsed_ms: float
    call_id: str = ""
    effect: Effect = Effect.NONE
    summary: str = ""
    detail: StopDetail | None = None
    unsuccessful: bool = False
    usage: Usage | None = None


class Receipt(Value, frozen=True):
    """The proof that a stop is done, not only requested. `held` lists the messages that wait until
    the user continues, `queued` those that start by themselves. `stored` is False if the store did
    not confirm the receipt in time; then it exists in memory only. `spent` is the total of what was
    stopped: the whole turn with its sub-agents, or the call or sub-agent alone. None if nothing was
    stopped."""

    status: ReceiptStatus
    scope: Scope
    session: str
    target: str
    reason: Reason | None = None
    by: str = ""
    elapsed_ms: float = 0.0
    steps: tuple[StoppedStep, ...] = ()
    held: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    stored: bool = True
    spent: Spent | None = None

    @property
    def abandoned(self) -> tuple[StoppedStep, ...]:
        return tuple(step for step in self.steps if step.status is CallStatus.ABANDONED)

    @property
    def uncertain(self) -> tuple[StoppedStep, ...]:
        """Steps that may have happened in part."""
        half = (CallStatus.STOPPED, CallStatus.ABANDONED, CallStatus.UNKNOWN)
        return tuple(s for s in self.steps if s.effect is not Effect.NONE and s.status in half)
