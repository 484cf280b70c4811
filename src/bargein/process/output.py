"""Reading the output of a command, without ever waiting for the end of the pipe.

`OutputReader` reads on its own and keeps a bounded part: one piece each turn of the loop, so that
a flood neither blocks the command nor starves the loop. `OutputStream` reads only when asked, so
that a process that writes too much has to wait.

An escaped process that holds the pipe open would keep it from ever ending. So reading ends
with the processes: when they are gone, `drain` takes what is left in the pipe, one pipe-full at
most, and `close` closes our end. All of it runs on the loop.
"""

import asyncio
import errno
import fcntl
import logging
import os
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Final

from bargein.process.values import Captured, CaptureLimits
from bargein.process.waiting import Descriptor, DescriptorWatch, Event

PIECE_BYTES: Final = 64 * 1024
FLOOD_PIECE_BYTES: Final = 256 * 1024
FLOOD_PIECES: Final = 16
PIPE_FULL_BYTES: Final = 1024 * 1024
_SMALL_BYTES: Final = 4 * 1024
_TOGETHER_BYTES: Final = 64 * 1024
_F_SETPIPE_SZ: Final = getattr(fcntl, "F_SETPIPE_SZ", 0)

OnOutput = Callable[[bytes], object]

_log = logging.getLogger(__name__)


class Capture:
    """Keeps the beginning and the end of its input, and counts the middle.

    It keeps large pieces as they are and joins small ones, so that a flood is not copied and a
    million small pieces are not a million objects.
    """

    def __init__(self, limits: CaptureLimits) -> None:
        self._limits = limits
        self._head = bytearray()
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_bytes = 0
        self._total_bytes = 0

    def add(self, piece: bytes) -> None:
        self._total_bytes += len(piece)
        room = self._limits.head_bytes - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if piece:
            self._append(piece)
            spare = self._tail_bytes - self._limits.tail_bytes
            while self._tail and len(self._tail[0]) <= spare:
                gone = len(self._tail.popleft())
                self._tail_bytes -= gone
                spare -= gone

    def droppable(self, following_bytes: int) -> int:
        """How many of the next `following_bytes` need not be read, because later ones replace
        them."""
        if len(self._head) < self._limits.head_bytes:
            return 0
        return max(0, following_bytes - self._limits.tail_bytes)

    def drop(self, count: int) -> None:
        """Counts bytes that were dropped unread. They replace the tail so far."""
        self._total_bytes += count
        self._tail.clear()
        self._tail_bytes = 0

    def _append(self, piece: bytes) -> None:
        self._tail_bytes += len(piece)
        if len(piece) >= _SMALL_BYTES:
            self._tail.append(piece)
            return
        last = self._tail[-1] if self._tail else None
        if isinstance(last, bytearray) and len(last) < _TOGETHER_BYTES:
            last += piece
        else:
            self._tail.append(bytearray(piece))

    def snapshot(self) -> Captured:
        limit = self._limits.tail_bytes
        head = bytes(self._head)
        tail = b"".join(self._tail)[-limit:] if limit else b""
        return Captured(head, tail, self._total_bytes - len(head) - len(tail))


class OutputReader:
    """Reads a descriptor that it owns, and that must not block, into a `Capture`.

    `on_output` gets every piece as it is read. If it raises, that is logged and it gets no more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        *,
        limits: CaptureLimits,
        on_output: OnOutput | None,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._capture = Capture(limits)
        self._on_output = on_output
        self._reading = True
        self._piece_bytes = PIECE_BYTES
        self._full_pieces = 0
        self._nowhere = -1
        loop.add_reader(fd, self._read)

    @property
    def captured(self) -> Captured:
        return self._capture.snapshot()

    def drain(self) -> None:
        """Reads what is in the pipe now: everything that an ended process wrote."""
        taken = 0
        while self._reading and taken < PIPE_FULL_BYTES:
            size = self._read()
            if not size:
                return
            taken += size

    def close(self) -> None:
        self._stop_reading()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._nowhere >= 0:
            os.close(self._nowhere)
            self._nowhere = -1

    def _read(self) -> int:
        if self._nowhere >= 0:
            self._throw_away()
        piece = _read_piece(self._fd, self._piece_bytes)
        if piece is None:
            return 0
        if not piece:
            self._stop_reading()
            return 0
        self._capture.add(piece)
        if len(piece) == PIECE_BYTES:
            self._full_pieces += 1
            if self._full_pieces == FLOOD_PIECES:
                self._widen()
        if self._on_output is not None:
            self._hand_on(piece)
        return len(piece)

    def _widen(self) -> None:
        """Enlarge the pipe, which saves a flood half of its turns of the loop. Only for a flood,
        because the system limits the size of all pipes of a user together."""
        if _F_SETPIPE_SZ:
            try:
                fcntl.fcntl(self._fd, _F_SETPIPE_SZ, FLOOD_PIECE_BYTES)
                self._piece_bytes = FLOOD_PIECE_BYTES
                if _CAN_SPLICE and self._on_output is None:
                    self._nowhere = os.open(os.devnull, os.O_WRONLY)
            except OSError:
                pass  # the limit is reached, or this is a terminal

    def _throw_away(self) -> None:
        """Splice bytes to /dev/null, without copying them, that later ones in the pipe replace.
        Only without `on_output`, which has to get every byte."""
        fcntl.ioctl(self._fd, termios.FIONREAD, waiting := bytearray(4))
        count = self._capture.droppable(int.from_bytes(waiting, sys.byteorder))
        if count >= PIECE_BYTES:
            try:
                self._capture.drop(_splice(self._fd, self._nowhere, count))
            except OSError:
                pass  # another process emptied the pipe; reading shows what is left

    def _hand_on(self, piece: bytes) -> None:
        assert self._on_output is not None
        try:
            self._on_output(piece)
        except Exception:  # boundary: a listener that fails must not end the reading
            _log.exception("a listener to output failed and gets no more of it")
            self._on_output = None

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)


class OutputStream:
    """Output that stays in the pipe until `read` takes it."""

    def __init__(self, watch: DescriptorWatch, fd: int) -> None:
        self._descriptor = Descriptor(watch, fd)
        self._turn = asyncio.Lock()
        self._rest: deque[bytes] = deque()

    async def read(self, bytes_max: int = PIECE_BYTES) -> bytes:
        """Wait for output and return up to `bytes_max` of it; `b""` at its end.

        Several readers take turns. A cancelled read loses nothing.
        """
        async with self._turn:
            while not self._rest and self._descriptor.fd >= 0:
                piece = _read_piece(self._descriptor.fd, bytes_max)
                if piece:
                    return piece
                if piece is None:
                    await self._descriptor.until_ready(Event.READABLE)
                else:
                    self._descriptor.close()
            if not self._rest:
                return b""
            piece = self._rest.popleft()
            if len(piece) > bytes_max:
                self._rest.appendleft(piece[bytes_max:])
            return piece[:bytes_max]

    def close(self) -> None:
        """Keep what is in the pipe now, one pipe-full at most, for later reads. Close the pipe."""
        taken = 0
        while self._descriptor.fd >= 0 and taken < PIPE_FULL_BYTES:
            piece = _read_piece(self._descriptor.fd, PIECE_BYTES)
            if not piece:
                break
            self._rest.append(piece)
            taken += len(piece)
        self._descriptor.close()


def _read_piece(fd: int, bytes_max: int) -> bytes | None:
    """Returns None if there is nothing to read now, and `b""` at the end."""
    try:
        return os.read(fd, bytes_max)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        # EIO: the other end of a terminal was closed. Any other error ends the output as well.
        if error.errno != errno.EIO:
            _log.warning("reading output failed: %s", error)
        return b""


if sys.platform == "linux":
    _CAN_SPLICE: Final = True

    def _splice(source: int, target: int, count: int) -> int:
        return os.splice(source, target, count, flags=os.SPLICE_F_NONBLOCK)

else:
    _CAN_SPLICE: Final = False

    def _splice(source: int, target: int, count: int) -> int:
        raise NotImplementedError
