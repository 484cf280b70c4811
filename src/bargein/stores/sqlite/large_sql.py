"""Long values of large events, cut into segments that are written before the commit.

One commit of several megabytes would hold the writer for tens of milliseconds, and a stop of
another session would wait for it. So the writer first writes the segments of each long value, each
in a transaction of its own, and other sessions' commits in between. Then the commit itself is
small: the body of its event refers to the values (decision 190).

What holds:

- A value belongs to at most one event. Until the commit its `event` is 0.
- All segments of a value are on the disk when the commit that refers to it is.
- A value without an event that no job is writing is a leftover: of a crash, a refused commit or a
  deleted session. The writer removes it at leisure, a few segments at a time.
- The number of a value was never in the file before, so that a second process which got past the
  lock cannot give the number another content.
"""

import os
import sqlite3
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from bargein.stores.encoding import Long, join_body, slices_of

SEGMENT_BYTES = 64 * 1024
SWEEP_SEGMENTS = 8

# A segment's number is that of its value, and its place in the value in the lower bits.
PLACE_BITS = 16
SEGMENTS_MAX = 1 << PLACE_BITS

BEGIN_VALUE = "INSERT INTO long_values VALUES (?, 0)"
PUT_SEGMENT = "INSERT INTO segments VALUES (?, ?)"
SEGMENTS = "SELECT data FROM segments WHERE number >= ? AND number < ? ORDER BY number"
LET_GO = "UPDATE long_values SET event = 0 WHERE event = ?"
LEFT_OVER = "SELECT value FROM long_values WHERE event = 0 LIMIT ?"
DROP_SEGMENTS = """DELETE FROM segments WHERE number IN (
    SELECT number FROM segments WHERE number >= ? AND number < ? LIMIT ?)"""
DROP_VALUE = "DELETE FROM long_values WHERE value = ?"


# --- writing


class ValueNumbers:
    """Gives numbers to values. They begin anywhere, and rise."""

    def __init__(self) -> None:
        self._last = int.from_bytes(os.urandom(5), "big")

    def take(self) -> int:
        self._last += 1
        return self._last


class LongValue:
    """A value on its way into the file, a segment at a time. Only the segment that is being written
    is encoded."""

    def __init__(self, number: int, value: Long) -> None:
        self.number = number
        self._slices = slices_of(value)
        self._encoded = bytearray()
        self._place = 0

    def write_segment(self, connection: sqlite3.Connection) -> int:
        """Write the next segment. Returns its size in bytes; 0 if all are written."""
        data = self._next_segment()
        number = (self.number << PLACE_BITS) + self._place
        if data and self._place:
            connection.execute(PUT_SEGMENT, (number, data))
        elif data:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(BEGIN_VALUE, (self.number,))
            connection.execute(PUT_SEGMENT, (number, data))
            connection.execute("COMMIT")
        self._place += 1
        return len(data)

    def _next_segment(self) -> bytearray:
        encoded = self._encoded
        while len(encoded) < SEGMENT_BYTES and (some := next(self._slices, b"")):
            encoded += some
        self._encoded = encoded[SEGMENT_BYTES:]
        return encoded[:SEGMENT_BYTES]


# --- reading


class LongValues:
    """Reads values. The caller's cursor on the events stays open meanwhile, so that events and
    values show the same moment. `bytes_read` counts the bytes of all values that were read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.bytes_read = 0
        self.join = partial(join_body, find_text=self._text, find_bytes=self._bytes)

    def _text(self, number: int, size: int) -> str:
        """Return a text that grows by a segment at a time. Making it at once would hold the
        interpreter for milliseconds, mostly with page faults."""
        text, decoder = "", getincrementaldecoder("utf-8")()
        for data in self._segments(number, size):
            text += decoder.decode(data)
        return text + decoder.decode(b"", True)

    def _bytes(self, number: int, size: int) -> bytes:
        return b"".join(self._segments(number, size))

    def _segments(self, number: int, size: int) -> Iterator[bytes]:
        first, found = number << PLACE_BITS, 0
        given = (first, first + SEGMENTS_MAX)
        with closing(self._connection.execute(SEGMENTS, given)) as segments:
            for (data,) in segments:
                found += len(data)
                yield data
        self.bytes_read += found
        if found != size:
            raise ValueError(f"value {number} has {found} bytes, not {size}")


# --- removing


def sweep_values(connection: sqlite3.Connection, under_way: Sequence[int]) -> bool:
    """Remove a few segments of a value that no event has. `under_way` are the values that are being
    written. Returns False if there is nothing to remove."""
    rows = connection.execute(LEFT_OVER, (len(under_way) + 1,)).fetchall()
    value = next((number for (number,) in rows if number not in under_way), None)
    if value is None:
        return False
    first = value << PLACE_BITS
    given = (first, first + SEGMENTS_MAX, SWEEP_SEGMENTS)
    if connection.execute(DROP_SEGMENTS, given).rowcount < SWEEP_SEGMENTS:
        connection.execute(DROP_VALUE, (value,))
    return True
