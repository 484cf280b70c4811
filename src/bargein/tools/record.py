"""What is known of one call while it runs, so that the truth can be told of it however it ends."""

from collections.abc import Callable

from bargein.cancel import Token
from bargein.contracts.tool import ProcessEnd, StopDetail
from bargein.tools.output import KeptText


class CallRecord:
    """Filled by the tool as it goes, read when the call is over. Lives in one event loop."""

    def __init__(self, token: Token, emit: Callable[[str], None]) -> None:
        self.token = token
        self.began_at: float | None = None
        self.open = True
        self._emit = emit
        self._output = KeptText()
        self._read_output: Callable[[], str] | None = None
        self._stops: list[StopDetail] = []

    def begin(self) -> None:
        self.began_at = self.token.clock.now()

    @property
    def started(self) -> bool:
        return self.began_at is not None

    def emit(self, text: str) -> None:
        """Show it live and keep it. After the call is over it goes nowhere."""
        if self.open:
            self._output.add(text)
            self._emit(text)

    def show_live(self, text: str) -> None:
        """Show it live only, for a tool that keeps its output itself."""
        if self.open:
            self._emit(text)

    def read_output_from(self, read: Callable[[], str]) -> None:
        self._read_output = read

    def output(self) -> str:
        return self._read_output() if self._read_output is not None else self._output.text()

    def add_stop(self, detail: StopDetail) -> None:
        self._stops.append(detail)

    @property
    def survivors(self) -> tuple[ProcessEnd, ...]:
        return tuple(one for stop in self._stops for one in stop.survivors)

    def close(self) -> None:
        self.open = False

    def elapsed_s(self) -> float:
        return 0.0 if self.began_at is None else self.token.clock.now() - self.began_at

    def ran_s(self) -> float:
        """How long it had run when it was told to stop."""
        cancelled_at = self.token.cancelled_at
        if self.began_at is None or cancelled_at is None:
            return self.elapsed_s()
        return max(0.0, cancelled_at - self.began_at)

    def stopping_s(self) -> float:
        """How long ago it was told to stop; 0 if it was not."""
        cancelled_at = self.token.cancelled_at
        return 0.0 if cancelled_at is None else self.token.clock.now() - cancelled_at

    def stop_detail(self) -> StopDetail:
        """What the stop did, from the moment it was asked for until now."""
        return StopDetail(
            elapsed_ms=self.stopping_s() * 1000,
            means=", ".join(dict.fromkeys(stop.means for stop in self._stops if stop.means)),
            confirmed=all(stop.confirmed for stop in self._stops),
            processes=tuple(one for stop in self._stops for one in stop.processes),
            survivors=self.survivors,
        )
