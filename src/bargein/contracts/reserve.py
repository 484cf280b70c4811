"""Stops that could not be stored, remembered where a full disk cannot prevent it."""

from typing import Protocol

from bargein.contracts.receipt import Receipt
from bargein.contracts.value import Value


class UnstoredStop(Value, frozen=True):
    """A turn that was stopped, and whose end the store did not take. `created_at` is the session's:
    a session that was deleted and made anew under the same name is another one."""

    session: str
    created_at: float
    turn: str
    receipt: Receipt


class Reserve(Protocol):
    """Keeps a few of them for the next start, which then settles those turns as stopped and not as
    crashed. A hint beside the log, never in place of it: losing it loses no message."""

    def keep(self, stop: UnstoredStop) -> bool:
        """Write it down; returns False if there is no room or the disk refuses. May block."""
        ...

    def find(self, session: str, created_at: float, turn: str) -> UnstoredStop | None: ...

    def forget(self, session: str) -> None:
        """The log has the end of that session's turn by now. May block."""
        ...
