"""uvicorn's HTTP protocol, with a bound on everything that a peer can make it hold.

- The head of a request and its trailers: `HEAD_BYTES_MAX` bytes and `FIELDS_MAX` fields. The parser
  calls back only when a field is complete, and joins the pieces of an unfinished one, so the bytes
  since its last callback are counted too.
- Time: `head_s` for a head, and the same for the rest of a body after its answer.
- A body: `body_bytes_max`, even if the app does not read it. Trailers are dropped: merged into the
  headers, they would bypass proxies that check headers.
- Requests that wait behind another one on a connection: `PIPELINED_MAX`. Nothing is read while one
  waits. If one read brings more, they stay unanswered and the last answer says
  `connection: close`, so that the client knows which ones to send again.

A connection that has ended leaves no reference cycle. Otherwise clients that connect and leave in
masses would keep Python's collector busy.

An app can end a connection at once with `abort_of`, even if the peer reads nothing and a polite
close would wait for it. `is_whole` tells an app that the whole request is here, as it nearly always
is, so that reading it needs no time limit.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bargein.server.connections import Connection, Connections, put_into

HEAD_S = 15.0
HEAD_BYTES_MAX = 64 * 1024
FIELDS_MAX = 200
PIPELINED_MAX = 16
SLICE_BYTES = 16 * 1024
UNWANTED_BYTES_MAX = 1024 * 1024
"""How much of a body is read after the answer, so that the client gets to read the answer."""

_ABORT = "bargein.abort"
_WHOLE = "bargein.whole"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def abort_of(scope: Scope) -> Callable[[], None]:
    """Returns a function that ends the request's connection at once. Under another server it does
    nothing."""
    abort: Callable[[], None] = scope.get(_ABORT, _nothing)
    return abort


def is_whole(scope: Scope) -> bool:
    """Returns whether the whole request is here, so that receiving it does not wait. Always False
    under another server."""
    return _WHOLE in scope


def _nothing() -> None:
    pass


class BoundExceeded(Exception):
    """Raised out of the parser's callbacks: ends the parsing of a connection's bytes."""


class _Flow(FlowControl):
    """Keeps reading paused while a request waits behind another one. uvicorn's own class resumes
    for each body and after each answer, so the requests of a client that reads no answers would
    pile up without bound."""

    def __init__(self, transport: asyncio.Transport, protocol: "GatewayProtocol") -> None:
        super().__init__(transport)
        self._protocol: GatewayProtocol | None = protocol

    def resume_reading(self) -> None:
        protocol = self._protocol
        if protocol is not None and not protocol.pipeline and not protocol.is_full:
            super().resume_reading()

    def let_go(self) -> None:
        """Drops the protocol. Called when it reads no more."""
        self._protocol = None


class GatewayProtocol(HttpToolsProtocol):
    head_s = HEAD_S
    is_full = False
    """More requests came than may wait. All further bytes are ignored."""
    _patience: asyncio.TimerHandle | None = None
    _in_head = False
    _in_body = False
    _head_bytes = 0
    _fields = 0
    _body_bytes = 0
    _unwanted_bytes = 0
    _silent_bytes = 0
    _spoke = False
    _upgraded = False

    def __init__(
        self,
        *arguments: Any,
        connections: Connections,
        body_bytes_max: int,
        by_door: bool = False,
        for_guests: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._connections = connections
        self._body_bytes_max = body_bytes_max
        self._by_door = by_door
        self._for_guests = for_guests
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._connection = Connection(
            self._connections,
            self.client[0] if self.client is not None else "",
            close=transport.close,
            abort=transport.abort,
            is_idle=self._is_idle,
            by_door=self._by_door,
            for_guests=self._for_guests,
        )
        self._wait_for_head()
        self._connections.add(self._connection)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._connection is not None:
            self._connection.lost()
        super().connection_lost(exc)
        self._let_go()

    def _let_go(self) -> None:
        self.parser = None  # type: ignore[assignment]
        if self.flow is not None:
            self.flow.let_go()  # type: ignore[attr-defined]
        # None of these will be answered.
        for cycle, _ in self.pipeline:
            cycle.on_response = _nothing
        self.pipeline.clear()

    def _is_idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    # --- bytes

    def data_received(self, data: bytes) -> None:
        place, end = 0, len(data)
        while place < end and not self._is_over():
            # A body goes to the parser as it came. A head goes in small pieces, because the parser
            # does not say at which byte of a piece it last called back.
            size = end - place if self._in_body else min(SLICE_BYTES, end - place)
            piece = data if size == end else data[place : place + size]
            place += size
            self._spoke = False
            self._feed(piece)
            self._silent_bytes = 0 if self._spoke else self._silent_bytes + size
            if self._silent_bytes > HEAD_BYTES_MAX:
                self._refuse_head()
        if self._patience is None and not self._is_over() and self._waits_for_head():
            self._wait_for_head()

    def _feed(self, piece: bytes) -> None:
        """Parses as uvicorn does. An error from the callbacks below ends the parsing: after a
        refusal the rest does not matter."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self.logger.warning("Unsupported upgrade request.")
        except httptools.HttpParserError:
            if not self._is_over():
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")

    def _is_over(self) -> bool:
        return self.transport.is_closing() or self._upgraded or self.is_full

    def _waits_for_head(self) -> bool:
        """True also after bytes that begin no request, which have no other bound."""
        return self._in_head or (not self._in_body and self._is_idle())

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._stop_waiting()
        # The new protocol takes over the connection and its principal.
        made_by: Any = self.ws_protocol_class
        self.ws_protocol_class = partial(made_by, connection=self._connection)  # type: ignore[assignment]
        super().handle_websocket_upgrade()
        self._let_go()

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        self._spoke = True
        super().on_message_begin()
        self._in_head, self._head_bytes, self._fields = True, 0, 0
        self._body_bytes = self._unwanted_bytes = 0
        # `data_received` starts the timer again if the head is not complete yet.
        self._stop_waiting()
        self.scope[_ABORT] = self.transport.abort  # type: ignore[literal-required]
        if self._connection is not None:
            put_into(self.scope, self._connection)  # type: ignore[arg-type]

    def on_url(self, url: bytes) -> None:
        self._spoke = True
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._spoke = True
        self._fields += 1
        self._count_head(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX or self._fields > FIELDS_MAX:
            self._refuse_head()
            raise BoundExceeded("the head is too large")

    def on_headers_complete(self) -> None:
        self._spoke = True
        self._in_head, self._in_body = False, True
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if len(self.pipeline) >= PIPELINED_MAX:
            self.is_full = True
            self.cycle.keep_alive = False
            raise BoundExceeded("too many requests wait on this connection")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._spoke = True
        if self.transport.is_closing():
            return
        self._body_bytes += len(body)
        if self.cycle is not None and self.cycle.response_complete:
            self._unwanted_bytes += len(body)
        super().on_body(body)
        too_much = self._body_bytes > self._body_bytes_max + UNWANTED_BYTES_MAX
        if too_much or self._unwanted_bytes > UNWANTED_BYTES_MAX:
            self.transport.close()
            raise BoundExceeded("the body is too large")

    def on_message_complete(self) -> None:
        self._spoke = True
        self._in_body = False
        self._stop_waiting()
        if self.transport.is_closing():
            return
        super().on_message_complete()
        self.scope[_WHOLE] = True  # type: ignore[literal-required]

    def on_response_complete(self) -> None:
        # `cycle` is the last request that came, and stays until the next one. The answer may be
        # that of an earlier request.
        if self.cycle.response_complete:
            self.cycle.body = bytearray()
        if self._connection is not None:
            self._connection.used()
        super().on_response_complete()
        if self._in_body and self._patience is None and not self.pipeline:
            self._wait_for_head()

    # --- bounds

    def _refuse_head(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_idle():
            self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._patience = self.loop.call_later(self.head_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
