"""Accepts connections at a bounded pace, so that a crowd of new ones does not delay the others.

Setting up a connection takes longer than answering a request. The event loop's own server accepts
all that are waiting in one go, and every open connection waits meanwhile. This one lets the loop
serve others after every `AT_ONCE_MAX` connections, and accepts a crowd at `connections_per_s`. The
kernel keeps the rest in its backlog, in order: new clients wait and are not refused.

With TLS a connection begins when both sides have agreed on a key. Until then it counts nowhere
else, so at most `HANDSHAKES_MAX` wait for that; a newcomer ends the oldest.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from bargein.server.limits import Rate

AT_ONCE_MAX = 4
HANDSHAKES_MAX = 64
HANDSHAKE_S = 10.0
CLOSE_S = 2.0
NO_ROOM_S = 0.5
"""How long to wait before accepting again when no more files can be opened."""

_log = logging.getLogger("bargein.server")
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Replaces `asyncio.Server` as far as uvicorn uses one. For the loop's thread only."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        pace: Rate,
        no_room_s: float = NO_ROOM_S,
        admits: Callable[[socket.socket], bool] = lambda connection: True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._make_protocol = make_protocol
        self._pace = pace
        self._no_room_s = no_room_s
        self._admits = admits
        self._may_accept = False
        """The pace has allowed one more connection than was accepted."""
        self._tls = tls
        # In order: the oldest is the first.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stops accepting. Connections that were accepted go on."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(AT_ONCE_MAX):
            wait_s = 0.0 if self._may_accept else self._pace.take("")
            if wait_s:
                self._wait(wait_s)
                return
            self._may_accept = True
            try:
                connection, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                _log.warning("no room for more connections: %s", error.strerror)
                self._wait(self._no_room_s)
                return
            self._may_accept = False
            if not self._admits(connection):
                _log.warning("a connection by the owner's door was refused: it is not the owner's")
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
            if self._tls is not None and len(self._tasks) > HANDSHAKES_MAX:
                next(iter(self._tasks)).cancel()

    def _wait(self, for_s: float) -> None:
        self._loop.remove_reader(self._listening)
        again = self._loop.add_reader
        self._pause = self._loop.call_later(for_s, again, self._listening, self._accept)

    async def _begin(self, connection: socket.socket) -> None:
        options = {}
        if self._tls is not None:
            options = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": CLOSE_S}
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls, **options
            )
        except OSError as error:
            _log.debug("the peer was gone before its connection began: %s", error)
            connection.close()
