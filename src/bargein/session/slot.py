"""Something that one side waits for and the other gives once: a value, or an error."""

from typing import Generic, TypeVar

from bargein.cancel.latch import Latch
from bargein.errors import BargeinError

T = TypeVar("T")


class Slot(Generic[T]):
    """For what becomes of a message nobody may ever wait: a latch is made for whoever does."""

    __slots__ = ("_error", "_filled", "_value")

    def __init__(self) -> None:
        self._filled: Latch | None = None
        self._value: T | None = None
        self._error: BargeinError | None = None

    @property
    def filled(self) -> bool:
        return self._value is not None or self._error is not None

    async def wait(self) -> T:
        await self._latch().wait()
        return self._content()

    async def wait_for(self, timeout_s: float) -> T | None:
        """None if it was not given in time."""
        return self._content() if await self._latch().wait(timeout_s) else None

    def _latch(self) -> Latch:
        if self._filled is None:
            self._filled = Latch()
            if self.filled:
                self._filled.set()
        return self._filled

    def _content(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    def give(self, value: T) -> None:
        """The first one counts."""
        if not self.filled:
            self._value = value
            if self._filled is not None:
                self._filled.set()

    def fail(self, error: BargeinError) -> None:
        if not self.filled:
            self._error = error
            if self._filled is not None:
                self._filled.set()
