"""What was given up and may still be running: listed while it does, and bounded in number."""

from itertools import count

import msgspec

ABANDONED_MAX = 64

_serials = count(1)
_running: "dict[int, Abandoned]" = {}


class Abandoned(msgspec.Struct, frozen=True):
    """A thread or coroutine that did not stop within its grace."""

    serial: int
    kind: str
    name: str


class TooManyAbandoned(RuntimeError):
    """So much abandoned work is still running that no more is started beside it."""


def enter(kind: str, name: str) -> int:
    serial = next(_serials)
    _running[serial] = Abandoned(serial, kind, name)
    return serial


def leave(serial: int) -> None:
    _running.pop(serial, None)


def abandoned() -> list[Abandoned]:
    """What was abandoned and has not ended since, oldest first."""
    return list(_running.values())


def refuse_if_too_many() -> None:
    if len(_running) >= ABANDONED_MAX:
        names = ", ".join(sorted({each.name for each in abandoned()})[:5])
        raise TooManyAbandoned(
            f"{len(_running)} pieces of abandoned work are still running ({names}); "
            "restart the program, and run tools that do not stop in a process of their own"
        )
