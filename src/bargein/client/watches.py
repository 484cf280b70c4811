"""The events of one session as they come over the wire, for one reader."""

import asyncio
from collections import deque

import msgspec

from bargein.client.problems import ERRORS, Unauthenticated
from bargein.client.wire import CutFrame, read_event
from bargein.contracts.event import Recorded
from bargein.errors import BargeinError
from bargein.session.broadcast import BYTES_MAX, TooSlow, Watched

EVENTS_MAX = 10_000
# If the server ends a watch for one of these reasons, the client watches again.
GOES_ON = ("too_slow", "shutting_down", "unavailable")


class WireWatch:
    """`after` is the number of the last event that came, at first of the event to begin after;
    None until the server has named it. A reader that does not keep up gets `TooSlow`, as in
    process."""

    def __init__(self, name: str, session: str, after: int | None) -> None:
        self.name = name
        self.session = session
        self.after = after
        self.is_over = False
        self._events: deque[Watched] = deque()
        self._bytes = 0
        self._error: BargeinError | None = None
        self._more = asyncio.Event()
        self._began = asyncio.Event()

    def frame(self) -> str:
        made = {"id": self.name, "do": "watch", "params": {"session": self.session}}
        made |= {"query": {"after": str(self.after)}} if self.after is not None else {}
        return msgspec.json.encode(made).decode()

    def begin(self, after: int) -> None:
        if self.after is None:
            self.after = after
        self._began.set()

    def take(self, content: bytes) -> CutFrame | None:
        """Take what the server sent. Returns the frame with which the server ended the watch, or
        None for an event; after such a frame the watch is over or has to be asked for again."""
        try:
            event = read_event(content)
        except BargeinError as error:
            self.fail(error)
            return None
        if isinstance(event, CutFrame):
            self._cut(event)
            return event
        if isinstance(event, Recorded):
            if self.after is not None and event.seq <= self.after:
                return None
            self.after = event.seq
        self._events.append(event)
        self._bytes += len(content)
        if len(self._events) > EVENTS_MAX or self._bytes > BYTES_MAX + len(content):
            self.fail(
                TooSlow(
                    f"more than {EVENTS_MAX} events or {BYTES_MAX} bytes waited; watch again from "
                    "the last one that was read",
                    retryable=True,
                )
            )
        self._more.set()
        return None

    def _cut(self, off: CutFrame) -> None:
        if off.reason == "revoked":
            self.fail(Unauthenticated(off.detail))
        elif off.reason == "unreadable":
            self.fail(ERRORS["unreadable"](off.detail))
        elif off.reason not in GOES_ON:
            self._end()

    def fail(self, error: BargeinError) -> None:
        if not self.is_over:
            self._error = error
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self._more.set()
        self._began.set()

    async def began(self) -> None:
        """Wait until the server has begun the watch; raise its error if it refused."""
        await self._began.wait()
        if self._error is not None and not self._events:
            raise self._error

    async def next(self) -> list[Watched]:
        """Wait for events and return all that have come; an empty list when the watch is over."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return []
            self._more.clear()
            await self._more.wait()
        events = list(self._events)
        self._events.clear()
        self._bytes = 0
        return events
