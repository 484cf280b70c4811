"""The events of a session as they happen, over server-sent events.

Each event of the log carries its place as the id, so that a reader who comes back says where it
was and gets the rest: none missed, none twice, also after a restart of the server. What happens
between two events of the log (pieces of text, output of calls) has no id; a reader who comes in
the middle is first told how far it is.

A reader that goes away stops nothing. One that does not keep up is told so and cut off: it costs
nobody else anything, and can go on where it was.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, aclosing

import anyio
import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.types import Receive, Scope, Send

from bargein.contracts.event import Recorded
from bargein.errors import BargeinError
from bargein.server.edge import Edge, problem_response, told
from bargein.server.gateway import Gateway, Opened
from bargein.server.problems import Code, Problem
from bargein.server.protocol import abort_of
from bargein.server.shapes import CutOff, CutReason
from bargein.session.broadcast import TooSlow

_log = logging.getLogger("bargein.server")
_encoder = msgspec.json.Encoder()

PING = b": still here\n\n"
RETRY = b"retry: 1000\n\n"
OUTBOX_BYTES_MAX = 256 * 1024
LAST_WORDS_S = 1.0
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

DETAILS: dict[CutReason, str] = {
    "too_slow": "more events were waiting for this reader than may; read faster, or go on here",
    "shutting_down": "the server is shutting down; go on here when it is back",
    "session_gone": "the session has ended",
    "revoked": "the token has expired or was revoked",
}


def resume_point(connection: HTTPConnection) -> int | None:
    """Where the reader was. The header comes from a browser that reconnects by itself, with the
    address that it first had: so it wins."""
    text = connection.headers.get("last-event-id")
    name = "Last-Event-ID"
    if text is None:
        text, name = connection.query_params.get("after"), "?after="
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Problem(Code.BAD_REQUEST, f"{name} is {text[:40]!r}; give the id of an event, or 0")
    return int(text)


class EventStream:
    """An ASGI app that answers one `GET .../events`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        gateway = self._edge.gateway
        with ExitStack() as stack:
            try:
                principal = self._edge.principal(request)
                after = resume_point(request)
                opened = await gateway.open(principal, request.path_params["session"])
                await check_place(gateway, opened, after)
                stream = _Stream(gateway, opened, after, send, abort_of(scope))
                stack.enter_context(gateway.stream(principal, stream.cut))
            except Exception as error:  # boundary: whatever happened, the one who asked is told
                await problem_response(told(error))(scope, receive, send)
                return
            await stream.run(receive)


async def check_place(gateway: Gateway, opened: Opened, after: int | None) -> None:
    if not after:
        return
    head = await gateway.head(opened.session.id)
    if after > head.seq:
        raise Problem(
            Code.BAD_REQUEST,
            f"event {after} has not happened in {opened.session.id}: its log ends at {head.seq}. "
            "Begin again with ?after=0",
        )


def gone_reason(gateway: Gateway) -> CutReason:
    """Why the events of a session have come to their end."""
    return "shutting_down" if gateway.draining.is_set() else "session_gone"


class Outbox:
    """Pieces on their way to one reader. Whoever puts waits while too much is on its way; what
    has gathered while one piece went out goes out together."""

    def __init__(self, bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pieces: list[bytes] = []
        self._seq = 0
        self._more = anyio.Event()
        self._room = anyio.Event()
        self._closed = False

    async def put(self, piece: bytes, seq: int = 0) -> None:
        while self._bytes >= self._bytes_max:
            self._room = anyio.Event()
            await self._room.wait()
        self._pieces.append(piece)
        self._bytes += len(piece)
        self._seq = seq or self._seq
        self._more.set()

    def close(self) -> None:
        self._closed = True
        self._more.set()

    async def take(self, patience_s: float) -> tuple[list[bytes], int]:
        """All there is, and the place of the last event in it; nothing after `patience_s`, and
        `StopAsyncIteration` at the end."""
        if not self._pieces:
            if self._closed:
                raise StopAsyncIteration
            self._more = anyio.Event()
            with anyio.move_on_after(patience_s):
                await self._more.wait()
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        self._room.set()
        return pieces, self._seq


class _Stream:
    def __init__(
        self,
        gateway: Gateway,
        opened: Opened,
        after: int | None,
        send: Send,
        abort: Callable[[], None],
    ) -> None:
        self._abort = abort
        self._gateway = gateway
        self._limits = gateway.limits
        self._session = opened.session
        self._after = after
        self._send = send
        self._outbox = Outbox()
        self._sent_seq = after or 0
        self._scope = anyio.CancelScope()
        self._reason: CutReason | None = None

    def cut(self, reason: CutReason) -> None:
        self._reason = reason
        self._scope.cancel()

    async def run(self, receive: Receive) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._out(RETRY)
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_gone, receive, group.cancel_scope)
            with self._scope:
                async with anyio.create_task_group() as both:
                    both.start_soon(self._read)
                    await self._write()
                    both.cancel_scope.cancel()
            await self._last_words()
            group.cancel_scope.cancel()

    async def _last_words(self) -> None:
        """Why it ends. A reader that takes not even that is left at once."""
        last = b""
        if self._reason is not None:
            off = CutOff(self._reason, DETAILS[self._reason], self._sent_seq)
            last = b"data: " + _encoder.encode(off) + b"\n\n"
        with anyio.move_on_after(LAST_WORDS_S) as patience:
            await self._send({"type": "http.response.body", "body": last})
        if patience.cancelled_caught:
            _log.info("a reader of %s stands still and is left", self._session.id)
            self._abort()

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _read(self) -> None:
        try:
            async with aclosing(self._session.watch(after=self._after)) as events:
                async for event in events:
                    if isinstance(event, Recorded):
                        frame = b"id: %d\ndata: %b\n\n" % (event.seq, _encoder.encode(event))
                        await self._outbox.put(frame, event.seq)
                    else:
                        await self._outbox.put(b"data: " + _encoder.encode(event) + b"\n\n")
            self._reason = gone_reason(self._gateway)
        except TooSlow:
            self._reason = "too_slow"
        except BargeinError as error:
            _log.warning("%s cannot be watched: %s", self._session.id, error)
            self._reason = gone_reason(self._gateway)
        self._outbox.close()

    async def _write(self) -> None:
        try:
            while True:
                pieces, seq = await self._outbox.take(self._limits.ping_s)
                await self._out(b"".join(pieces) or PING)
                self._sent_seq = seq or self._sent_seq
        except StopAsyncIteration:
            return

    async def _out(self, piece: bytes) -> None:
        with anyio.move_on_after(self._limits.send_s) as patience:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        if patience.cancelled_caught:
            self.cut("too_slow")
