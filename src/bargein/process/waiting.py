"""Waiting on the event loop: for descriptors (`DescriptorWatch`) and for a value (`Once`).

Call everything here on the loop. Cancelling a task that waits ends that wait and nothing else.

Event loops do not offer three things that this package needs:

- The kernel announces by POLLPRI that a cgroup became empty, and no loop waits for POLLPRI.
- A socket or pipe whose other end was closed at the wrong moment is in error, and uvloop then
  drops its reader silently. We must still read what the other end wrote before.
- A stop watches each process for a moment, and adding a reader to a loop is expensive.

So these descriptors are in an epoll of their own, and the loop watches that epoll. Where there is
no epoll (macOS) the loop watches each descriptor.
"""

import asyncio
import os
import select
import sys
import time
from collections.abc import Callable
from contextvars import Context
from enum import IntEnum
from functools import partial
from math import inf
from typing import Generic, TypeVar, cast

GIVE_WAY_EVERY_S = 0.005

OnEvent = Callable[[], object]
T = TypeVar("T")


class Event(IntEnum):
    READABLE = 1
    PRIORITY = 2
    WRITABLE = 4


class DescriptorWatch:
    """Calls back on the loop when a descriptor is ready.

    It watches a descriptor for one event at a time; remove a descriptor before you close it.
    Callbacks run in an empty context, because they belong to no caller.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._watched: dict[int, OnEvent] = {}
        self._gave_way_at = -inf
        self._own = _open_epoll()
        if self._own is not None:
            Context().run(loop.add_reader, self._own.fileno(), self._look)

    def give_way(self) -> None:
        """Yield this core once, so that processes that were just signalled can die.

        The kernel often wakes them on this core, where they cannot run while this thread
        computes. Stops that begin together yield once: on a loaded machine each yield may last
        until other programs have had their turn.
        """
        now = time.monotonic()
        if now >= self._gave_way_at + GIVE_WAY_EVERY_S:
            self._gave_way_at = now
            os.sched_yield()

    def add(self, fd: int, event: Event, on_event: OnEvent) -> None:
        self._watched[fd] = on_event
        if self._own is not None:
            self._own.register(fd, event.value)
        elif event is Event.WRITABLE:
            Context().run(self.loop.add_writer, fd, on_event)
        else:
            Context().run(self.loop.add_reader, fd, on_event)

    def remove(self, fd: int) -> None:
        """Does nothing if the descriptor is not watched."""
        if self._watched.pop(fd, None) is None:
            return
        if self._own is not None:
            self._own.unregister(fd)
        else:
            self.loop.remove_reader(fd)
            self.loop.remove_writer(fd)

    def close(self) -> None:
        if self._own is not None:
            self.loop.remove_reader(self._own.fileno())
            self._own.close()

    def _look(self) -> None:
        assert self._own is not None
        watched = self._watched
        ready = [(fd, watched.get(fd)) for fd, _what in self._own.poll(0)]
        for fd, on_event in ready:
            # An earlier callback may have closed this descriptor, and its number may be in use
            # again.
            if on_event is not None and watched.get(fd) is on_event:
                on_event()


if sys.platform == "linux":
    # The values of `Event` are those of epoll.
    def _open_epoll() -> select.epoll | None:
        return select.epoll()

else:

    def _open_epoll() -> None:
        return None


class Descriptor:
    """A non-blocking descriptor that this object owns, and that one task at a time waits for."""

    def __init__(self, watch: DescriptorWatch, fd: int) -> None:
        self._watch = watch
        self._waiting: asyncio.Future[None] | None = None
        self.fd = fd
        """-1 once it is closed."""

    async def until_ready(self, event: Event) -> None:
        """Wait until it is ready for `event`, or closed."""
        fd = self.fd
        waiting = self._waiting = self._watch.loop.create_future()
        self._watch.add(fd, event, partial(_wake, waiting))
        try:
            await waiting
        finally:
            if self.fd == fd:
                self._watch.remove(fd)

    def close(self) -> None:
        if self.fd >= 0:
            self._watch.remove(self.fd)
            os.close(self.fd)
            self.fd = -1
        if self._waiting is not None:
            _wake(self._waiting)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


class Once(Generic[T]):
    """A value that is set once, and that any number of tasks can wait for.

    Unlike with a shared future, cancelling one waiting task does not affect the others.
    """

    __slots__ = ("_loop", "_value", "_waiting", "is_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []
        self._value: T | None = None
        self.is_set = False

    def set(self, value: T) -> None:
        self._value = value
        self.is_set = True
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    @property
    def value(self) -> T | None:
        return self._value

    async def wait(self) -> T:
        if not self.is_set:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if not self.is_set:
                    self._waiting.remove(waiting)
        return cast(T, self._value)
