"""Clocks for token deadlines in tests: one follows virtual time, one is moved by hand.

Both are a `bargein.cancel.Clock`. A `VirtualClock` shows the time of the event loop it runs in, so
that in a seeded run (see `bargein.testing.seeded`) deadlines of tokens and sleeps of tasks share
one time, which jumps when nothing else is left to do. A `ManualClock` needs no loop.
"""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf

import anyio

Callback = Callable[[], object]


class VirtualTimer:
    """A `bargein.cancel.Timer`. Any thread may cancel it."""

    __slots__ = ("_callback", "when")

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self._callback: Callback | None = callback

    def cancel(self) -> None:
        self._callback = None

    @property
    def is_waiting(self) -> bool:
        return self._callback is not None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class _Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, VirtualTimer]] = []
        self._serials = count()

    def add(self, timer: VirtualTimer) -> None:
        heapq.heappush(self._heap, (timer.when, next(self._serials), timer))

    def next_at(self) -> float:
        """Returns when the next active timer is due; `inf` if there is none."""
        while self._heap and not self._heap[0][2].is_waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def fire_next(self) -> None:
        heapq.heappop(self._heap)[2].fire()

    def held(self) -> int:
        return len(self._heap)


class ManualClock:
    """Stands still until `advance` is called, which fires timers in the caller's thread."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._timers = _Timers()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callback) -> VirtualTimer:
        timer = VirtualTimer(when, callback)
        self._timers.add(timer)
        return timer

    def timers_held(self) -> int:
        return self._timers.held()

    def advance(self, seconds: float) -> None:
        """Moves on by `seconds`; fires each timer on the way at its own time."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {seconds!r} s")
        end = self._now + seconds
        while self._timers.next_at() <= end:
            self._now = max(self._now, self._timers.next_at())
            self._timers.fire_next()
        self._now = end


class VirtualClock:
    """Follows the time of the event loop. `run` fires the timers: start it once, as a task.

    `run_seeded` does that. Call everything but `VirtualTimer.cancel` in the loop's thread.
    """

    def __init__(self) -> None:
        self._timers = _Timers()
        self._changed = anyio.Event()

    def now(self) -> float:
        return anyio.current_time()

    def call_at(self, when: float, callback: Callback) -> VirtualTimer:
        timer = VirtualTimer(when, callback)
        self._timers.add(timer)
        self._changed.set()
        return timer

    def timers_held(self) -> int:
        return self._timers.held()

    async def run(self) -> None:
        """Fires timers when they are due, until cancelled."""
        while True:
            while self._timers.next_at() <= anyio.current_time():
                self._timers.fire_next()
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=self._timers.next_at()):
                await self._changed.wait()
