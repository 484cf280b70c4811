"""The processes that the code of one call starts by itself, and how they end with the call.

A tool's function may start processes by `subprocess`, `asyncio`, `os.fork` and the like. While
`owner` names it (see `doors`), each of them is born into a cell of this call. They end

- when the call's token is cancelled: the first signal, SIGTERM, is sent by whoever cancels;
- when the call is over, however it ended (`finish`).

What is started between the two, to clean up, has a cell of its own and may take as long as the call
may. After that a call that was stopped can start nothing more; a call that has finished owns
nothing more.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from bargein.cancel import Registration, Token, bridge
from bargein.process.gate import Gate
from bargein.process.once import Once
from bargein.process.own_cell import OwnCell
from bargein.process.stopping import Stopping
from bargein.process.values import Ladder, Means, StopReport

_GATE_AGAIN_S: Final = 0.001


class OwnProcesses:
    """Costs next to nothing until the first process is started. Made by `Containment`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        token: Token,
        *,
        make_cell: Callable[[], OwnCell],
        give_way: Callable[[], object],
        ladder: Ladder,
        held: "set[OwnProcesses]",
    ) -> None:
        self._loop = loop
        self._token = token
        self._make_cell = make_cell
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
        return self._batches[0].cell.means if self._batches else Means.GROUP

    @property
    def stopping(self) -> bool:
        return any(batch.stopping for batch in self._batches)

    # --- called by the doors, in the thread that forks ------------------------------------------

    def admit(self) -> OwnCell | None:
        with self._lock:
            if self._over:
                self._token.check()
                return None
            batch = self._batches[-1] if self._batches else None
            if batch is None or (self._token.cancelled and not batch.late):
                batch = self._begin_batch()
            if batch is None:
                return None
            batch.cell.expect()
            return batch.cell

    def lost(self) -> None:
        self._missed = True

    def _begin_batch(self) -> "_Batch | None":
        try:
            cell = self._make_cell()
        except OSError:
            # No descriptor to be had, say. To start it is not ours to refuse, but not vouched for.
            self._missed = True
            return None
        batch = _Batch(
            self._loop,
            cell,
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

    # --- called when it is to end ---------------------------------------------------------------

    async def finish(self, *, hurry: bool = False) -> StopReport | None:
        """The call is over: end whoever is left. None if it never started a process.

        `hurry` goes straight to the kill. Cancelling the call ends only the waiting.
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
        """From now on nobody is admitted."""
        with self._lock:
            self._over = True
        if self._bridge is not None:
            self._bridge.remove()
        self._let_go_if_done()

    def begin_end(self) -> None:
        """`finish` in a hurry, without waiting. Does nothing more after that."""
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
            pass  # the loop is closed, and the containment with it

    def _begin_stops(self) -> None:
        for batch in self._batches:
            if not batch.late:
                batch.begin_stop(hurry=False)

    def _let_go_if_done(self) -> None:
        if self._over and all(batch.is_released for batch in self._batches):
            self._held.discard(self)


class _Batch:
    """One cell, from its first process until nobody is left in it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cell: OwnCell,
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
        self._gate = Gate()
        self._interrupted_at: float | None = None
        self._stopping: Stopping | None = None
        self._nobody_left = False
        self.cell = cell
        self.late = late
        """Begun after the call was told to stop."""
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
            self.cell.interrupt(signal.SIGTERM)
        finally:
            self._gate.leave()

    def begin_stop(self, *, hurry: bool) -> None:
        if self._stopping is not None:
            if hurry:
                self._stopping.hurry()
            return
        self._stopping = Stopping(
            self._loop,
            self.cell,
            ladder=self._ladder,
            terminal=False,
            interrupt=lambda: None,
            give_way=self._give_way,
            on_over=self.stopped.set,
        )
        self.cell.attend(self._on_empty)
        self.cell.look()
        self._stopping.begin(
            began=self._interrupted_at,
            leader_gone=True,
            # Whom the first signal has ended already is told of.
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
            self.cell.release()
            self.is_released = True
            self._on_released()
        else:
            # Another thread is just sending the first signal of a stop.
            self._loop.call_later(_GATE_AGAIN_S, self._release)
