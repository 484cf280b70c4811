"""Takes new connections, a few at a time, so that a crowd of them holds up nobody who is there.

The event loop's own server takes all that wait in one go: after a burst of some hundred, everybody
else waits until each of them has been set up. Here the loop comes around to the others after every
`AT_ONCE_MAX`.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

AT_ONCE_MAX = 4
NO_ROOM_S = 0.5
"""How long to wait when there is no room for another descriptor."""

_log = logging.getLogger("bargein.server")
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """In place of `asyncio.Server`, as far as uvicorn uses one. On the loop's thread."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        no_room_s: float = NO_ROOM_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._make_protocol = make_protocol
        self._no_room_s = no_room_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Take no more. What was taken already goes on."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(AT_ONCE_MAX):
            try:
                connection, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                _log.warning("no room for more connections: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                again = self._loop.add_reader
                self._pause = self._loop.call_later(
                    self._no_room_s, again, self._listening, self._accept
                )
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            # Its peer is gone already.
            _log.debug("a connection was lost before it began: %s", error)
            connection.close()
