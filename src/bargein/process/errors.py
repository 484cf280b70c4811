"""The errors of this package.

    WorldError
    ├── SpawnError          the command was not started; `errno` and `command` say what and why
    └── InputClosed         the command does not read its input any more
    UserError
    └── MeansUnavailable    a means that was asked for by name does not work here

A command that fails or is stopped does not raise: its `Exit` says how it ended.
"""

import errno as codes
import os
from functools import partial

from bargein.errors import UserError, WorldError

__all__ = ["InputClosed", "MeansUnavailable", "SpawnError"]

_PASSING = {
    codes.EAGAIN,
    codes.EMFILE,
    codes.ENFILE,
    codes.ENOMEM,
    codes.ENOSPC,
    codes.EPIPE,  # the helper died, again and again
    codes.ETIMEDOUT,
    codes.ETXTBSY,
}


class SpawnError(WorldError):
    """The command was not started, and nothing of it is left."""

    def __init__(self, message: str, *, errno: int, command: str) -> None:
        super().__init__(message, retryable=errno in _PASSING)
        self.errno = errno
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = partial(type(self), errno=self.errno, command=self.command)
        return rebuild, self.args, self.__dict__


class InputClosed(WorldError):
    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__


class MeansUnavailable(UserError):
    """The containment that the configuration asks for does not work on this machine."""


def errno_name(number: int) -> str:
    return codes.errorcode.get(number, f"errno {number}")


def describe(number: int) -> str:
    return f"{os.strerror(number)} ({errno_name(number)})"
