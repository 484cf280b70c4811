"""Something that one side waits for and the other gives once: a value, or an error."""

from typing import Generic, TypeVar

import anyio.lowlevel

from bargein.cancel._loops import LoopEvent, new_event
from bargein.errors import BargeinError

T = TypeVar("T")


class Latch:
    """An event that costs next to nothing until somebody waits for it, which of most that a
    session makes nobody does."""

    __slots__ = ("_event", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._event: LoopEvent | None = None

    def set(self) -> None:
        self.is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        if self.is_set:
            await anyio.lowlevel.checkpoint()
            return
        if self._event is None:
            self._event = new_event()
        await self._event.wait()


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
