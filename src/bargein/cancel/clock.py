"""Time for deadlines: a Protocol, so that a simulation can bring its own, and the real one.

The real clock is one daemon thread with a heap. Adding and cancelling a timer takes no lock, so
both may be done in a signal handler that interrupted the same thread at the same thing; only
starting the thread, at the first timer ever, may not.
"""

import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Protocol

from bargein.cancel import accounts


class Timer(Protocol):
    def cancel(self) -> None:
        """Forget the callback if it has not begun. Never waits; any thread; may be repeated."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a scale of its own that never goes back."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` once at `when`, in a thread of the clock's choice. It must be quick."""
        ...


class _SystemTimer:
    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class SystemClock:
    """`time.monotonic` and a thread that fires timers.

    Cancelled timers are swept out when the heap has doubled since the last sweep, so a million
    timers that were cancelled in time leave nothing behind.
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
        self._starting = threading.Lock()
        self._thread_pid = 0

    def now(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        timer = _SystemTimer(when, callback)
        self._arrivals.append(timer)
        if self._thread_pid != os.getpid():
            self._start()
        elif when < self._wakes_at or len(self._arrivals) > self._ARRIVALS_MAX:
            self._poke()
        return timer

    def timers_held(self) -> int:
        """How many timers are in memory, for tests of growth."""
        return len(self._arrivals) + len(self._heap)

    def _start(self) -> None:
        with self._starting:
            # A fork leaves the thread behind: the pid tells whether ours is there.
            if self._thread_pid == os.getpid():
                self._poke()
                return
            threading.Thread(target=self._run, name="bargein-clock", daemon=True).start()
            self._thread_pid = os.getpid()

    def _poke(self) -> None:
        # A lock used as a binary semaphore: release never blocks, and one wake-up is enough.
        try:
            self._wake.release()
        except RuntimeError:
            pass

    def _run(self) -> None:
        while True:
            self._admit_arrivals()
            self._fire_due()
            self._wakes_at = self._heap[0][0] if self._heap else inf
            # Published first, looked again second: whoever added a timer in between either saw
            # the new value and poked, or is seen here.
            if not self._arrivals:
                rest = min(self._wakes_at - time.monotonic(), threading.TIMEOUT_MAX)
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
                except BaseException as error:  # boundary: one timer harms no other
                    accounts.report(f"timer {callback!r}", error)


SYSTEM_CLOCK = SystemClock()
