"""Tells when a cgroup becomes empty.

The kernel announces it by POLLPRI on cgroup.events, which event loops do not wait for. So the
files are put into an epoll of their own, and the loop waits for that one to be readable.
"""

import asyncio
import select
from collections.abc import Callable
from contextvars import Context


class PopulationWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], object]] = {}
        Context().run(loop.add_reader, self._epoll.fileno(), self._look)

    def add(self, events: int, on_change: Callable[[], object]) -> None:
        """`events` is an open cgroup.events. What happened before may or may not be announced."""
        self._watched[events] = on_change
        self._epoll.register(events, select.EPOLLPRI)

    def remove(self, events: int) -> None:
        if self._watched.pop(events, None) is not None:
            self._epoll.unregister(events)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for events, _what in self._epoll.poll(0):
            on_change = self._watched.get(events)
            if on_change is not None:
                on_change()
