"""Stepping a coroutine as `await` would, while standing between it and the cancels for it.

That is how a coroutine is taken out of circulation that answers every cancel with one more await:
the next cancel that is delivered to it closes it instead.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType
from typing import Any, Generic, TypeVar, cast

import anyio

from bargein.cancel import abandonment
from bargein.cancel._loops import AnyCoroutine, carried_error

T = TypeVar("T")

# How many awaits the cleanup of a closed coroutine may try before it is left as it is.
CLOSES_MAX = 20


class Driven(Generic[T]):
    """`await Driven(awaitable, closes)`: like the awaitable itself, until `closes()` is true when
    a cancel comes; then it is closed and the cancel goes on."""

    def __init__(self, awaitable: Awaitable[T], closes: Callable[[], bool]) -> None:
        self._coroutine = _as_coroutine(awaitable)
        self._closes = closes
        self._started = False

    def __await__(self) -> Generator[Any, Any, T]:
        self._started = True
        coroutine = self._coroutine
        cancelled = anyio.get_cancelled_exc_class()
        value: Any = None
        error: BaseException | None = None
        cancel: BaseException | None = None
        try:
            while True:
                try:
                    trap = coroutine.send(value) if error is None else coroutine.throw(error)
                except StopIteration as stop:
                    return cast(T, stop.value)
                try:
                    value, error = (yield trap), None
                except BaseException as thrown:  # boundary: handed on to the coroutine
                    value, error = None, thrown
                cancel = carried_error(value) if error is None else error
                if isinstance(cancel, cancelled) and self._closes():
                    _close(coroutine)
                    raise cancel
        finally:
            # An error that goes on from here has this frame in its trace. If the frame knew the
            # error too, both, and all below them, would stay until the collector comes.
            value = error = cancel = None

    def __del__(self) -> None:
        if not self._started:
            # Cancelled before its first step. Python would say that it was never awaited.
            self._coroutine.close()


def driven(coroutine: AnyCoroutine, closes: Callable[[], bool]) -> AnyCoroutine:
    """A coroutine for a task, which looks like the one that it drives."""
    wrapper = cast("CoroutineType[Any, Any, Any]", _await(Driven(coroutine, closes)))
    wrapper.__name__ = getattr(coroutine, "__name__", wrapper.__name__)
    wrapper.__qualname__ = getattr(coroutine, "__qualname__", wrapper.__qualname__)
    return wrapper


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _as_coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return awaitable if isinstance(awaitable, Coroutine) else _await(awaitable)


def _close(coroutine: AnyCoroutine) -> None:
    """End it where it stands, with all that it awaits: cleanup runs, but no await in it."""
    chain = _chain(coroutine)
    for _ in range(CLOSES_MAX):
        chain = [each for each in chain if not _is_closed_by_trying(each)]
        if not chain:
            return
    for each in chain:
        abandonment.freeze(each)


def _chain(coroutine: AnyCoroutine) -> list[AnyCoroutine]:
    """The coroutine, the one that it awaits, and so on. One that refuses to end outlives those
    that awaited it."""
    chain = [coroutine]
    while isinstance(chain[-1], CoroutineType) and isinstance(chain[-1].cr_await, Coroutine):
        chain.append(chain[-1].cr_await)
    return chain


def _is_closed_by_trying(coroutine: AnyCoroutine) -> bool:
    try:
        coroutine.close()
    except BaseException:  # boundary: it was given up; what it says now goes nowhere
        return False
    return True
