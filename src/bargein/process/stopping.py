"""One stop of one enclosure: climbs the ladder until nobody is left, then reports.

Timers and events on the loop drive it, not a task, so no cancellation can end it half way. All
methods are called on the loop. `next_rung` decides; `RunningStop` acts. `SignalGate` keeps the one
signal that other threads may send away from processes that are being given back.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from bargein.process.enclosure import StoppableEnclosure
from bargein.process.values import Ladder, StopReport

_LOOK_AGAIN_S: Final = 0.005


class Rung(IntEnum):
    """Each asks with more force. A ladder leaves out the first, the second, or none."""

    END_INPUT = 1
    INTERRUPT = 2
    TERMINATE = 3
    KILL = 4
    OVER = 5


def first_rung(ladder: Ladder) -> Rung:
    if ladder.end_input_s is not None:
        return Rung.END_INPUT
    return Rung.INTERRUPT if ladder.interrupt_s is not None else Rung.TERMINATE


def next_rung(
    rung: Rung, ladder: Ladder, *, spent: bool, leader_gone: bool, nobody_left: bool, hurry: bool
) -> Rung:
    """Which rung follows, or the same one. `spent`: the time of this rung is used up.

    The first two rungs end with the first process: they ask that process, and what a shell starts
    in the background ignores SIGINT and would use up the whole rung for nothing.
    """
    if nobody_left or rung is Rung.OVER:
        return Rung.OVER
    if rung is Rung.KILL:
        return Rung.OVER if spent else Rung.KILL
    if hurry:
        return Rung.KILL
    if rung is Rung.TERMINATE:
        return Rung.KILL if spent else Rung.TERMINATE
    if leader_gone:
        return Rung.TERMINATE
    if not spent:
        return rung
    if rung is Rung.END_INPUT and ladder.interrupt_s is not None:
        return Rung.INTERRUPT
    return Rung.TERMINATE


def budget_s(rung: Rung, ladder: Ladder) -> float:
    return {
        Rung.END_INPUT: ladder.end_input_s,
        Rung.INTERRUPT: ladder.interrupt_s,
        Rung.TERMINATE: ladder.terminate_s,
        Rung.KILL: ladder.kill_s,
        Rung.OVER: None,
    }[rung] or 0.0


class RunningStop:
    """`interrupt` sends SIGINT to the first process's group, and `end_input` ends its input.

    It calls `on_over` once, with the report.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        enclosure: StoppableEnclosure,
        *,
        ladder: Ladder,
        terminal: bool,
        interrupt: Callable[[], object],
        give_way: Callable[[], object],
        on_over: Callable[[StopReport], object],
        end_input: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop = loop
        self._enclosure = enclosure
        self._ladder = ladder
        self._terminal = terminal
        self._interrupt = interrupt
        self._end_input = end_input
        self._give_way = give_way
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None
        self._rung = first_rung(ladder)
        self._spent = False
        self._hurry = False
        self._leader_gone = False
        self._nobody_left = False
        self._climbing = False
        self._began = 0.0

    def begin(
        self, *, began: float | None, leader_gone: bool, nobody_left: bool, hurry: bool
    ) -> None:
        """`began`: when the canceller's thread sent the first signal, if it did."""
        self._began = time.monotonic() if began is None else began
        self._leader_gone = leader_gone
        self._nobody_left = nobody_left
        self._hurry = hurry
        if began is not None:
            # The canceller's signal may have ended some or all of them already.
            self._enclosure.record_members()
        if nobody_left:
            self._rung = Rung.OVER
            self._report(found_over=began is None)
            return
        if not leader_gone and not hurry:
            if began is None:
                self._enclosure.record_members()
                self._act()
            self._set_timer(began=self._began)
        if hurry or not leader_gone:
            self._enclosure.record_members()
        self._climb()
        # The first signal has often done its work by now, and one turn of the loop takes as long
        # as a small process takes to die. So we look at once instead of waiting for a notice.
        self._give_way()
        self._enclosure.look()
        if self._rung is not Rung.OVER:
            self._enclosure.look_ahead()

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
        # An act may itself empty the enclosure, which calls this again at once.
        if self._climbing:
            return
        self._climbing = True
        try:
            while self._rung is not Rung.OVER:
                rung = next_rung(
                    self._rung,
                    self._ladder,
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
        self._act()

    def _act(self) -> None:
        if self._rung is Rung.END_INPUT:
            self._end_input()
        elif self._rung is Rung.INTERRUPT:
            self._interrupt()
        elif self._rung is Rung.TERMINATE:
            self._enclosure.signal_everybody(signal.SIGHUP if self._terminal else signal.SIGTERM)
        else:
            self._kill()

    def _set_timer(self, *, began: float) -> None:
        rest_s = began + budget_s(self._rung, self._ladder) - time.monotonic()
        self._timer = self._loop.call_later(max(0.0, rest_s), self._time_is_up)

    def _time_is_up(self) -> None:
        self._enclosure.look()
        self._spent = True
        self._climb()

    def _kill(self) -> None:
        """Kills again and again until the rung is over. It costs little. A late notice, or a kill
        that failed because no descriptor was free, must not cost the stop its confirmation."""
        if self._rung is not Rung.KILL:
            return
        self._enclosure.kill()
        self._give_way()
        self._enclosure.look()
        self._loop.call_later(_LOOK_AGAIN_S, self._kill)

    def _report(self, *, found_over: bool) -> None:
        enclosure = self._enclosure
        confirmed = self._nobody_left and enclosure.certain
        survivors = () if confirmed else enclosure.survivors()
        elapsed_ms = round((time.monotonic() - self._began) * 1000, 3)
        self._on_over(
            StopReport(
                means=enclosure.means,
                confirmed=confirmed,
                found_over=found_over,
                elapsed_ms=elapsed_ms,
                processes=() if found_over else enclosure.ended(self._began),
                survivors=survivors,
            )
        )


class SignalGate:
    """Lets one caller in at a time: the thread that sends a stop's first signal, or the loop that
    gives the pid and its descriptors back.

    A canceller's thread must not wait, so this is not a lock: `enter` returns False to the second
    caller. A canceller that is turned away loses nothing, because another is sending the same
    signal or the process has ended. Safe in a signal handler that interrupts the thread inside.
    """

    def __init__(self) -> None:
        self._key = [True]

    def enter(self) -> bool:
        try:
            self._key.pop()
        except IndexError:
            return False
        return True

    def leave(self) -> None:
        self._key.append(True)
