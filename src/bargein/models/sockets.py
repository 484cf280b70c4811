"""Duplicates of one request's sockets, so that any thread can cut the connection at once.

The event loop owns a socket and may close it at any moment. If another thread used the same
descriptor, it could hit an unrelated connection that got the same number. So each socket is
duplicated when it is created. Whoever takes a duplicate out of the dict owns it, and that happens
once: `cut` for a cancel, `release` for a normal end. A connection closes on the wire only when both
copies are closed, and neither outlives the request.

`cut` takes no lock and does not block, so it may run in a signal handler.
"""

import os
import socket
import struct
from itertools import count

from bargein.net.resolver import FoundAddress

# Makes close discard unsent data and reset the connection. Otherwise a request whose body the other
# side does not read would stay in the kernel, and on the wire, long after its end.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _OwnSocket(socket.socket):
    """Closes its descriptor only while it still owns it.

    If a connection dies after connecting and before its TLS handshake, uvloop closes the descriptor
    and the Python socket does not know. Closing it again later, as the garbage collector would,
    hits whichever connection got the number meanwhile, and libuv aborts the process. The kernel's
    identity of the socket shows whether the number is still ours.
    """

    __slots__ = ("_identity",)

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._identity = _identity(self.fileno())

    def close(self) -> None:
        self._forget_if_lost()
        super().close()

    def __del__(self) -> None:
        self._forget_if_lost()
        super().__del__()  # type: ignore[misc] # the C type's own, which closes and warns

    def _forget_if_lost(self) -> None:
        descriptor = self.fileno()
        if descriptor >= 0 and _identity(descriptor) != self._identity:
            self.detach()


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Sockets:
    __slots__ = ("_cut", "_held", "_serials")

    def __init__(self) -> None:
        self._held: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._serials = count()
        self._cut = False

    def create(self, address: FoundAddress) -> socket.socket:
        """Returns a new socket for the event loop to connect."""
        family, kind, protocol, _, _ = address
        made = _OwnSocket(family, kind, protocol)
        try:
            twin = socket.socket(family, kind, protocol, fileno=os.dup(made.fileno()))
        except OSError:
            made.close()
            raise
        self._held[next(self._serials)] = (made, twin)
        # Stored first, checked second: a concurrent cut sees the socket, or we see the cut.
        if self._cut:
            self.cut()
        return made

    def keep_open_only(self) -> None:
        """Releases sockets that lost the race to connect and that their owner has closed."""
        for serial, (made, _) in list(self._held.items()):
            if made.fileno() < 0:
                self._take(serial)

    def cut(self) -> None:
        """Ends every connection now. From any thread or signal handler, any number of times."""
        self._cut = True
        while self._held:
            try:
                _, (_, twin) = self._held.popitem()
            except KeyError:
                return
            try:
                twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                twin.shutdown(socket.SHUT_RDWR)
            except OSError:
                # Not connected yet, or no longer: nothing is on the wire.
                pass
            twin.close()

    def release(self) -> None:
        """Closes the duplicates; the event loop's own close then ends the connection."""
        for serial in list(self._held):
            self._take(serial)

    def _take(self, serial: int) -> None:
        pair = self._held.pop(serial, None)
        if pair is not None:
            pair[1].close()

    def __len__(self) -> int:
        return len(self._held)
