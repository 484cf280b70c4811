"""Why a token was cancelled, and the exception that it raises. The first cause wins."""

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, final

import msgspec

if TYPE_CHECKING:
    from bargein.cancel.token import Token


class Cause(StrEnum):
    """The complete list of causes. A new kind of stop needs a new name here, not free text."""

    USER_STOP = "user_stop"
    REDIRECT = "redirect"
    ROLLBACK = "rollback"
    DEADLINE = "deadline"
    BUDGET = "budget"
    SHUTDOWN = "shutdown"
    PARENT = "parent"
    LEASE_LOST = "lease_lost"
    CLIENT_GONE = "client_gone"


@final
class Reason(msgspec.Struct, frozen=True):
    """A cause with a few words about it.

    `parent` is set exactly when the cause is `PARENT`: it is the reason of the ancestor that was
    cancelled, and `detail` is that ancestor's name.
    """

    cause: Cause
    detail: str = ""
    parent: "Reason | None" = None

    def __post_init__(self) -> None:
        if not isinstance(self.cause, Cause):
            raise TypeError(f"a reason needs a Cause, not {self.cause!r}; see bargein.cancel.Cause")
        if (self.cause is Cause.PARENT) != (self.parent is not None):
            raise ValueError("give `parent`, the parent's reason, with Cause.PARENT and only then")

    @property
    def root(self) -> "Reason":
        """The original reason: this one, or that of the cancelled ancestor."""
        return self.parent if self.parent is not None else self

    def below(self, name: str) -> "Reason":
        """Return the reason for the descendants of `name`, which was cancelled for this reason."""
        return self if self.parent is not None else Reason(Cause.PARENT, name, self)

    def __str__(self) -> str:
        words = f"{self.cause}: {self.detail}" if self.detail else str(self.cause)
        return f"{words} ({self.parent})" if self.parent is not None else words


_bare = cache(Reason)


def as_reason(value: "Reason | Cause") -> Reason:
    """Return a reason as it is, or make one from a bare cause; raise TypeError for anything
    else."""
    # Compares types, and makes each bare reason once: otherwise a cancel with a cold cache would
    # spend a third of its time here.
    if type(value) is Reason:
        return value
    if type(value) is Cause:
        return _bare(value)
    raise TypeError(
        f"cancel() needs a Reason or a Cause, not {value!r}; for example Cause.USER_STOP"
    )


class Cancelled(BaseException):
    """Raised when a cancelled token is checked. Not an error: `except Exception` does not catch
    it."""

    def __init__(self, token: "Token") -> None:
        super().__init__(token)
        self.token = token

    def __str__(self) -> str:
        return f"{self.token.name} was cancelled ({self.token.reason})"
