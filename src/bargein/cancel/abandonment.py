"""What was given up and may still be running: listed while it does, and bounded in number."""

import ctypes
from collections.abc import Coroutine
from itertools import count
from typing import Any

import msgspec

from bargein.cancel import accounts

ABANDONED_MAX = 64
FROZEN_MAX = 1000

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


def freeze(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Keep for ever what refused even to be closed. It never runs again.

    If it were let go of, Python would try to close it once more, outside of any loop: at exit,
    say, where each of its awaits fails at once, and where it could try them for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))
    accounts.add("coroutines_frozen")
    accounts.note(f"an abandoned coroutine would not be closed and is kept for ever: {coroutine}")


def refuse_if_too_many() -> None:
    if accounts.counts().coroutines_frozen >= FROZEN_MAX:
        raise TooManyAbandoned(
            f"{FROZEN_MAX} coroutines refused to be stopped and are kept in memory; "
            "restart the program, and see its log for their names"
        )
    if len(_running) >= ABANDONED_MAX:
        names = ", ".join(sorted({each.name for each in abandoned()})[:5])
        raise TooManyAbandoned(
            f"{len(_running)} pieces of abandoned work are still running ({names}); "
            "restart the program, and run tools that do not stop in a process of their own"
        )
