"""Why something was cancelled, and what a cancelled token raises. The first cause wins."""

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, final

import msgspec

if TYPE_CHECKING:
    from bargein.cancel.token import Token


class Cause(StrEnum):
    """The closed list of causes. A new kind of stop needs a new name here, not free text."""

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

    `parent` is there exactly when the cause is `PARENT`: it is the first cause, as it stood on
    the ancestor that was cancelled, and `detail` is that ancestor's name.
    """

    cause: Cause
    detail: str = ""
    parent: "Reason | None" = None

    def __post_init__(self) -> None:
        if not isinstance(self.cause, Cause):
            raise TypeError(f"a reason needs a Cause, not {self.cause!r}; see bargein.cancel.Cause")
        if (self.cause is Cause.PARENT) != (self.parent is not None):
            raise ValueError("Cause.PARENT goes with the parent's reason, and only with it")

    @property
    def root(self) -> "Reason":
        """What it all began with: the reason itself, or that of the cancelled ancestor."""
        return self.parent if self.parent is not None else self

    def below(self, name: str) -> "Reason":
        """The reason that the descendants of `name`, cancelled for this reason, are given."""
        return self if self.parent is not None else Reason(Cause.PARENT, name, self)

    def __str__(self) -> str:
        words = f"{self.cause}: {self.detail}" if self.detail else str(self.cause)
        return f"{words} ({self.parent})" if self.parent is not None else words


_bare = cache(Reason)


def as_reason(value: "Reason | Cause") -> Reason:
    """Accept a bare cause for a reason; refuse what is neither, at once."""
    # By type, and the bare ones made once: a cancel that comes to a cold cache would spend a third
    # of its time here otherwise.
    if type(value) is Reason:
        return value
    if type(value) is Cause:
        return _bare(value)
    raise TypeError(
        f"cancel() needs a Reason or a Cause, not {value!r}; for example Cause.USER_STOP"
    )


class Cancelled(BaseException):
    """Raised where a cancelled token is checked. Not an error: `except Exception` lets it pass."""

    def __init__(self, token: "Token") -> None:
        super().__init__(token)
        self.token = token

    def __str__(self) -> str:
        return f"{self.token.name} was cancelled ({self.token.reason})"
