"""Something that one side waits for and the other gives once: a value, or an error."""

from typing import Generic, TypeVar, overload

import anyio.lowlevel

from bargein.cancel.latch import Waited
from bargein.errors import BargeinError

T = TypeVar("T")


class Slot(Waited, Generic[T]):
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
        """What was given; None if it was not given in time."""
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
        """The first one counts."""
        if self._value is None and self._error is None:
            self._value = value
            self._wake_all()

    def fail(self, error: BargeinError) -> None:
        if self._value is None and self._error is None:
            self._error = error
            self._wake_all()
