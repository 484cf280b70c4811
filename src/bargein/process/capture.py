"""Output kept within a bound: the beginning and the end; the middle is counted.

Adding costs a copy of what is kept, never more, whatever the size of the pieces.
"""

from bargein.process.values import Captured, CaptureLimits


class Capture:
    def __init__(self, limits: CaptureLimits) -> None:
        self._limits = limits
        self._head = bytearray()
        self._tail = bytearray()
        self._total_bytes = 0

    def add(self, piece: bytes) -> None:
        self._total_bytes += len(piece)
        room = self._limits.head_bytes - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        limit = self._limits.tail_bytes
        if len(piece) >= limit:
            self._tail = bytearray(piece[len(piece) - limit :])
        elif piece:
            self._tail += piece
            # Cut only at twice the limit: each byte is then moved once at most.
            if len(self._tail) > 2 * limit:
                del self._tail[:-limit]

    def snapshot(self) -> Captured:
        limit = self._limits.tail_bytes
        head = bytes(self._head)
        tail = bytes(self._tail[-limit:]) if limit else b""
        return Captured(head, tail, self._total_bytes - len(head) - len(tail))
