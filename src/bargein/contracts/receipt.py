"""The receipt: what a stop did, told when all has settled."""

from enum import StrEnum

from bargein.cancel import Reason
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
    """What an interrupt is aimed at."""

    CALL = "call"
    CHILD = "child"
    TURN = "turn"
    SESSION = "session"


class ReceiptStatus(StrEnum):
    STOPPED = "stopped"
    """It was running and is not any more."""
    TOO_LATE = "too_late"
    """It had ended before. Nothing was touched."""


class StepKind(StrEnum):
    MODEL = "model"
    COMPRESSION = "compression"
    TOOL = "tool"
    HOOK = "hook"
    AGENT = "agent"
    CHILD = "child"


class StoppedStep(Value, frozen=True):
    """One thing that a stop met, and what became of it. `elapsed_ms` is from the stop until it
    was over. `unsuccessful` is that of the call's result."""

    kind: StepKind
    name: str
    status: CallStatus
    elapsed_ms: float
    call_id: str = ""
    effect: Effect = Effect.NONE
    summary: str = ""
    detail: StopDetail | None = None
    unsuccessful: bool = False


class Receipt(Value, frozen=True):
    """Requested is not done: this is done. `held` are the messages that wait until the user
    continues, `queued` those that go on by themselves. `stored` is False if the store had not
    confirmed within its time; then it is in memory only."""

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

    @property
    def abandoned(self) -> tuple[StoppedStep, ...]:
        return tuple(step for step in self.steps if step.status is CallStatus.ABANDONED)

    @property
    def uncertain(self) -> tuple[StoppedStep, ...]:
        """What may have happened half."""
        half = (CallStatus.STOPPED, CallStatus.ABANDONED, CallStatus.UNKNOWN)
        return tuple(s for s in self.steps if s.effect is not Effect.NONE and s.status in half)
