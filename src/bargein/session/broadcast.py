"""Sends events to the watchers of a session. Bounded: a slow watcher delays neither the session nor
other watchers."""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

import anyio
import msgspec

from bargein.contracts.event import Recorded
from bargein.contracts.live import Live
from bargein.errors import WorldError

Watched = Recorded | Live

Observe = Callable[[str, Watched], None]
"""Receives everything that any session shows, with the session's id, for metrics and traces. It
must not block; its errors are logged."""

BYTES_MAX = 16 * 1024 * 1024
EVENT_BYTES = 100

_encode = msgspec.msgpack.Encoder().encode
_log = logging.getLogger("bargein.session")


class TooSlow(WorldError):
    """This watcher fell too far behind and was cut off. It can watch again from where it was."""


class Watcher:
    """`async for event in watcher:`. Made by `Broadcast.watch`; `close` ends it."""

    def __init__(self, broadcast: "Broadcast", events_max: int, bytes_max: int) -> None:
        self._broadcast = broadcast
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: deque[Watched] = deque()
        self._more = anyio.Event()
        self._lost = False
        self._closed = False

    def push(self, event: Watched, size: int) -> None:
        """Add an event. If none waits before it, it may have any size."""
        too_much = self._events and self._bytes + size > self._bytes_max
        if too_much or len(self._events) >= self._events_max:
            self._lost = True
            self.close()
            return
        self._events.append(event)
        self._bytes += size
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
        event = self._events.popleft()
        if not self._events:
            self._bytes = 0
        return event

    async def take(self) -> list[Watched]:
        """Return all waiting events, at least one; ends like the iteration."""
        if not self._events:
            await self._wait()
        events = list(self._events)
        self._events.clear()
        self._bytes = 0
        return events

    async def _wait(self) -> None:
        while not self._events:
            if self._lost:
                raise TooSlow(
                    f"more than {self._events_max} events or {self._bytes_max} bytes waited; watch "
                    "again from the last one that was read",
                    retryable=True,
                )
            if self._closed:
                raise StopAsyncIteration
            self._more = anyio.Event()
            await self._more.wait()


class Broadcast:
    def __init__(
        self,
        session: str,
        events_max: int,
        observe: Observe | None = None,
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._session = session
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._observe = observe
        self._watchers: list[Watcher] = []

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    @property
    def is_heard(self) -> bool:
        return bool(self._watchers) or self._observe is not None

    def watch(self) -> Watcher:
        watcher = Watcher(self, self._events_max, self._bytes_max)
        self._watchers.append(watcher)
        return watcher

    def send(self, event: Watched) -> None:
        if self._observe is not None:
            try:
                self._observe(self._session, event)
            except Exception as error:  # boundary: an observer must not harm a session
                _log.error("an observer failed at %s", self._session, exc_info=error)
        if self._watchers:
            size = _size_of(event)
            for watcher in list(self._watchers):
                watcher.push(event, size)

    def forget(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def close(self) -> None:
        for watcher in list(self._watchers):
            watcher.close()


def _size_of(event: Watched) -> int:
    """Estimate the size: live events are mostly small, and frequent."""
    if isinstance(event, Recorded):
        return EVENT_BYTES + len(_encode(event.event))
    text = getattr(event, "text", "")
    return EVENT_BYTES + len(text)
