"""The processes that a call's own code starts, and how they end with the call.

A tool's function may start processes by `subprocess`, `asyncio`, `os.fork` and the like. While
`process_owner` names the call (see `fork_hooks`), each of them enters an enclosure of the call.
They end

- when the call's token is cancelled: the thread that cancels sends the first signal, SIGTERM;
- when the call is over, however it ended (`finish`).

Processes that the code starts after the cancel, to clean up, have an enclosure of their own and as
much time as the call has. When a stopped call is over, it can start no process. The processes of a
call that has finished by itself belong to the program.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from bargein.cancel import Registration, Token, bridge
from bargein.process.own_enclosures import OwnEnclosure
from bargein.process.stopping import RunningStop, SignalGate
from bargein.process.values import Ladder, Means, StopReport
from bargein.process.waiting import Once

_GATE_AGAIN_S: Final = 0.001


class OwnProcesses:
    """Made by `Containment.own_processes_of`. Costs next to nothing before the first process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        token: Token,
        *,
        make_enclosure: Callable[[], OwnEnclosure],
        give_way: Callable[[], object],
        ladder: Ladder,
        held: "set[OwnProcesses]",
    ) -> None:
        self._loop = loop
        self._token = token
        self._make_enclosure = make_enclosure
        self._give_way = give_way
        self._ladder = ladder
        self._held = held
        self._lock = threading.Lock()
        self._bridge: Registration | None = None
        self._batches: list[_Batch] = []
        self._over = False
        self._missed = False

    @property
    def any_started(self) -> bool:
        return bool(self._batches) or self._missed

    @property
    def means(self) -> Means:
        return self._batches[0].enclosure.means if self._batches else Means.GROUP

    @property
    def stopping(self) -> bool:
        return any(batch.stopping for batch in self._batches)

    # --- called by the fork hooks, in the thread that forks -------------------------------------

    def admit(self) -> OwnEnclosure | None:
        with self._lock:
            if self._over:
                self._token.check()
                return None
            batch = self._batches[-1] if self._batches else None
            if batch is None or (self._token.cancelled and not batch.late):
                batch = self._begin_batch()
            if batch is None:
                return None
            batch.enclosure.expect()
            return batch.enclosure

    def lost(self) -> None:
        self._missed = True

    def _begin_batch(self) -> "_Batch | None":
        try:
            enclosure = self._make_enclosure()
        except OSError:
            # No descriptor is free, perhaps. The child may start, but nothing confirms its end.
            self._missed = True
            return None
        batch = _Batch(
            self._loop,
            enclosure,
            late=self._token.cancelled,
            ladder=self._ladder,
            give_way=self._give_way,
            on_released=self._let_go_if_done,
        )
        self._batches.append(batch)
        self._held.add(self)
        if self._bridge is None:
            self._bridge = bridge(self._token, self._on_cancel)
        return batch

    # --- called on the loop when the call ends --------------------------------------------------

    async def finish(self, *, hurry: bool = False) -> StopReport | None:
        """The call is over: end the processes that are left. Returns None if it started none.

        `hurry` goes straight to the kill. Cancelling this wait does not end the stop.
        """
        self.close()
        if not self.any_started:
            return None
        cancelled = self._token.cancelled
        for batch in self._batches:
            batch.begin_stop(hurry=hurry or (cancelled and batch.late))
        reports = [await batch.stopped.wait() for batch in self._batches]
        return self._merged(reports)

    def close(self) -> None:
        """Admit no more processes."""
        with self._lock:
            self._over = True
        if self._bridge is not None:
            self._bridge.remove()
        self._let_go_if_done()

    def begin_end(self) -> None:
        """`finish` in a hurry, without waiting."""
        self.close()
        for batch in self._batches:
            batch.begin_stop(hurry=True)

    def hurry(self) -> None:
        for batch in self._batches:
            if batch.stopping:
                batch.begin_stop(hurry=True)

    def _merged(self, reports: list[StopReport]) -> StopReport:
        if len(reports) == 1 and not self._missed:
            return reports[0]
        return StopReport(
            means=self.means,
            confirmed=all(report.confirmed for report in reports) and not self._missed,
            found_over=all(report.found_over for report in reports),
            elapsed_ms=max((report.elapsed_ms for report in reports), default=0.0),
            processes=tuple(one for report in reports for one in report.processes),
            survivors=tuple(one for report in reports for one in report.survivors),
        )

    def _on_cancel(self) -> None:
        """In the canceller's thread, maybe in a signal handler: no wait, no lock, no raise."""
        for batch in tuple(self._batches):
            batch.interrupt()
        try:
            self._loop.call_soon_threadsafe(self._begin_stops)
        except RuntimeError:
            pass  # the loop is closed, and with it the containment

    def _begin_stops(self) -> None:
        for batch in self._batches:
            if not batch.late:
                batch.begin_stop(hurry=False)

    def _let_go_if_done(self) -> None:
        if self._over and all(batch.is_released for batch in self._batches):
            self._held.discard(self)


class _Batch:
    """One enclosure, from its first process until nobody is left in it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        enclosure: OwnEnclosure,
        *,
        late: bool,
        ladder: Ladder,
        give_way: Callable[[], object],
        on_released: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._give_way = give_way
        self._ladder = ladder
        self._on_released = on_released
        self._gate = SignalGate()
        self._interrupted_at: float | None = None
        self._stopping: RunningStop | None = None
        self._nobody_left = False
        self.enclosure = enclosure
        self.late = late
        """Begun after the call was cancelled."""
        self.stopped: Once[StopReport] = Once(loop)
        self.is_released = False

    @property
    def stopping(self) -> bool:
        return self._stopping is not None and not self.stopped.is_set

    def interrupt(self) -> None:
        if not self._gate.enter():
            return
        try:
            self._interrupted_at = time.monotonic()
            self.enclosure.interrupt(signal.SIGTERM)
        finally:
            self._gate.leave()

    def begin_stop(self, *, hurry: bool) -> None:
        if self._stopping is not None:
            if hurry:
                self._stopping.hurry()
            return
        self._stopping = RunningStop(
            self._loop,
            self.enclosure,
            ladder=self._ladder,
            terminal=False,
            interrupt=lambda: None,
            give_way=self._give_way,
            on_over=self.stopped.set,
        )
        self.enclosure.attend(self._on_empty)
        self.enclosure.look()
        self._stopping.begin(
            began=self._interrupted_at,
            leader_gone=True,
            # The report names the processes that the first signal has already ended.
            nobody_left=self._nobody_left and self._interrupted_at is None,
            hurry=hurry,
        )
        if self._nobody_left:
            self._stopping.nobody_left()

    def _on_empty(self) -> None:
        self._nobody_left = True
        if self._stopping is not None:
            self._stopping.nobody_left()
        self._loop.call_soon(self._release)

    def _release(self) -> None:
        if self._gate.enter():
            self.enclosure.release()
            self.is_released = True
            self._on_released()
        else:
            # Another thread is sending the first signal of a stop.
            self._loop.call_later(_GATE_AGAIN_S, self._release)
