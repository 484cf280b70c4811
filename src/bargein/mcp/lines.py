"""Splits bytes into lines, whatever pieces the bytes come in. Pure; linear in the bytes."""

from collections.abc import Iterator

import msgspec

HEAD_BYTES = 4096


class TooLong(msgspec.Struct, frozen=True):
    """A line that was dropped: its beginning and its length."""

    head: bytes
    length: int


class LineSplitter:
    """`feed` yields each finished line without its end, or `TooLong`. Holds no more than
    `line_bytes_max`."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []
        self._length = 0
        self._head: bytes | None = None

    def feed(self, piece: bytes) -> Iterator[bytes | TooLong]:
        parts = piece.split(b"\n")
        last = parts.pop()
        for part in parts:
            self._add(part)
            yield self._finish()
        self._add(last)

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._head is not None:
            return
        self._pieces.append(part)
        if self._length > self._line_bytes_max:
            self._head = b"".join(self._pieces)[:HEAD_BYTES]
            self._pieces.clear()

    def _finish(self) -> bytes | TooLong:
        length, self._length = self._length, 0
        if self._head is not None:
            head, self._head = self._head, None
            return TooLong(head, length)
        line = b"".join(self._pieces)
        self._pieces.clear()
        return line
