"""Events to whoever watches a session: bounded, and never felt by the session or by others."""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

import anyio

from bargein.contracts.event import Recorded
from bargein.contracts.live import Live
from bargein.errors import WorldError

Watched = Recorded | Live

Observe = Callable[[str, Watched], None]
"""Told of everything that any session shows, with the session's id: for figures and traces. It
must not wait; what it raises is logged and harms nobody."""

_log = logging.getLogger("bargein.session")


class TooSlow(WorldError):
    """This watcher fell too far behind and was cut off. It can begin again where it was."""


class Watcher:
    """`async for event in watcher:`. Made by `Broadcast.watch`; `close` ends it."""

    def __init__(self, broadcast: "Broadcast", events_max: int) -> None:
        self._broadcast = broadcast
        self._events_max = events_max
        self._events: deque[Watched] = deque()
        self._more = anyio.Event()
        self._lost = False
        self._closed = False

    def push(self, event: Watched) -> None:
        if len(self._events) >= self._events_max:
            self._lost = True
            self.close()
            return
        self._events.append(event)
        self._more.set()

    def close(self) -> None:
        self._closed = True
        self._broadcast.forget(self)
        self._more.set()

    def __aiter__(self) -> AsyncIterator[Watched]:
        return self

    async def __anext__(self) -> Watched:
        if not self._events:
            await self._wait()
        return self._events.popleft()

    async def take(self) -> list[Watched]:
        """All that waits, at least one; ends as iterating does."""
        if not self._events:
            await self._wait()
        events = list(self._events)
        self._events.clear()
        return events

    async def _wait(self) -> None:
        while not self._events:
            if self._lost:
                raise TooSlow(
                    f"more than {self._events_max} events were waiting; watch again from the last "
                    "one that was read",
                    retryable=True,
                )
            if self._closed:
                raise StopAsyncIteration
            self._more = anyio.Event()
            await self._more.wait()


class Broadcast:
    def __init__(self, session: str, events_max: int, observe: Observe | None = None) -> None:
        self._session = session
        self._events_max = events_max
        self._observe = observe
        self._watchers: list[Watcher] = []

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    @property
    def is_heard(self) -> bool:
        return bool(self._watchers) or self._observe is not None

    def watch(self) -> Watcher:
        watcher = Watcher(self, self._events_max)
        self._watchers.append(watcher)
        return watcher

    def send(self, event: Watched) -> None:
        if self._observe is not None:
            try:
                self._observe(self._session, event)
            except Exception as error:  # boundary: an observer harms no session
                _log.error("an observer failed at %s", self._session, exc_info=error)
        if self._watchers:
            for watcher in list(self._watchers):
                watcher.push(event)

    def forget(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def close(self) -> None:
        for watcher in list(self._watchers):
            watcher.close()
