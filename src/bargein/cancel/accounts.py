"""What the kernel counts, and how it reports a fault that nobody is there to catch.

Counting takes an RLock, never a plain one: a signal handler may cancel, and so count, in a
thread that is counting already.
"""

import logging
import threading

import msgspec

_log = logging.getLogger("bargein.cancel")


class Counts(msgspec.Struct, frozen=True):
    """Since the process started."""

    callbacks_run: int = 0
    callbacks_failed: int = 0
    callbacks_overdue: int = 0
    bridges_failed: int = 0
    threads_abandoned: int = 0
    coroutines_abandoned: int = 0
    coroutines_frozen: int = 0
    late_results: int = 0


class _Accounts:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts = dict.fromkeys(Counts.__struct_fields__, 0)

    def add(self, field: str) -> None:
        with self._lock:
            self._counts[field] += 1

    def read(self) -> Counts:
        with self._lock:
            return Counts(**self._counts)


_accounts = _Accounts()


def add(field: str) -> None:
    _accounts.add(field)


def counts() -> Counts:
    """What the kernel had to do so far, for metrics and for tests."""
    return _accounts.read()


def report(what: str, error: BaseException) -> None:
    """Log a fault of a callback. Never called while a lock of ours is held."""
    _write(logging.ERROR, f"{what} raised {error!r}", error)


def note(what: str) -> None:
    _write(logging.WARNING, what)


def _write(level: int, text: str, error: BaseException | None = None) -> None:
    try:
        _log.log(level, "%s", text, exc_info=error)
    except Exception:  # boundary: a broken log handler must not break a cancel half-way
        pass
