"""Keeps one cell ready, with an embryo born and waiting, so that a command need not wait for it."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Conceived(Protocol):
    @property
    def is_dead(self) -> bool: ...

    async def born(self) -> None:
        """Raises `StillBorn`. If the wait is cancelled the cell must be discarded."""

    def discard(self) -> None: ...


C = TypeVar("C", bound=Conceived)


class Nursery(Generic[C]):
    """`conceive` orders a birth; it raises OSError."""

    def __init__(self, conceive: Callable[[], C]) -> None:
        self._conceive = conceive
        self._spare: C | None = None
        self._closed = False

    async def take(self) -> C:
        cell, self._spare = self._spare, None
        if cell is None or cell.is_dead:
            cell = self._conceive()
        try:
            await cell.born()
        except BaseException:
            cell.discard()
            raise
        return cell

    def replenish(self) -> None:
        if self._spare is None and not self._closed:
            try:
                self._spare = self._conceive()
            except OSError:
                pass  # the next command will have to wait for its own, and hear why

    def close(self) -> None:
        self._closed = True
        cell, self._spare = self._spare, None
        if cell is not None:
            cell.discard()
