"""Bounds text and says how much it left out, so that nobody mistakes a part for the whole."""

from collections import deque

from bargein.contracts.visible import visible

CONTENT_CHARS_MAX = 64_000
"""The most that one result shows the model, unless the tool has its own bound."""


def left_out(count: int, unit: str) -> str:
    return f"\n[... {count} {unit} left out ...]\n"


def shortened(text: str, chars_max: int = CONTENT_CHARS_MAX) -> str:
    """Return the text. If it is longer than `chars_max`, a quarter comes from its beginning and the
    rest from its end."""
    if len(text) <= chars_max:
        return text
    head = chars_max // 4
    tail = chars_max - head
    return text[:head] + left_out(len(text) - chars_max, "characters") + text[len(text) - tail :]


def one_line(text: str, chars_max: int = 80) -> str:
    """Return the beginning of the text as one line, with hidden characters made visible."""
    # `visible` comes before `split`, which would drop hidden characters that count as blanks.
    words = " ".join(visible(text[: 4 * chars_max]).split())
    return words if len(words) <= chars_max else words[: chars_max - 3] + "..."


class KeptText:
    """Collects text that arrives in pieces: keeps the beginning and the end, counts the middle."""

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
