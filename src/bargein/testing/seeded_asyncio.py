"""The seeded asyncio loop: time jumps when idle, and the seed orders the tasks.

It is the standard library's loop with two changes. Its selector never waits: when no handle is
ready, it moves the loop's time to the next timer. And before each round the steps of tasks are
shuffled among themselves, while plain callbacks keep their places. Before the shuffle, steps are
sorted by the creation of their tasks, because their order may come from sets, and so from memory
addresses.
"""

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import anyio

from bargein.testing.seeded import BUSY_ROUNDS_MAX, THREAD_S_MAX, Deadlock

if TYPE_CHECKING:
    from bargein.testing.seeded import Scenario

T = TypeVar("T")

Events = list[tuple[selectors.SelectorKey, int]]


def run_on_asyncio(scenario: "Scenario[T]") -> T:
    def make_loop() -> asyncio.AbstractEventLoop:
        return SeededEventLoop(scenario.run.seed, scenario.end_as_stuck)

    return anyio.run(scenario.main, backend="asyncio", backend_options={"loop_factory": make_loop})


class SeededEventLoop(asyncio.SelectorEventLoop):
    """Virtual time from 0; `seed` orders the tasks; `on_stuck` is called when nothing is left."""

    # Not part of asyncio's published interface: the handles to run next, and the timers, earliest
    # first.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int, on_stuck: Callable[[], object]) -> None:
        self._now = 0.0
        self._busy_rounds = 0
        self._chance = random.Random(seed)
        self._serials: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._next_serial = count()
        super().__init__(_JumpingSelector(self._jump, on_stuck))

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds
        self._busy_rounds = 0

    def _run_once(self) -> None:
        self._busy_rounds += 1
        if self._busy_rounds > BUSY_ROUNDS_MAX and self._scheduled:
            self._jump(max(0.0, self._scheduled[0].when() - self._now))
        self._shuffle_tasks()
        super()._run_once()  # type: ignore[misc]  # not in the published interface

    def _shuffle_tasks(self) -> None:
        places: list[int] = []
        steps: list[tuple[int, asyncio.Handle]] = []
        for place, handle in enumerate(self._ready):
            task = _task_of(handle)
            if task is not None:
                places.append(place)
                steps.append((self._serial(task), handle))
        steps.sort(key=lambda step: step[0])
        self._chance.shuffle(steps)
        for place, (_, handle) in zip(places, steps, strict=True):
            self._ready[place] = handle

    def _serial(self, task: "asyncio.Task[Any]") -> int:
        serial = self._serials.get(task)
        if serial is None:
            serial = self._serials[task] = next(self._next_serial)
        return serial


def _task_of(handle: asyncio.Handle) -> "asyncio.Task[Any] | None":
    """Returns the task that a handle steps or wakes; None for a plain callback."""
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


class _JumpingSelector(selectors.DefaultSelector):
    """Polls without waiting: it lets virtual time pass instead."""

    def __init__(self, jump: Callable[[float], object], on_stuck: Callable[[], object]) -> None:
        super().__init__()
        self._jump = jump
        self._on_stuck = on_stuck
        self._stuck = False

    def select(self, timeout: float | None = None) -> Events:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is not None:
            self._jump(timeout)
            return []
        # Only a thread could still wake something.
        events = super().select(THREAD_S_MAX)
        if not events:
            if self._stuck:
                raise Deadlock("the run was stuck, was cancelled, and still did not end")
            self._stuck = True
            self._on_stuck()
        return events
