"""Text with a bound: what is left out is counted and named, so that nobody takes a part for the
whole."""

from collections import deque

from bargein.contracts.visible import visible

CONTENT_CHARS_MAX = 64_000
"""What one result shows the model at most, unless the tool has a bound of its own."""


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
    """A few words for a title: one line, cut at the end, with nothing in it that hides."""
    # Before it is split: some of what hides counts as a blank.
    words = " ".join(visible(text[: 4 * chars_max]).split())
    return words if len(words) <= chars_max else words[: chars_max - 3] + "..."


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
