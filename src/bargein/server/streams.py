"""The events of a session as they happen, over server-sent events.

Each event of the log carries its place as the id, so that a reader who comes back says where it
was and gets the rest: none missed, none twice, also after a restart of the server. What happens
between two events of the log (pieces of text, output of calls) has no id; a reader who comes in
the middle is first told how far it is.

A reader that goes away stops nothing. One that does not keep up is told so and cut off: it costs
nobody else anything, and can go on where it was.
"""

import logging
from contextlib import aclosing
from typing import Literal, cast

import anyio
import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.types import Receive, Scope, Send

from bargein.contracts.event import Recorded
from bargein.server.edge import Edge, problem_response, told
from bargein.server.gateway import Gateway, Opened
from bargein.server.problems import Code, Problem
from bargein.server.shapes import CutOff
from bargein.session.broadcast import TooSlow, Watched

_log = logging.getLogger("bargein.server")
_encoder = msgspec.json.Encoder()

PING = b": still here\n\n"
RETRY = b"retry: 1000\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

CutReason = Literal["too_slow", "shutting_down", "session_gone", "revoked"]
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
        try:
            principal = self._edge.principal(request)
            after = resume_point(request)
            opened = await gateway.open(principal, request.path_params["session"])
            await _check_place(gateway, opened, after)
            stream = _Stream(gateway, opened, after, send)
            with gateway.stream(principal, stream.cut):
                await stream.run(receive)
        except Exception as error:  # boundary: whatever happened, the one who asked is told
            await problem_response(told(error))(scope, receive, send)


async def _check_place(gateway: Gateway, opened: Opened, after: int | None) -> None:
    if not after:
        return
    head = await gateway.head(opened.session.id)
    if after > head.seq:
        raise Problem(
            Code.BAD_REQUEST,
            f"event {after} has not happened in {opened.session.id}: its log ends at {head.seq}. "
            "Begin again with ?after=0",
        )


class _Stream:
    def __init__(self, gateway: Gateway, opened: Opened, after: int | None, send: Send) -> None:
        self._gateway = gateway
        self._session = opened.session
        self._after = after
        self._send = send
        self._last_seq = after or 0
        self._scope = anyio.CancelScope()
        self._reason: CutReason | None = None

    def cut(self, reason: str) -> None:
        self._reason = cast(CutReason, reason)
        self._scope.cancel()

    async def run(self, receive: Receive) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._out(RETRY)
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_gone, receive, group.cancel_scope)
            with self._scope:
                await self._pump()
            if self._reason is not None:
                off = CutOff(self._reason, DETAILS[self._reason], self._last_seq)
                await self._out(b"data: " + _encoder.encode(off) + b"\n\n")
            await self._send({"type": "http.response.body", "body": b""})
            group.cancel_scope.cancel()

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _pump(self) -> None:
        try:
            async with aclosing(self._session.watch(after=self._after)) as events:
                async for event in events:
                    await self._out(self._frame(event))
            self._reason = "session_gone"
        except TooSlow:
            self._reason = "too_slow"

    def _frame(self, event: Watched) -> bytes:
        if isinstance(event, Recorded):
            self._last_seq = event.seq
            return b"id: %d\ndata: %b\n\n" % (event.seq, _encoder.encode(event))
        return b"data: " + _encoder.encode(event) + b"\n\n"

    async def _out(self, frame: bytes) -> None:
        with anyio.move_on_after(self._gateway.limits.send_s) as patience:
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        if patience.cancelled_caught:
            self._reason = "too_slow"
            self._scope.cancel()
