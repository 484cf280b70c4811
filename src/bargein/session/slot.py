"""Something that one side waits for and the other gives once: a value, or an error."""

from typing import Generic, TypeVar

from bargein.cancel.latch import Latch
from bargein.errors import BargeinError

T = TypeVar("T")


class Slot(Generic[T]):
    __slots__ = ("_error", "_filled", "_value")

    def __init__(self) -> None:
        self._filled = Latch()
        self._value: T | None = None
        self._error: BargeinError | None = None

    @property
    def filled(self) -> bool:
        return self._filled.is_set

    async def wait(self) -> T:
        await self._filled.wait()
        return self._content()

    async def wait_for(self, timeout_s: float) -> T | None:
        """None if it was not given in time."""
        return self._content() if await self._filled.wait(timeout_s) else None

    def _content(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    def give(self, value: T) -> None:
        """The first one counts."""
        if not self._filled.is_set:
            self._value = value
            self._filled.set()

    def fail(self, error: BargeinError) -> None:
        if not self._filled.is_set:
            self._error = error
            self._filled.set()
