"""A value that is set once and can be waited for by any number of tasks, each on its own."""

import asyncio
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Once(Generic[T]):
    """Unlike a shared future, cancelling one who waits does nothing to the others."""

    __slots__ = ("_loop", "_value", "_waiting", "is_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []
        self._value: T | None = None
        self.is_set = False

    def set(self, value: T) -> None:
        self._value = value
        self.is_set = True
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    @property
    def value(self) -> T | None:
        return self._value

    async def wait(self) -> T:
        if not self.is_set:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if not self.is_set:
                    self._waiting.remove(waiting)
        return cast(T, self._value)
