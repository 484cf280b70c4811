"""Keeps what is known about one call while it runs, so that its result is true however it ends."""

from collections.abc import Callable

import msgspec

from bargein.calls.text import KeptText
from bargein.cancel import CancelSource
from bargein.contracts.tool import Leftovers, ProcessEnd, StopDetail


class CallRecord:
    """One call's `contracts.tool.CallNotes`. The toolbox writes to it while the call runs. The
    pipeline reads it when the call is over, even if the work never returned. Lives in one event
    loop."""

    def __init__(self, source: CancelSource, emit: Callable[[str], None]) -> None:
        self.token = source.token
        self.began_at: float | None = None
        self.open = True
        self.leftovers: Leftovers | None = None
        self.when_stopped = ""
        self._source = source
        self._emit = emit
        self._output = KeptText()
        self._read_output: Callable[[], str] | None = None
        self._stops: list[StopDetail] = []
        self._when_over: list[Callable[[], None]] = []

    # While it runs

    def limit(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self._source.limit(timeout_s)

    def begin(self) -> None:
        self.began_at = self.token.clock.now()

    def nothing_was_begun(self) -> None:
        self.began_at = None

    def emit(self, text: str) -> None:
        if self.open:
            self._output.add(text)
            self._emit(text)

    def show_live(self, text: str) -> None:
        if self.open:
            self._emit(text)

    def read_output_from(self, read: Callable[[], str]) -> None:
        self._read_output = read

    def add_stop(self, detail: StopDetail) -> None:
        self._stops.append(detail)

    def stopping_s(self) -> float:
        cancelled_at = self.token.cancelled_at
        return 0.0 if cancelled_at is None else self.token.clock.now() - cancelled_at

    def when_over(self, callback: Callable[[], None]) -> None:
        self._when_over.append(callback)

    # When it is over

    @property
    def started(self) -> bool:
        return self.began_at is not None

    def output(self) -> str:
        return self._read_output() if self._read_output is not None else self._output.text()

    @property
    def survivors(self) -> tuple[ProcessEnd, ...]:
        return tuple(process for stop in self._stops for process in stop.survivors)

    def elapsed_s(self) -> float:
        return 0.0 if self.began_at is None else self.token.clock.now() - self.began_at

    def ran_s(self) -> float:
        """How long the call had run when it was told to stop."""
        cancelled_at = self.token.cancelled_at
        if self.began_at is None or cancelled_at is None:
            return self.elapsed_s()
        return max(0.0, cancelled_at - self.began_at)

    def stop_detail(self) -> StopDetail:
        """Describe what the stop did so far, since it was requested."""
        return StopDetail(
            elapsed_ms=self.stopping_s() * 1000,
            means=", ".join(dict.fromkeys(stop.means for stop in self._stops if stop.means)),
            confirmed=all(stop.confirmed for stop in self._stops),
            processes=tuple(process for stop in self._stops for process in stop.processes),
            survivors=self.survivors,
            told="; ".join(dict.fromkeys(stop.told for stop in self._stops if stop.told)),
        )

    def abandoned_detail(self) -> StopDetail:
        """The same for abandoned work: never confirmed, even if its processes have ended."""
        detail = self.stop_detail()
        return detail if detail.survivors else msgspec.structs.replace(detail, confirmed=False)

    def close(self) -> None:
        """End the call: output that its work still emits is dropped."""
        self.open = False
        self.leftovers = None
        callbacks, self._when_over = self._when_over, []
        for callback in callbacks:
            callback()
