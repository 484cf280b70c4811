"""Counts what the kernel did, and lists abandoned work that may still run.

It also logs errors of callbacks, which no caller could catch. Counting takes an RLock, never a
plain lock: a signal handler may cancel, and so count, in a thread that is counting already.
"""

import ctypes
import logging
import threading
from collections.abc import Coroutine
from itertools import count
from typing import Any

import msgspec

ABANDONED_MAX = 64
FROZEN_MAX = 1000

_log = logging.getLogger("bargein.cancel")


class Counts(msgspec.Struct, frozen=True):
    """Counters since the process started."""

    callbacks_run: int = 0
    callbacks_failed: int = 0
    callbacks_overdue: int = 0
    bridges_failed: int = 0
    threads_abandoned: int = 0
    coroutines_abandoned: int = 0
    coroutines_frozen: int = 0
    late_results: int = 0


_lock = threading.RLock()
_counts = dict.fromkeys(Counts.__struct_fields__, 0)


def add(field: str) -> None:
    with _lock:
        _counts[field] += 1


def counts() -> Counts:
    """Return the counters, for metrics and for tests."""
    with _lock:
        return Counts(**_counts)


def report(what: str, error: BaseException) -> None:
    """Log an error of a callback. Never call it while holding one of our locks."""
    _write(logging.ERROR, f"{what} raised {error!r}", error)


def note(what: str) -> None:
    _write(logging.WARNING, what)


def _write(level: int, text: str, error: BaseException | None = None) -> None:
    try:
        _log.log(level, "%s", text, exc_info=error)
    except Exception:  # boundary: a broken log handler must not break a cancel half-way
        pass


# Abandoned work


class Abandoned(msgspec.Struct, frozen=True):
    """A thread or coroutine that did not stop within its grace."""

    serial: int
    kind: str
    name: str


class TooManyAbandoned(RuntimeError):
    """Too much abandoned work is still running to start more."""


_serials = count(1)
_running: dict[int, Abandoned] = {}


def list_abandoned(kind: str, name: str) -> int:
    """List abandoned work. Returns its serial number."""
    serial = next(_serials)
    _running[serial] = Abandoned(serial, kind, name)
    return serial


def unlist_abandoned(serial: int) -> None:
    """Remove work from the list, because it has ended after all."""
    _running.pop(serial, None)


def abandoned() -> list[Abandoned]:
    """Return the abandoned work that has not ended since, oldest first."""
    return list(_running.values())


def freeze(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Keep a coroutine that could not be closed in memory for ever. It never runs again.

    If it were freed, Python would try to close it once more, outside of any loop, for example at
    exit. There each of its awaits fails at once, and the coroutine could retry them for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))
    add("coroutines_frozen")
    note(f"an abandoned coroutine would not be closed and is kept for ever: {coroutine}")


def refuse_if_too_many() -> None:
    """Raise `TooManyAbandoned` if too much abandoned work is still running."""
    if counts().coroutines_frozen >= FROZEN_MAX:
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
