"""Work for a store's thread, and how its result comes back to the loop that waits for it.

Any number of loops, of any kind, may wait at the same time. A waiter that is cancelled only stops
waiting: the job is done all the same.
"""

import sqlite3
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio

from bargein.cancel._loops import running_loop

T = TypeVar("T")

Work = Callable[[sqlite3.Connection], T]


class _Future(Protocol):
    """What an asyncio loop is waited in with. Half of an `anyio.Event` is looking for the loop."""

    def done(self) -> bool: ...

    def set_result(self, result: None) -> None: ...

    def __await__(self) -> Generator[Any, None, None]: ...


class Job(Generic[T]):
    """Made and awaited in the loop of whoever wants the result.

    `session` is what the work is about, if about one.
    """

    __slots__ = ("_event", "_future", "error", "loop", "session", "value", "work")

    def __init__(self, work: Work[T], session: str | None = None) -> None:
        self.work = work
        self.session = session
        self.value: T | None = None
        self.error: BaseException | None = None
        self.loop: Any = running_loop()
        self._future: _Future | None = None
        self._event: anyio.Event | None = None
        if hasattr(self.loop, "create_future"):
            self._future = self.loop.create_future()
        else:
            self._event = anyio.Event()

    def __await__(self) -> Generator[Any, None, T]:
        if self._future is not None:
            yield from self._future.__await__()
        elif self._event is not None:
            yield from self._event.wait().__await__()
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    def wake(self) -> None:
        """In the loop: let the waiter go on. Being cancelled, it may have gone before."""
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)


AnyJob = Job[Any]


def announce(jobs: Iterable[AnyJob]) -> None:
    """Wake whoever waits: one call into each loop, however many wait there. Any thread."""
    by_loop: dict[object, list[AnyJob]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, those in by_loop.items():
        call_soon = getattr(loop, "call_soon_threadsafe", None) or cast(Any, loop).run_sync_soon
        try:
            call_soon(partial(_wake, those))
        except RuntimeError:
            pass  # the loop is closed, and whoever waited in it is gone


def _wake(jobs: list[AnyJob]) -> None:
    for job in jobs:
        job.wake()
