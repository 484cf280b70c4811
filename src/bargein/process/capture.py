"""Output kept within a bound: the beginning and the end; the middle is counted.

A flood costs next to nothing: its pieces are kept as they are until newer ones have taken their
place. Small pieces are put together, so that a million of them are not a million objects.
"""

from collections import deque
from typing import Final

from bargein.process.values import Captured, CaptureLimits

_SMALL_BYTES: Final = 4 * 1024
_TOGETHER_BYTES: Final = 64 * 1024


class Capture:
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
        """How many of the next bytes, of those that are known to follow, need not be read."""
        if len(self._head) < self._limits.head_bytes:
            return 0
        return max(0, following_bytes - self._limits.tail_bytes)

    def drop(self, count: int) -> None:
        """That many bytes were thrown away unread, and with them whatever came before."""
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
