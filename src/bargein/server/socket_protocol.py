"""uvicorn's WebSocket protocol, with a bound on everything that a peer can make it hold.

- The bytes of an incoming message count for its principal until the app has taken it. A message has
  at most `FRAGMENTS_MAX` fragments, empty ones included.
- At most `QUEUED_MAX` commands wait to be taken, with at most `QUEUED_BYTES_MAX` bytes beside the
  last one. While they wait, nothing more is parsed or read.
- A large outgoing message is sent in fragments, each when the peer has taken the one before, so
  that a peer that reads nothing makes the transport hold one fragment.
- A ping is answered while the peer reads; otherwise the answer is dropped, as the protocol allows.
  A peer that sends many pings loses the socket.
- One socket's input is parsed for at most `FEED_S` at a time, so that others are served in between.
- Nothing is compressed: a few bytes could become many.
"""

import time
from collections import deque
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

from bargein.server.connections import Connection, put_into
from bargein.server.holding import Hold, Holdings
from bargein.server.limits import Rate
from bargein.server.problems import Problem

FRAGMENTS_MAX = 1024
QUEUED_MAX = 64
QUEUED_BYTES_MAX = 64 * 1024
SLICE_BYTES = 8 * 1024
PIECE_CHARACTERS = 64 * 1024
FEED_S = 0.0003
"""How long one socket's input is parsed before the others have their turn."""
STRANGER_BYTES_MAX = 64 * 1024
PINGS_PER_S = 10.0
PINGS_BURST = 100

POLICY, TOO_MUCH = 1008, 1013


class GatewaySocketProtocol(WebSocketsSansIOProtocol):
    def __init__(
        self, *arguments: Any, holdings: Holdings, connection: Connection, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._holdings = holdings
        self._connection = connection
        connection.is_idle = self._is_idle
        self._coming: Hold | None = None
        self._fragment_bytes = 0
        # Of the commands that wait, in their order.
        self._sizes: deque[int] = deque()
        self._queued_bytes = 0
        self._unfed = b""
        self._going_on = False
        self._pings = Rate(PINGS_PER_S, PINGS_BURST)

    @property
    def unfed_bytes(self) -> int:
        return len(self._unfed)

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def _is_idle(self) -> bool:
        """A socket is always in use: it has a stream."""
        return False

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            put_into(self.scope, self._connection)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._unfed = b""
        self.conn.reader.discard()
        # The parser is a generator, whose frame holds the connection that holds it.
        self.conn.parser.close()
        self._release()
        self._connection.lost()
        super().connection_lost(exc)

    # --- what comes

    def data_received(self, data: bytes) -> None:
        self._unfed = self._unfed + data if self._unfed else data
        self._feed()

    def _feed(self) -> None:
        """Give the parser what was read, as far as its messages may wait."""
        data, place = self._unfed, 0
        until = time.monotonic() + FEED_S
        while place < len(data) and self._has_room():
            if self.transport.is_closing():
                self._unfed = b""
                return
            super().data_received(data[place : place + SLICE_BYTES])
            place += SLICE_BYTES
            self._count()
            if time.monotonic() > until:
                break
        self._unfed = data[place:]
        if self._unfed and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        if self._unfed and self._has_room() and not self._going_on:
            self._going_on = True
            self.loop.call_soon(self._go_on)
        elif not self._unfed and self.read_paused and self.queue.empty() and not self.close_sent:
            self.read_paused = False
            self.transport.resume_reading()

    def _has_room(self) -> bool:
        return self.queue.qsize() < QUEUED_MAX and self._queued_bytes < QUEUED_BYTES_MAX

    def _go_on(self) -> None:
        self._going_on = False
        if self._unfed and not self.transport.is_closing():
            self._feed()

    async def receive(self) -> Any:
        if self._unfed and self._has_room():
            self._feed()
        message = await self.queue.get()
        if message["type"] == "websocket.receive" and self._sizes:
            self._queued_bytes -= self._sizes.popleft()
            self._count()
        if self.read_paused and not self._unfed and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return message

    async def send(self, message: Any) -> None:
        if self.close_sent:
            raise ClientDisconnected
        text = message.get("text") or ""
        if text and self.conn.expect_continuation_frame:
            # The peer did not take the fragments of the message before in time.
            self.transport.abort()
            raise ClientDisconnected
        if len(text) <= PIECE_CHARACTERS:
            await super().send(message)
            if self.initial_response is not None and self.close_sent:
                # A refusal has gone out. uvicorn would log that the handshake is incomplete.
                self.handshake_complete = True
            return
        for place in range(0, len(text), PIECE_CHARACTERS):
            await self._send_piece(text, place)

    async def _send_piece(self, text: str, place: int) -> None:
        await self.writable.wait()
        if self.disconnected or self.close_sent:
            raise ClientDisconnected
        piece = text[place : place + PIECE_CHARACTERS].encode()
        is_last = place + PIECE_CHARACTERS >= len(text)
        try:
            if place:
                self.conn.send_continuation(piece, is_last)
            else:
                self.conn.send_text(piece, is_last)
        except InvalidState:
            raise ClientDisconnected from None
        self.transport.write(b"".join(self.conn.data_to_send()))

    def _count(self) -> None:
        """Count the bytes of what has come and was not taken yet, complete or not."""
        size = len(self.conn.reader.buffer) + self._fragment_bytes + self._queued_bytes
        principal = self._connection.principal
        if principal is None:
            if size > STRANGER_BYTES_MAX:
                self.transport.abort()
            return
        if size <= SLICE_BYTES:
            self._release()
            return
        if self._coming is None:
            self._coming = Hold(self._holdings, principal)
        try:
            self._coming.resize(size)
        except Problem:
            self._fail(TOO_MUCH, "too many bytes are on their way; send fewer at once")

    def _release(self) -> None:
        if self._coming is not None:
            self._coming.release()
            self._coming = None

    def _fail(self, code: int, reason: str) -> None:
        if not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def _complete(self, size: int) -> None:
        """A whole command has come, and waits to be taken."""
        self._fragment_bytes = 0
        self._sizes.append(size)
        self._queued_bytes += size

    def handle_text(self, event: Frame) -> None:
        self._begin_message(event)
        super().handle_text(event)
        _let_go(event)

    def handle_bytes(self, event: Frame) -> None:
        self._begin_message(event)
        super().handle_bytes(event)
        _let_go(event)

    def _begin_message(self, event: Frame) -> None:
        if event.fin:
            self._complete(len(event.data))
        else:
            self._fragment_bytes = len(event.data)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS_MAX:
            self._fail(POLICY, f"a message has at most {FRAGMENTS_MAX} fragments")
            return
        size = self._fragment_bytes + len(event.data)
        if event.fin:
            self._complete(size)
        else:
            self._fragment_bytes = size
        super().handle_cont(event)
        _let_go(event)

    def handle_ping(self) -> None:
        if self._pings.take(""):
            self._fail(POLICY, f"more than {PINGS_PER_S:g} pings a second")
        elif self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()


def _let_go(event: Frame) -> None:
    """The parser keeps the last frame until the next one is complete; it need not keep its data."""
    event.data = b""
