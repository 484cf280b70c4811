"""Values that one side awaits and the other gives once: `Promise`, and `Reply` for a command."""

from typing import Generic, TypeVar, overload

import anyio.lowlevel

from bargein.cancel.latch import Waited
from bargein.contracts.event import Event
from bargein.contracts.store import AcceptKey
from bargein.errors import BargeinError
from bargein.session.commands import Accept, Done, Effect, GiveSteers, Refuse

T = TypeVar("T")

Answered = Accept | Done | Refuse | GiveSteers


class SessionGone(BargeinError):
    """This session has left memory. Ask the engine for it again."""


class Promise(Waited, Generic[T]):
    """A value or an error, given once. The first counts."""

    _value: T | None = None
    _error: BargeinError | None = None

    @property
    def filled(self) -> bool:
        return self._value is not None or self._error is not None

    @overload
    async def wait(self) -> T: ...

    @overload
    async def wait(self, timeout_s: float) -> T | None: ...

    async def wait(self, timeout_s: float | None = None) -> T | None:
        """Return the value, or raise the error; None if neither was given in time."""
        if self._value is not None or self._error is not None:
            await anyio.lowlevel.checkpoint()
        else:
            alarm = self._begin(timeout_s)
            try:
                await alarm
            finally:
                self._end(alarm)
        if self._error is not None:
            raise self._error
        return self._value

    def give(self, value: T) -> None:
        if self._value is None and self._error is None:
            self._value = value
            self._wake_all()

    def fail(self, error: BargeinError) -> None:
        if self._value is None and self._error is None:
            self._error = error
            self._wake_all()


class Reply(Promise[Answered]):
    """The answer to a command, given when the command's changes are durable.

    On its way to the store it carries the `events` to write, the `keys` of the messages among them,
    and the effects that `follow` once they are durable.
    """

    events: tuple[Event, ...] = ()
    keys: tuple[AcceptKey, ...] = ()
    follow: tuple[Effect, ...] = ()
