"""Clocks for deadlines: a Protocol, so that a simulation can have its own, and the real clock.

The real clock is one daemon thread with a heap, started with the first timer. No operation waits
for a lock, so a signal handler may add and cancel timers even if it interrupted the same thread
during the same operation. After a fork the child starts with no timers: the parent fires its own.

The watchdog for quitting is here too. It is a timer that needs no GIL: a C call that holds the
interpreter stops every Python thread, including the clock's thread and signal handlers.
"""

import faulthandler
import heapq
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf
from threading import TIMEOUT_MAX
from typing import Protocol, TextIO

from bargein.cancel import accounts


class Timer(Protocol):
    def cancel(self) -> None:
        """Forget the callback if it has not begun. Never waits. Any thread may call it, also
        repeatedly."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in seconds, from an arbitrary start; it never goes back."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` once at `when`, in a thread that the clock chooses. It must be quick."""
        ...


class SystemClock:
    """`time.monotonic` and a thread that fires timers."""

    def __init__(self) -> None:
        # By process id: a forked child has neither the parent's thread nor its timers.
        self._threads: dict[int, _ClockThread] = {}

    # The function itself, because every cancel reads the time and a method would double the cost.
    now = staticmethod(time.monotonic)

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        timer = _SystemTimer(when, callback)
        self._thread().add(timer)
        return timer

    def timers_held(self) -> int:
        """The number of timers in memory, for tests of growth."""
        return self._thread().timers_held()

    def _thread(self) -> "_ClockThread":
        process = os.getpid()
        thread = self._threads.get(process)
        if thread is None:
            mine = _ClockThread()
            thread = self._threads.setdefault(process, mine)
            if thread is mine:
                try:
                    mine.start()
                except BaseException:
                    del self._threads[process]
                    raise
        return thread


class _SystemTimer:
    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _ClockThread:
    """The clock's thread in one process.

    It removes cancelled timers when the heap has doubled since the last sweep, so a million timers
    that were cancelled in time leave nothing behind.
    """

    _ARRIVALS_MAX = 1024

    def __init__(self) -> None:
        self._arrivals: deque[_SystemTimer] = deque()
        self._heap: list[tuple[float, int, _SystemTimer]] = []
        self._serials = count()
        self._sweep_at = 64
        self._wakes_at = -inf
        self._wake = threading.Lock()
        self._wake.acquire()

    def start(self) -> None:
        threading.Thread(target=self._run, name="bargein-clock", daemon=True).start()

    def add(self, timer: _SystemTimer) -> None:
        self._arrivals.append(timer)
        if timer.when < self._wakes_at or len(self._arrivals) > self._ARRIVALS_MAX:
            # A lock used as a binary semaphore: release never blocks, and one wake-up is enough.
            try:
                self._wake.release()
            except RuntimeError:
                pass

    def timers_held(self) -> int:
        return len(self._arrivals) + len(self._heap)

    def _run(self) -> None:
        while True:
            self._admit_arrivals()
            self._fire_due()
            self._wakes_at = self._heap[0][0] if self._heap else inf
            # Publish the wake-up time first, then look at the arrivals again: a thread that adds
            # a timer in between either sees the new time and wakes us, or we see its timer here.
            if not self._arrivals:
                rest = min(self._wakes_at - time.monotonic(), TIMEOUT_MAX)
                if rest > 0:
                    self._wake.acquire(timeout=rest)
            self._wakes_at = -inf

    def _admit_arrivals(self) -> None:
        while self._arrivals:
            timer = self._arrivals.popleft()
            heapq.heappush(self._heap, (timer.when, next(self._serials), timer))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + 64

    def _fire_due(self) -> None:
        while self._heap and self._heap[0][0] <= time.monotonic():
            callback = heapq.heappop(self._heap)[2].callback
            if callback is not None:
                try:
                    callback()
                except BaseException as error:  # boundary: one timer must not harm another
                    accounts.report(f"timer {callback!r}", error)


SYSTEM_CLOCK = SystemClock()


def check_seconds(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= TIMEOUT_MAX:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)


def arm_quit_watchdog(timeout_s: float, *, file: TextIO | None = None) -> None:
    """End the process with exit code 1 unless it ends, or disarms the watchdog, within `timeout_s`.

    A C thread of `faulthandler` does it, after writing the traceback of every thread to `file`. A
    process has one watchdog; arming it again restarts it. `file` must be a real file and stay open;
    the default is stderr.
    """
    if check_seconds("timeout_s", timeout_s) == 0:
        raise ValueError("timeout_s of the quit watchdog must be more than 0")
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=file or sys.__stderr__ or 2)


def disarm_quit_watchdog() -> None:
    faulthandler.cancel_dump_traceback_later()
