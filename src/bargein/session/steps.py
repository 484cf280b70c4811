"""The open steps of a turn, and what became of those that a stop met: what a receipt is made of."""

from bargein.cancel import Clock
from bargein.contracts.receipt import StepKind, StoppedStep
from bargein.contracts.tool import CallStatus, Effect, StopDetail


class OpenStep:
    __slots__ = ("call_id", "effect", "kind", "name", "open")

    def __init__(self, kind: StepKind, name: str, call_id: str, effect: Effect) -> None:
        self.kind = kind
        self.name = name
        self.call_id = call_id
        self.effect = effect
        self.open = True


class StepBook:
    """Steps that were open when the cancel came, or that end after it, are in the receipt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: list[OpenStep] = []
        self._stopped: list[StoppedStep] = []
        self._effects: list[StoppedStep] = []
        self.cancelled_at: float | None = None

    def note_cancel(self) -> None:
        """Called at the moment of the cancel, in the canceller's thread."""
        self.cancelled_at = self._clock.now()

    @property
    def since_cancel_ms(self) -> float:
        return 0.0 if self.cancelled_at is None else (self._clock.now() - self.cancelled_at) * 1e3

    @property
    def stopped(self) -> tuple[StoppedStep, ...]:
        return tuple(self._stopped)

    @property
    def effects(self) -> tuple[StoppedStep, ...]:
        """What was over before the cancel and may have changed something."""
        return tuple(self._effects)

    def open(
        self, kind: StepKind, name: str, *, call_id: str = "", effect: Effect = Effect.NONE
    ) -> OpenStep:
        step = OpenStep(kind, name, call_id, effect)
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
        )
        if self.cancelled_at is not None:
            self._stopped.append(over)
        elif step.effect is not Effect.NONE and status is not CallStatus.NOT_STARTED:
            self._effects.append(over)

    def record(self, stopped: StoppedStep) -> None:
        self._stopped.append(stopped)

    def abandon_open(self) -> None:
        for step in list(self._open):
            self.close(step, CallStatus.ABANDONED)
