"""The outermost middleware: request id, the client's address, and the bytes in memory.

- Every request has an id. It is in each line logged for the request, and in the answer's
  `x-request-id`. An id from outside is used only if a trusted proxy sent it.
- The client's address and scheme come from a trusted proxy's header, if there is one. Otherwise
  they are those of the connection, whatever the headers say.
- The bytes of a body count for its principal until the answer begins. The bytes of a large answer
  count until they are sent, piece by piece. An answer that does not fit into the budget becomes a
  429, and a peer that does not take a piece within `send_s` loses its connection.

A cancel, or an error in the app, releases what the request holds.
"""

import itertools
import re
import secrets
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bargein.server.gateway import Gateway
from bargein.server.limits import Hold
from bargein.server.problems import Problem
from bargein.server.protocol import abort_of
from bargein.server.proxy import forwarded

REQUEST_ID: ContextVar[str] = ContextVar("bargein_request_id", default="")

PIECE_BYTES = 64 * 1024
HEADER = b"x-request-id"

_HOLDS = "bargein.holds"
_WHO = "bargein.who"
_ID = re.compile(rb"[\w.-]{1,64}")


def hold_body(scope: Scope, gateway: Gateway, who: str) -> Hold:
    """Returns the hold for the body of this request. It is released when the answer begins."""
    hold = gateway.hold(who)
    scope.setdefault(_HOLDS, []).append(hold)
    return hold


def charge_answer_to(scope: Scope, who: str) -> None:
    """Counts the bytes of this request's answer for `who`."""
    scope[_WHO] = who


class RequestContext:
    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._start = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = self._read_proxy(scope)
        request_id = given or f"{self._start}-{next(self._numbers):x}"
        outside = REQUEST_ID.set(request_id)
        scope[_HOLDS] = []
        way_out = _WayOut(self._gateway, scope, send, request_id.encode())
        try:
            await self._app(scope, receive, way_out.send)
        finally:
            way_out.release()
            REQUEST_ID.reset(outside)

    def _read_proxy(self, scope: MutableMapping[str, Any]) -> str:
        """Sets the client's address and scheme from a trusted proxy's headers. Returns the proxy's
        request id, or an empty text."""
        settings = self._gateway.settings
        client = scope.get("client")
        if client is None or not settings.trusted_proxies or not settings.is_proxy(client[0]):
            return ""
        origin = forwarded(scope["headers"], settings.proxy_header, settings.is_proxy)
        if origin.address:
            scope["client"] = (origin.address, 0)
        if origin.scheme in ("http", "https"):
            plain = origin.scheme == "http"
            ends = ("ws", "wss") if scope["type"] == "websocket" else ("http", "https")
            scope["scheme"] = ends[0] if plain else ends[1]
        found = next((value for name, value in scope["headers"] if name == HEADER), b"")
        return found.decode() if _ID.fullmatch(found) else ""


class _WayOut:
    """Sends the answer to one request. The start of a large answer waits until its body has a
    place in the budget, because otherwise another answer is sent: the 429."""

    def __init__(self, gateway: Gateway, scope: Scope, send: Send, request_id: bytes) -> None:
        self._gateway = gateway
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._start: Message | None = None
        self._refused = False

    def release(self) -> None:
        for hold in self._scope[_HOLDS]:
            hold.release()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            headers = [*message.get("headers", ()), (HEADER, self._request_id)]
            message = {**message, "headers": headers}
            self.release()
            if _length(headers) > PIECE_BYTES:
                self._start = message
                return
        elif kind == "http.response.body" and len(message.get("body", b"")) > PIECE_BYTES:
            await self._send_large(message)
            return
        await self._send_begun()
        if not self._refused:
            await self._send(message)

    async def _send_begun(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            await self._send(start)

    async def _send_large(self, message: Message) -> None:
        body, more = message["body"], message.get("more_body", False)
        with self._gateway.hold(self._scope.get(_WHO, "")) as hold:
            try:
                hold.resize(len(body))
            except Problem as problem:
                if self._start is None:
                    raise
                await self._refuse(problem)
                return
            await self._send_begun()
            for place in range(0, len(body), PIECE_BYTES):
                piece = body[place : place + PIECE_BYTES]
                last = not more and place + PIECE_BYTES >= len(body)
                with anyio.move_on_after(self._gateway.limits.send_s) as patience:
                    await self._send({**message, "body": piece, "more_body": not last})
                if patience.cancelled_caught:
                    abort_of(self._scope)()
                    return

    async def _refuse(self, problem: Problem) -> None:
        from bargein.server.edge import problem_response

        begun, self._start, self._refused = self._start, None, True
        response = problem_response(problem)
        kept = begun["headers"] if begun is not None else []
        others = [each for each in kept if not each[0].startswith(b"content-length")]
        others = [each for each in others if each[0] != b"content-type"]
        headers = [*response.raw_headers, *others]
        start = {"type": "http.response.start", "status": problem.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": response.body})


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0
