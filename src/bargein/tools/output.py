"""Output with a bound: how much is kept, how much is shown to the model, how fast it is shown live.

Whatever is left out is counted and named, so that nobody takes a part for the whole.
"""

import codecs
import re
from collections import deque
from collections.abc import Callable

CONTENT_CHARS_MAX = 64_000
"""What one result shows the model at most, unless the tool has a bound of its own."""

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def left_out(count: int, unit: str) -> str:
    return f"\n[... {count} {unit} left out ...]\n"


def shortened(text: str, chars_max: int = CONTENT_CHARS_MAX) -> str:
    """The text, or its first quarter and its end if it is longer than `chars_max`."""
    if len(text) <= chars_max:
        return text
    head = chars_max // 4
    tail = chars_max - head
    return text[:head] + left_out(len(text) - chars_max, "characters") + text[len(text) - tail :]


def one_line(text: str, chars_max: int = 80) -> str:
    """A few words for a title: one line, cut at the end."""
    words = " ".join(text[: 4 * chars_max].split())
    return words if len(words) <= chars_max else words[: chars_max - 3] + "..."


def as_read(text: str) -> str:
    """Terminal output as a person would read it at the end: no escape sequences, and of a line
    that was overwritten again and again (a progress bar) only what stood there last."""
    text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = "\n".join(_last_written(line) for line in text.split("\n"))
    return _CONTROL.sub("", text)


def _last_written(line: str) -> str:
    line = line.rstrip("\r")
    return line[line.rfind("\r") + 1 :]


class KeptText:
    """Text that arrives in pieces: the beginning and the end are kept, the middle is counted."""

    def __init__(self, head_chars: int = 8_000, tail_chars: int = 24_000) -> None:
        self._head_chars = head_chars
        self._tail_chars = tail_chars
        self._head: list[str] = []
        self._head_length = 0
        self._tail: deque[str] = deque()
        self._tail_length = 0
        self._dropped = 0

    def add(self, text: str) -> None:
        room = self._head_chars - self._head_length
        if room > 0:
            self._head.append(text[:room])
            self._head_length += len(self._head[-1])
            text = text[room:]
        if text:
            self._tail.append(text)
            self._tail_length += len(text)
        while self._tail_length > self._tail_chars:
            oldest = self._tail.popleft()
            excess = min(self._tail_length - self._tail_chars, len(oldest))
            self._dropped += excess
            self._tail_length -= excess
            if excess < len(oldest):
                self._tail.appendleft(oldest[excess:])

    def text(self) -> str:
        middle = left_out(self._dropped, "characters") if self._dropped else ""
        return "".join(self._head) + middle + "".join(self._tail)


class LiveOutput:
    """Bytes of a command, shown as text while it runs, at a bounded rate.

    A burst goes through whole; a flood is thinned out to `rate_bytes` a second, with a note of
    how much was not shown. The captured output is another matter and has its own bound. A
    character that was cut between two reads is put together again.
    """

    def __init__(
        self,
        emit: Callable[[str], None],
        now: Callable[[], float],
        *,
        burst_bytes: int = 64 * 1024,
        rate_bytes: int = 32 * 1024,
    ) -> None:
        self._emit = emit
        self._now = now
        self._burst_bytes = burst_bytes
        self._rate_bytes = rate_bytes
        self._budget = float(burst_bytes)
        self._filled_at = now()
        self._hidden = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, chunk: bytes) -> None:
        now = self._now()
        refill = (now - self._filled_at) * self._rate_bytes
        self._budget = min(self._budget + refill, float(self._burst_bytes))
        self._filled_at = now
        shown = chunk[: int(self._budget)]
        if shown and self._hidden:
            # What was hidden may have ended inside a character; the decoder starts afresh.
            self._decoder.reset()
            self._emit(left_out(self._hidden, "bytes"))
            self._hidden = 0
        self._budget -= len(shown)
        self._hidden += len(chunk) - len(shown)
        if shown:
            text = self._decoder.decode(shown)
            if text:
                self._emit(text)
