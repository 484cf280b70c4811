"""Waits for descriptors, in ways that event loops do not offer.

- The kernel announces by POLLPRI that a cgroup became empty, which loops do not wait for.
- A socket or pipe whose other end was closed at the wrong moment is in error, and uvloop then
  forgets it without a word. It must be heard: what the other end said before is still there.
- A stop watches each process for a moment, which is dear by a loop's own means.

So these descriptors are put into an epoll of their own, and the loop waits for that one. Callbacks
run on the loop, in an empty context: they belong to no caller. Where there is no epoll (macOS) the
loop's own means have to do.
"""

import asyncio
import os
import select
import sys
import time
from collections.abc import Callable
from contextvars import Context
from enum import IntEnum
from math import inf

GIVE_WAY_EVERY_S = 0.005

OnEvent = Callable[[], object]


class Event(IntEnum):
    READABLE = 1
    PRIORITY = 2
    WRITABLE = 4


class Watch:
    """A descriptor is watched for one thing at a time, and removed before it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._watched: dict[int, OnEvent] = {}
        self._gave_way_at = -inf
        self._own = _open_epoll()
        if self._own is not None:
            Context().run(loop.add_reader, self._own.fileno(), self._look)

    def give_way(self) -> None:
        """Let processes that were just signalled have this core, where they may have been woken:
        they could not die while this thread computes. Once for all that are signalled together,
        since on a loaded machine it may take until strangers have had their turn as well."""
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
        """Also if it was never added."""
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
            # One callback may close what another was to hear of, and its number be used again.
            if on_event is not None and watched.get(fd) is on_event:
                on_event()


if sys.platform == "linux":
    # The values of `Event` are those of epoll.
    def _open_epoll() -> select.epoll | None:
        return select.epoll()

else:

    def _open_epoll() -> None:
        return None
