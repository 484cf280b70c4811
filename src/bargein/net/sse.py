"""Parses server-sent events from bytes that arrive in arbitrary pieces.

`feed(chunk)` returns the data, still encoded, of the events that the chunk completed. How the bytes
are cut into chunks makes no difference. Lines may end in LF, CRLF or CR. Comments, event names (the
data says what an event is) and empty events are dropped but counted as lines, because they show
that the other side is alive. `last_id` and `retry_ms` are the last ones that the other side sent.
The work is linear in the number of bytes, also for a line that arrives one byte at a time. At most
`event_bytes_max` bytes are held: a longer line or event raises `EventTooLong`.

Pure: no I/O, no clock, one owner.
"""

from bargein.errors import BargeinError

EVENT_BYTES_MAX = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class EventTooLong(BargeinError):
    """A line or an event exceeded the bound; the stream is unusable."""


class EventParser:
    """One per stream. `lines` counts completed lines."""

    __slots__ = (
        "_data",
        "_data_bytes",
        "_event_bytes_max",
        "_skip_newline",
        "_started",
        "_tail",
        "_tail_bytes",
        "last_id",
        "lines",
        "retry_ms",
    )

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._skip_newline = False
        self._started = False
        self.lines = 0
        self.last_id = ""
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        if b"\r" in chunk or self._skip_newline:
            chunk = self._without_carriage_returns(chunk)
        elif (
            # Nearly always a chunk is one event with one data line, and nothing is pending.
            chunk.endswith(b"\n\n")
            and chunk.startswith(b"data: ")
            and len(chunk) > 8
            and not self._tail
            and not self._data
            and chunk.find(b"\n") == len(chunk) - 2
        ):
            self._started = True
            self.lines += 2
            return [chunk[6:-2]]
        end = chunk.rfind(b"\n")
        if end < 0:
            self._hold(chunk)
            return []
        if self._tail:
            self._tail.append(chunk[:end])
            block = b"".join(self._tail)
            self._tail.clear()
            self._tail_bytes = 0
        else:
            block = chunk[:end]
        self._hold(chunk[end + 1 :])
        if not self._started:
            self._started = True
            block = block.removeprefix(_BOM)
        return self._parse(block)

    def _hold(self, rest: bytes) -> None:
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
            self._check_bound(self._tail_bytes)

    def _check_bound(self, size: int) -> None:
        if size + self._data_bytes > self._event_bytes_max:
            raise EventTooLong(f"an event of more than {self._event_bytes_max} bytes")

    def _parse(self, block: bytes) -> list[bytes]:
        events: list[bytes] = []
        lines = block.split(b"\n")
        self.lines += len(lines)
        for line in lines:
            if not line:
                if self._data:
                    data = b"\n".join(self._data)
                    self._data.clear()
                    self._data_bytes = 0
                    if data:
                        events.append(data)
            elif line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                self._data.append(value)
                self._data_bytes += len(value) + 1
                self._check_bound(0)
            elif line.startswith((b"id:", b"retry:")):
                self._note(line)
        return events

    def _note(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"id":
            self.last_id = text
        elif text.isascii() and text.isdecimal():
            self.retry_ms = int(text[:9])

    def _without_carriage_returns(self, chunk: bytes) -> bytes:
        # A CR ends its line at once. If the next byte, perhaps in the next chunk, is LF, it belongs
        # to the same line end.
        if self._skip_newline and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_newline = False
        if chunk.endswith(b"\r"):
            self._skip_newline = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
