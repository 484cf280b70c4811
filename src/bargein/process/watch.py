"""Waits for what event loops do not wait for, or only at some cost.

The kernel announces by POLLPRI that a cgroup became empty, which loops do not know; and a stop
watches each process for a moment, which is dear by a loop's own means. So these descriptors are put
into an epoll of their own, and the loop waits for that one to be readable.
"""

import asyncio
import select
from collections.abc import Callable
from contextvars import Context

PRIORITY = select.EPOLLPRI
READABLE = select.EPOLLIN


class Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], object]] = {}
        Context().run(loop.add_reader, self._epoll.fileno(), self._look)

    def add(self, fd: int, what: int, on_event: Callable[[], object]) -> None:
        self._watched[fd] = on_event
        self._epoll.register(fd, what)

    def remove(self, fd: int) -> None:
        """Before it is closed; also if it was never added."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for fd, _what in self._epoll.poll(0):
            on_event = self._watched.get(fd)
            if on_event is not None:
                on_event()
