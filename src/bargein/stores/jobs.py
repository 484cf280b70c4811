"""Work for a store's thread, and how its result comes back to the loop that waits for it.

Any number of loops, of any kind, may wait at the same time. A waiter that is cancelled only stops
waiting: the job is done all the same.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import anyio

from bargein.cancel._loops import Call, call_if_open, loop_caller

T = TypeVar("T")

Work = Callable[[sqlite3.Connection], T]


class Job(Generic[T]):
    """Made in the loop that will wait. `session` is what the work is about, if about one."""

    __slots__ = ("caller", "done", "error", "session", "value", "work")

    def __init__(self, work: Work[T], session: str | None = None) -> None:
        self.work = work
        self.session = session
        self.caller: Callable[[Call], object] = loop_caller()
        self.done = anyio.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    async def result(self) -> T:
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # what `work` returned


AnyJob = Job[Any]


def announce(jobs: Iterable[AnyJob]) -> None:
    """Wake whoever waits: one call into each loop, however many wait there. Any thread."""
    by_loop: dict[Callable[[Call], object], list[AnyJob]] = {}
    for job in jobs:
        by_loop.setdefault(job.caller, []).append(job)
    for caller, those in by_loop.items():
        call_if_open(caller, lambda those=those: _wake(those))  # type: ignore[misc]


def _wake(jobs: list[AnyJob]) -> None:
    for job in jobs:
        job.done.set()
