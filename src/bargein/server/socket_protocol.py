"""WebSockets as uvicorn speaks them, with a bound on everything that a peer can make it hold.

- A message that is coming counts among the bytes held for its principal, and has at most
  `FRAGMENTS_MAX` fragments, also where they are empty.
- Commands that wait to be taken are few, and have at most `QUEUED_BYTES_MAX` beside the last one.
  What a read brought beside them is handed on when they have been taken, and nothing is read
  meanwhile.
- A ping is answered while the peer reads. To one who does not, the answers are dropped, as the
  protocol allows. Whoever sends many loses the socket.
- What a read brought is looked through for a moment at a time, between which others are served.
- Nothing is compressed: a few bytes could become many.
"""

import time
from collections import deque
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
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
FEED_S = 0.001
"""How long one socket is listened to before the others have their turn."""
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
        if self.read_paused and not self._unfed and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return message

    def _count(self) -> None:
        """What has come of a message that is not complete."""
        size = len(self.conn.reader.buffer) + self._fragment_bytes
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
        if event.fin:
            self._complete(len(event.data))
        else:
            self._fragment_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if event.fin:
            self._complete(len(event.data))
        else:
            self._fragment_bytes = len(event.data)
        super().handle_bytes(event)

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

    def handle_ping(self) -> None:
        if self._pings.take(""):
            self._fail(POLICY, f"more than {PINGS_PER_S:g} pings a second")
        elif self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()
