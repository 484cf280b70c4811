"""Reading what a command writes, without ever waiting for the pipe's end.

Everything is read as fast as the loop turns, one piece a turn, so that a flood neither blocks the
command nor starves the loop; what exceeds the limits is thrown away. A pipe that an escaped
process holds open would never end. So reading ends with the processes: when they are gone what is
still in the pipe is taken, one pipe-full at most, and our end is closed.
"""

import asyncio
import errno
import fcntl
import logging
import os
import sys
import termios
from collections.abc import Callable
from typing import Final

from bargein.process.capture import Capture
from bargein.process.values import Captured, CaptureLimits

PIECE_BYTES: Final = 64 * 1024
FLOOD_PIECE_BYTES: Final = 256 * 1024
FLOOD_PIECES: Final = 16
PIPE_FULL_BYTES: Final = 1024 * 1024
_F_SETPIPE_SZ: Final = getattr(fcntl, "F_SETPIPE_SZ", 0)

OnOutput = Callable[[bytes], object]

_log = logging.getLogger(__name__)


class OutputReader:
    """Owns the descriptor it is given, which must not block."""

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
        """Take what is there now, so that a process that has ended has been heard to its end."""
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
        try:
            piece = os.read(self._fd, self._piece_bytes)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            # The other end of a terminal was closed. Anything else is no better than an end.
            if error.errno != errno.EIO:
                _log.warning("reading output failed: %s", error)
            piece = b""
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
        """A larger pipe saves a flood half of its turns. Only for a flood: a user's pipes together
        have a limit."""
        if _F_SETPIPE_SZ:
            try:
                fcntl.fcntl(self._fd, _F_SETPIPE_SZ, FLOOD_PIECE_BYTES)
                self._piece_bytes = FLOOD_PIECE_BYTES
                if _CAN_SPLICE and self._on_output is None:
                    self._nowhere = os.open(os.devnull, os.O_WRONLY)
            except OSError:
                pass  # the limit is reached, or this is a terminal

    def _throw_away(self) -> None:
        """What is followed in the pipe by more than is kept goes to nowhere without being copied.
        Nobody may be listening to it."""
        fcntl.ioctl(self._fd, termios.FIONREAD, waiting := bytearray(4))
        count = self._capture.droppable(int.from_bytes(waiting, sys.byteorder))
        if count >= PIECE_BYTES:
            try:
                self._capture.drop(_splice(self._fd, self._nowhere, count))
            except OSError:
                pass  # somebody else emptied the pipe; reading shows what is left

    def _hand_on(self, piece: bytes) -> None:
        assert self._on_output is not None
        try:
            self._on_output(piece)
        except Exception:  # boundary: a listener that fails must not end the reading
            _log.exception("a listener to output failed and hears no more")
            self._on_output = None

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)


if sys.platform == "linux":
    _CAN_SPLICE: Final = True

    def _splice(source: int, target: int, count: int) -> int:
        return os.splice(source, target, count, flags=os.SPLICE_F_NONBLOCK)

else:
    _CAN_SPLICE: Final = False

    def _splice(source: int, target: int, count: int) -> int:
        raise NotImplementedError
