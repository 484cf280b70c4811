"""Reads the keys and values of git's configuration files as git does. Pure.

Only what git accepts has to be understood: with a broken file, git does nothing at all.
"""

from collections.abc import Iterator
from typing import Final

_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b"}


def settings_in(text: str) -> Iterator[tuple[str, str]]:
    """Yields each key, in lower case and without its section, with its value. A key without a value
    is left out."""
    at, end = 0, len(text)
    while at < end:
        if text[at] in "#;":
            at = _end_of_line(text, at)
        elif text[at] == "[":
            at = _after_section(text, at)
        elif text[at].isspace():
            at += 1
        else:
            begin = at
            while at < end and text[at] not in "=\n#;":
                at += 1
            key = text[begin:at].strip().lower()
            if at < end and text[at] == "=":
                value, at = _value(text, at + 1)
                yield key, value


def _end_of_line(text: str, at: int) -> int:
    found = text.find("\n", at)
    return found if found >= 0 else len(text)


def _after_section(text: str, at: int) -> int:
    """A subsection is in quotes, and may have brackets. A key may follow in the same line."""
    quoted = False
    while at < len(text) and text[at] != "\n":
        if text[at] == "\\":
            at += 1
        elif text[at] == '"':
            quoted = not quoted
        elif text[at] == "]" and not quoted:
            return at + 1
        at += 1
    return at


def _value(text: str, at: int) -> tuple[str, int]:
    """Returns the value that begins here, and where it ends."""
    value, length, quoted = "", 0, False
    while at < len(text) and text[at] != "\n":
        character = text[at]
        if character in "#;" and not quoted:
            at = _end_of_line(text, at)
            break
        if character == "\\":
            at += 1
            after = text[at : at + 1]
            if after == "\r" and text[at + 1 : at + 2] == "\n":
                at, after = at + 1, "\n"
            value += "" if after == "\n" else _ESCAPES.get(after, after)
            length = len(value)
        elif character == '"':
            quoted = not quoted
            length = len(value)
        elif value or not character.isspace() or quoted:
            value += character
            # Blanks at the end do not count, unless they are in quotes.
            length = len(value) if quoted or not character.isspace() else length
        at += 1
    return value[:length], at
