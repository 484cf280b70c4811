"""How a piece of work that may be stopped came out."""

from typing import Generic, Literal, TypeVar, cast

import msgspec

from bargein.cancel.cancelled import Cancelled
from bargein.cancel.token import Token

T = TypeVar("T")

Status = Literal["finished", "failed", "cancelled", "abandoned"]


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """Finished with a value (also if a cancel came too late to matter), failed with an error,
    cancelled (it stopped when told), or abandoned (it did not stop within its grace; whatever it
    still returns goes nowhere)."""

    status: Status
    token: Token
    elapsed_s: float
    value: T | None = None
    error: BaseException | None = None

    def unwrap(self) -> T:
        """The value; else the error is raised, or `Cancelled` if it was stopped or abandoned."""
        if self.status == "finished":
            return cast(T, self.value)
        if self.error is not None:
            raise self.error
        raise Cancelled(self.token)
