"""One stop of one process: climbs the ladder, then reports.

Driven by events and timers on the loop, not by a task: nobody's cancellation can end it half way.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

from bargein.process.cell import StoppedCell
from bargein.process.ladder import Rung, budget_s, next_rung
from bargein.process.values import Ladder, StopReport

_LOOK_AGAIN_S: Final = 0.005


class Stopping:
    """`interrupt` sends the first signal. With `began` it has been sent already, at that time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cell: StoppedCell,
        *,
        ladder: Ladder,
        terminal: bool,
        interrupt: Callable[[], object],
        give_way: Callable[[], object],
        on_over: Callable[[StopReport], object],
    ) -> None:
        self._loop = loop
        self._cell = cell
        self._ladder = ladder
        self._terminal = terminal
        self._interrupt = interrupt
        self._give_way = give_way
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None
        self._rung = Rung.INTERRUPT
        self._spent = False
        self._hurry = False
        self._leader_gone = False
        self._nobody_left = False
        self._climbing = False
        self._began = 0.0

    def begin(
        self, *, began: float | None, leader_gone: bool, nobody_left: bool, hurry: bool
    ) -> None:
        self._began = time.monotonic() if began is None else began
        self._leader_gone = leader_gone
        self._nobody_left = nobody_left
        self._hurry = hurry
        if nobody_left:
            self._rung = Rung.OVER
            self._report(found_over=True)
            return
        if not leader_gone and not hurry:
            if began is None:
                self._cell.take_roll()
                self._interrupt()
            self._set_timer(began=self._began)
        if hurry or not leader_gone:
            self._cell.take_roll()
        self._climb()
        # The signal that was sent at the moment of the cancel has often done its work then, and a
        # turn of the loop takes as long as a small process takes to die.
        self._give_way()
        self._cell.look()

    def hurry(self) -> None:
        self._hurry = True
        self._climb()

    def leader_gone(self) -> None:
        self._leader_gone = True
        self._climb()

    def nobody_left(self) -> None:
        self._nobody_left = True
        self._climb()

    def _climb(self) -> None:
        # A step may itself be what empties the cell, which comes back here at once.
        if self._climbing:
            return
        self._climbing = True
        try:
            while self._rung is not Rung.OVER:
                rung = next_rung(
                    self._rung,
                    spent=self._spent,
                    leader_gone=self._leader_gone,
                    nobody_left=self._nobody_left,
                    hurry=self._hurry,
                )
                if rung is self._rung:
                    return
                self._step_on(rung)
        finally:
            self._climbing = False

    def _step_on(self, rung: Rung) -> None:
        self._rung = rung
        self._spent = False
        if self._timer is not None:
            self._timer.cancel()
        if rung is Rung.OVER:
            self._report(found_over=False)
            return
        self._set_timer(began=time.monotonic())
        if rung is Rung.TERMINATE:
            self._cell.signal_everybody(signal.SIGHUP if self._terminal else signal.SIGTERM)
        else:
            self._kill()

    def _set_timer(self, *, began: float) -> None:
        rest_s = began + budget_s(self._rung, self._ladder) - time.monotonic()
        self._timer = self._loop.call_later(max(0.0, rest_s), self._time_is_up)

    def _time_is_up(self) -> None:
        self._cell.look()
        self._spent = True
        self._climb()

    def _kill(self) -> None:
        """Again and again: killing costs little, and a kill that failed for want of a descriptor,
        or a notice that comes late, must not cost the stop its confirmation."""
        if self._rung is not Rung.KILL:
            return
        self._cell.kill()
        self._give_way()
        self._cell.look()
        self._loop.call_later(_LOOK_AGAIN_S, self._kill)

    def _report(self, *, found_over: bool) -> None:
        cell = self._cell
        confirmed = self._nobody_left and cell.certain
        survivors = () if confirmed else cell.survivors()
        elapsed_ms = round((time.monotonic() - self._began) * 1000, 3)
        self._on_over(
            StopReport(
                means=cell.means,
                confirmed=confirmed,
                found_over=found_over,
                elapsed_ms=elapsed_ms,
                processes=() if found_over else cell.ended(self._began),
                survivors=survivors,
            )
        )
