"""The open steps of a turn, and the outcomes of those that a stop found. Receipts list them."""

from collections.abc import Callable

from bargein.cancel import Token
from bargein.contracts.model import Usage
from bargein.contracts.receipt import StepKind, StoppedStep
from bargein.contracts.tool import CallStatus, Effect, StopDetail

_UNCERTAIN = (CallStatus.STOPPED, CallStatus.ABANDONED, CallStatus.UNKNOWN)


def ms_since_cancel(token: Token) -> float:
    """Return the milliseconds since the token was cancelled; 0 if it was not."""
    at = token.cancelled_at
    return 0.0 if at is None else (token.clock.now() - at) * 1e3


def may_be_half_done(step: StoppedStep) -> bool:
    """Whether the step may have changed something, to an unknown extent."""
    return step.effect is not Effect.NONE and step.status in _UNCERTAIN


def uses_nothing() -> None:
    return None


class OpenStep:
    __slots__ = ("call_id", "effect", "kind", "name", "open", "usage")

    def __init__(
        self,
        kind: StepKind,
        name: str,
        call_id: str,
        effect: Effect,
        usage: Callable[[], Usage | None],
    ) -> None:
        self.kind = kind
        self.name = name
        self.call_id = call_id
        self.effect = effect
        self.usage = usage
        self.open = True


class StepBook:
    """The steps of the turn that `token` belongs to. The receipt lists those that were open at the
    cancel or began after it."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._open: list[OpenStep] = []
        self._stopped: list[StoppedStep] = []
        self._effects: list[StoppedStep] = []

    @property
    def cancelled_at(self) -> float | None:
        return self._token.cancelled_at

    @property
    def since_cancel_ms(self) -> float:
        return ms_since_cancel(self._token)

    @property
    def stopped(self) -> tuple[StoppedStep, ...]:
        return tuple(self._stopped)

    @property
    def effects(self) -> tuple[StoppedStep, ...]:
        """Steps that ended before the cancel and may have changed something."""
        return tuple(self._effects)

    def open(
        self,
        kind: StepKind,
        name: str,
        *,
        call_id: str = "",
        effect: Effect = Effect.NONE,
        usage: Callable[[], Usage | None] = uses_nothing,
    ) -> OpenStep:
        """`usage` returns what the step has used of models so far."""
        step = OpenStep(kind, name, call_id, effect, usage)
        self._open.append(step)
        return step

    def close(
        self,
        step: OpenStep,
        status: CallStatus,
        *,
        summary: str = "",
        detail: StopDetail | None = None,
        unsuccessful: bool = False,
    ) -> None:
        if not step.open:
            return
        step.open = False
        self._open.remove(step)
        usage = step.usage() if self._token.cancelled else None
        # A call refers to its step; the step must not refer back to it for ever.
        step.usage = uses_nothing
        over = StoppedStep(
            step.kind,
            step.name,
            status,
            self.since_cancel_ms,
            step.call_id,
            step.effect,
            summary,
            detail,
            unsuccessful,
            usage,
        )
        if self._token.cancelled:
            self._stopped.append(over)
        elif step.effect is not Effect.NONE and status is not CallStatus.NOT_STARTED:
            self._effects.append(over)

    def record(self, stopped: StoppedStep) -> None:
        self._stopped.append(stopped)

    def abandon_open(self) -> None:
        for step in list(self._open):
            self.close(step, CallStatus.ABANDONED)
