"""Sends the events of a session as they happen, as server-sent events.

An event of the log has its place as the id. A reader that reconnects names its last id and gets the
rest: none missed, none twice, also after a restart of the server. What happens between two events
of the log (pieces of text, output of calls) has no id; a reader that comes in the middle first gets
what there is so far.

A reader that goes away stops nothing. One that does not keep up gets a last event that says so, and
is cut off: it delays nobody else, and can go on where it was.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass

import anyio
import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.types import Receive, Scope, Send

from bargein.contracts.store import SessionUnreadable, StoreFailed
from bargein.errors import BargeinError
from bargein.server.access import Principal
from bargein.server.anywhere import place_of
from bargein.server.anywhere import watch as watch_anywhere
from bargein.server.edge import Edge, problem_response
from bargein.server.gateway import Gateway, Opened, Reader
from bargein.server.problems import Code, Problem, as_problem
from bargein.server.protocol import abort_of
from bargein.server.shapes import CutOff, CutReason
from bargein.session.broadcast import TooSlow
from bargein.session.session import Session

_log = logging.getLogger("bargein.server")
_encoder = msgspec.json.Encoder()

PING = b": still here\n\n"
RETRY = b"retry: 1000\n\n"
# How long a part waits for others to be sent with it: too short for anybody to see.
GATHER_S = 0.004
LAST_WORDS_S = 1.0
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

DETAILS: dict[CutReason, str] = {
    "too_slow": "more events were waiting for this reader than may; read faster, or go on here",
    "shutting_down": "the server is shutting down; go on here when it is back",
    "session_gone": "the session has ended, or is no longer yours to see",
    "revoked": "the token has expired or was revoked",
    "unreadable": "the session cannot be read: it is damaged, or a newer Bargein wrote it",
    "unavailable": "the session cannot be shown now; try again in a moment",
}


def resume_point(connection: HTTPConnection) -> int | None:
    """Returns the event after which the reader goes on, or None. The header wins over `?after=`: a
    browser that reconnects by itself sends it with the address of its first request."""
    text = connection.headers.get("last-event-id")
    name = "Last-Event-ID"
    if text is None:
        text, name = connection.query_params.get("after"), "?after="
    return place_in(text, name)


def place_in(text: str | None, name: str) -> int | None:
    """Returns the number of an event from a request's parameter `name`, or None."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Problem(Code.BAD_REQUEST, f"{name} is {text[:40]!r}; give the id of an event, or 0")
    return int(text)


@dataclass(frozen=True, slots=True)
class Watch:
    """`after` is the reader's last event; None for a reader that begins now."""

    reader: Reader
    session: Session
    after: int | None


async def begin_watch(
    edge: Edge, connection: HTTPConnection, principal: Principal | None = None
) -> Watch:
    """Opens the session for a reader. Raises `Problem` if the reader may not have its events."""
    if principal is None:
        principal = edge.principal(connection)
    after = resume_point(connection)
    opened = await edge.gateway.open(principal, connection.path_params["session"])
    await check_place(edge.gateway, opened, after)
    return Watch(Reader(principal, opened.root), opened.session, after)


@contextmanager
def watching(gateway: Gateway, watch: Watch) -> Iterator[None]:
    """Wraps the showing of events. However it ends, the reader gets the reason."""
    try:
        yield
        watch.reader.cut(_gone_reason(gateway))
    except TooSlow:
        watch.reader.cut("too_slow")
    except SessionUnreadable as error:
        watch.reader.cut("unreadable", str(error))
    except StoreFailed as error:
        # The session is there: a reader that hears it is gone would forget it.
        _log.warning("%s cannot be watched: %s", watch.session.id, error)
        watch.reader.cut("unavailable", str(error))
    except BargeinError as error:
        _log.warning("%s cannot be watched: %s", watch.session.id, error)
        watch.reader.cut(_gone_reason(gateway))


class EventStream:
    """An ASGI app that answers one `GET .../events`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        gateway = self._edge.gateway
        with ExitStack() as stack:
            try:
                watch = await begin_watch(self._edge, request)
                stream = _Stream(gateway, watch, send, abort_of(scope))
                stack.enter_context(gateway.stream(watch.reader, stream.tick))
            except Exception as error:  # boundary: every failure becomes a problem answer
                await problem_response(as_problem(error))(scope, receive, send)
                return
            await stream.run(receive)


async def check_place(gateway: Gateway, opened: Opened, after: int | None) -> None:
    """Raises `Problem` for a place that the log of the session does not have."""
    if not after:
        return
    head = await gateway.head(opened.session.id)
    if after > head.seq:
        raise Problem(
            Code.BAD_REQUEST,
            f"event {after} has not happened in {opened.session.id}: its log ends at {head.seq}. "
            "Begin again with ?after=0",
        )


def _gone_reason(gateway: Gateway) -> CutReason:
    """Returns why the events of a session have ended."""
    return "shutting_down" if gateway.draining.is_set() else "session_gone"


class _Stream:
    """Sends events to one reader. What gathers while a piece is being sent goes out together, so
    that under load the pieces get larger and not more. It has no timer: the gateway's `tick` cuts
    off a stream that stands still, and sends a ping on one that was quiet for long."""

    def __init__(
        self,
        gateway: Gateway,
        watch: Watch,
        send: Send,
        abort: Callable[[], None],
    ) -> None:
        self._abort = abort
        self._gateway = gateway
        self._limits = gateway.limits
        self._watch = watch
        self._reader = watch.reader
        self._send = send
        self._sent_seq = watch.after or 0
        self._sent_at = time.monotonic()
        self._sending = False
        self._over = False

    def tick(self, now: float) -> None:
        quiet_s = now - self._sent_at
        if self._sending and quiet_s > self._limits.send_s:
            self._reader.cut("too_slow")
        elif not self._sending and quiet_s > self._limits.ping_s:
            self._gateway.go_on(self._ping())

    async def run(self, receive: Receive) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._out(RETRY)
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_gone, receive, group.cancel_scope)
            with self._reader.scope:
                await self._show()
            await self._last_words()
            group.cancel_scope.cancel()

    async def _ping(self) -> None:
        # The stream may have ended meanwhile.
        if not self._over:
            await self._out(PING)

    async def _last_words(self) -> None:
        """Sends why the stream ends. Aborts the connection if the reader does not take it."""
        self._over = True
        last = b""
        reason = self._reader.reason
        if reason is not None:
            off = CutOff(reason, self._reader.detail or DETAILS[reason], self._sent_seq)
            last = b"data: " + _encoder.encode(off) + b"\n\n"
        with anyio.move_on_after(LAST_WORDS_S) as patience:
            await self._send({"type": "http.response.body", "body": last})
        if patience.cancelled_caught:
            _log.info("a reader of %s stands still and is left", self._watch.session.id)
            self._abort()

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _show(self) -> None:
        watch = self._watch
        with watching(self._gateway, watch):
            events = watch_anywhere(self._gateway, watch.session.id, watch.after)
            async with aclosing(events) as batches:
                async for batch in batches:
                    seq = self._sent_seq
                    frames = []
                    for event in batch:
                        place = place_of(event)
                        if place is not None:
                            seq = place
                            frames.append(b"id: %d\ndata: " % seq)
                        else:
                            frames.append(b"data: ")
                        frames.append(self._gateway.events.encode(event).content)
                        frames.append(b"\n\n")
                    await self._out(b"".join(frames))
                    self._sent_seq = seq
                    await anyio.sleep(GATHER_S)

    async def _out(self, piece: bytes) -> None:
        self._sending, self._sent_at = True, time.monotonic()
        try:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except Problem:
            # Its principal's other streams use up the budget: it can go on when they are done.
            self._reader.cut("too_slow")
        self._sending, self._sent_at = False, time.monotonic()
