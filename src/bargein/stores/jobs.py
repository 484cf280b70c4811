"""Work for a store's thread, and how its result comes back to the loop that waits for it.

Any number of loops, of any kind, may wait at the same time. A waiter that is cancelled only stops
waiting: the job is done all the same.
"""

import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from bargein.cancel._loops import new_alarm, ring, running_loop

T = TypeVar("T")

Work = Callable[[sqlite3.Connection], T]


class Step(Generic[T]):
    """One thing to do, as a whole or not at all, and what came of it. `session` is what it is
    about, if about one."""

    __slots__ = ("error", "session", "value")

    def __init__(self, session: str | None) -> None:
        self.session = session
        self.value: T | None = None
        self.error: Exception | None = None

    def work(self, connection: sqlite3.Connection) -> T:
        raise NotImplementedError

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


AnyStep = Step[Any]


class _Asked(Step[T]):
    __slots__ = ("_work",)

    def __init__(self, work: Work[T], session: str | None) -> None:
        super().__init__(session)
        self._work = work

    def work(self, connection: sqlite3.Connection) -> T:
        return self._work(connection)


class Job:
    """Steps that were asked for together. Made and awaited in the loop of whoever asks."""

    __slots__ = ("_alarm", "loop", "steps")

    def __init__(self, steps: Sequence[AnyStep]) -> None:
        self.steps = steps
        self.loop: Any = running_loop()
        self._alarm = new_alarm()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._alarm.__await__()

    def wake(self) -> None:
        """In the loop: let the waiter go on. Being cancelled, it may have gone before."""
        ring(self._alarm)


class Single(Job, Generic[T]):
    """One step alone: whoever awaits it is given what came of it."""

    __slots__ = ()

    def __init__(self, work: Work[T], session: str | None = None) -> None:
        super().__init__((_Asked(work, session),))

    def __await__(self) -> Generator[Any, None, T]:
        yield from super().__await__()
        return cast(T, self.steps[0].result())


def announce(jobs: Iterable[Job]) -> None:
    """Wake whoever waits: one call into each loop, however many wait there. Any thread."""
    by_loop: dict[object, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, those in by_loop.items():
        call_soon = getattr(loop, "call_soon_threadsafe", None) or cast(Any, loop).run_sync_soon
        try:
            call_soon(partial(_wake, those))
        except RuntimeError:
            pass  # the loop is closed, and whoever waited in it is gone


def _wake(jobs: list[Job]) -> None:
    for job in jobs:
        job.wake()
