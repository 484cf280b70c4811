"""Every error that Bargein raises on purpose.

    Exception
    └── BargeinError
        ├── UserError         the user's mistake: a wrong setting, file, command or argument
        ├── WorldError        something outside failed; `retryable` says if a retry may help
        ├── ModelMisbehaved   the model sent something invalid; it reads the message
        └── BugError          Bargein broke one of its own rules: report it

The class alone decides the reaction. A `UserError` is shown without a traceback. A `WorldError` is
retried if it is retryable, and shown when the retries are used up. The model reads the text of a
`ModelMisbehaved`. A `BugError` keeps its traceback.

A message names the thing, the value and the next step: "bargein.toml: port is 'eight'; give a
number from 1 to 65535". Wrong arguments to a Python function are the caller's `TypeError` or
`ValueError`, as everywhere in Python.

Cancellation is none of these: `bargein.cancel.Cancelled` is a `BaseException`, so that
`except Exception` around some work does not mistake a stop for a failure.
"""

from __future__ import annotations

from functools import partial

__all__ = ["BargeinError", "BugError", "ModelMisbehaved", "UserError", "WorldError"]


class BargeinError(Exception):
    """The root of the tree. Catch it to handle every error that Bargein raises on purpose."""


class UserError(BargeinError):
    """The user made a mistake; the message says how to correct it."""


class WorldError(BargeinError):
    """Something outside failed: a network, a provider, a disk, a process.

    The code that sees the failure sets `retryable`, because only it knows what happened: a refused
    connection may work a second later, a refused key will not.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle rebuilds an exception from its positional arguments alone, and `retryable` is not
        # one of them. Without this the error could not be sent to another process.
        return partial(type(self), retryable=self.retryable), self.args, self.__dict__


class ModelMisbehaved(BargeinError):
    """The model asked for something impossible. The message is written for the model to read."""


class BugError(BargeinError):
    """Bargein broke one of its own rules. It is not the user's mistake."""
