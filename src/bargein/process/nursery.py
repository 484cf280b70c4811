"""Keeps one cell ready, with an embryo born and waiting, so that a command need not wait for it.

A birth takes about as much work as a small command, so the next one is left until the command just
started is well on its way, but not longer than a part of the pause in which commands come.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final, Generic, Protocol, TypeVar

_LEAVE_ALONE_S: Final = 0.01
_PART_OF_PAUSE: Final = 1 / 3
_AT_ONCE_S: Final = 0.0005
_UNTIL_TRIES: Final = 25


class Conceived(Protocol):
    @property
    def is_dead(self) -> bool: ...

    async def born(self) -> None:
        """Raises `StillBorn`. If the wait is cancelled the cell must be discarded."""

    def discard(self) -> None: ...


C = TypeVar("C", bound=Conceived)


class Nursery(Generic[C]):
    """`conceive` orders a birth; it raises OSError."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conceive: Callable[[], C]) -> None:
        self._loop = loop
        self._conceive = conceive
        self._spare: C | None = None
        self._taken_at = 0.0
        self._pause_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def take(self) -> C:
        now = self._loop.time()
        self._pause_s = now - self._taken_at
        self._taken_at = now
        cell, self._spare = self._spare, None
        if cell is None or cell.is_dead:
            cell = self._conceive()
        try:
            await cell.born()
        except BaseException:
            cell.discard()
            raise
        return cell

    def replenish(self) -> None:
        """Now or soon."""
        delay_s = min(_LEAVE_ALONE_S, _PART_OF_PAUSE * self._pause_s)
        if delay_s < _AT_ONCE_S:
            self._fill()
        elif self._timer is None:
            # In an empty context: the embryo is not for the call that happens to run now.
            self._timer = Context().run(self._loop.call_later, delay_s, self._fill)

    def _fill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._spare is None and not self._closed:
            try:
                self._spare = Context().run(self._conceive)
            except OSError:
                pass  # the next command will have to wait for its own, and hear why

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        cell, self._spare = self._spare, None
        if cell is not None:
            cell.discard()


async def until(done: Callable[[], bool]) -> None:
    """For the last moments of a means, when what is to end has been told to: bounded."""
    pause_s = 0.001
    for _ in range(_UNTIL_TRIES):
        if done():
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
