"""A word of ours that somebody else has typed."""

from enum import StrEnum
from typing import TypeVar

from bargein.errors import UserError

E = TypeVar("E", bound=StrEnum)


def choose(kind: type[E], word: str) -> E:
    try:
        return kind(word)
    except ValueError:
        name = kind.__name__.lower()
        raise UserError(f"there is no {name} {word!r}; it is one of {', '.join(kind)}") from None
