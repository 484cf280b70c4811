"""Coroutines that can be abandoned: `TaskOwner` and `run_abandonable`.

Each runs in its own task, under a child token and its scope. The task belongs to an owner that
outlives the caller. The caller waits for the outcome, not for the task, so a coroutine that does
not stop never holds it up:

- When the token is cancelled, the coroutine is cancelled at each of its awaits until it ends.
  With `stop="token"` it is not: it checks its token itself and may still return a result.
- When its grace is over it is abandoned: its outcome is decided, and a late result is dropped and
  counted. The next cancel for it, or for a task that it started, closes that coroutine instead, so
  it cannot spin. Inside an anyio shield no cancel arrives: there it runs to the end of the shield.
- If the caller itself is cancelled, the coroutine is cancelled with `client_gone` and given its
  grace; then the caller's own cancel continues.
- Closing the owner cancels the remaining tasks and waits `close_grace_s`. On asyncio it then
  cancels through shields too, and waits at most as long again.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from contextvars import Token as Restore
from types import CoroutineType, TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, TypeVarTuple, cast

import anyio

from bargein.cancel import accounts
from bargein.cancel._loops import (
    AnyCoroutine,
    NativeTask,
    carried_error,
    drive_tasks,
    keep_from_others,
    spawn,
    task_driver,
)
from bargein.cancel.clock import check_seconds
from bargein.cancel.context import as_current
from bargein.cancel.latch import Latch
from bargein.cancel.outcome import Outcome, OutcomeSlot, Status, name_of
from bargein.cancel.reason import Cancelled, Cause, Reason
from bargein.cancel.token import Token

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Stop = Literal["cancel", "token"]

_owner: "ContextVar[TaskOwner | None]" = ContextVar("bargein_task_owner", default=None)


class TaskOwner:
    """`async with TaskOwner() as owner:` owns tasks that may have to be abandoned.

    `apart` hides the tasks from the loop. The end of `asyncio.run` cancels every task that the loop
    knows; these end when their owner decides.
    """

    def __init__(self, *, close_grace_s: float = 1.0, apart: bool = False) -> None:
        self._close_grace_s = check_seconds("close_grace_s", close_grace_s)
        self._apart = apart
        self._restore: Restore[TaskOwner | None] | None = None
        self._open = False
        self._works: set[_Work[Any]] = set()

    async def __aenter__(self) -> Self:
        if self._restore is not None:
            raise RuntimeError("a TaskOwner was entered twice; make a new one")
        drive_tasks()
        self._restore = _owner.set(self)
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._restore is not None
        self._open = False
        _owner.reset(self._restore)
        for work in list(self._works):
            work.slot.source.cancel(Reason(Cause.SHUTDOWN, "its owner was closed"))
        await self._wait_for_all()
        for work in list(self._works):
            work.owner_closed = True
            if work.task is not None:
                work.task.cancel()
        await self._wait_for_all()

    async def _wait_for_all(self) -> None:
        with anyio.move_on_after(self._close_grace_s, shield=True):
            for work in list(self._works):
                await work.ended.wait()

    async def run(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        token: Token,
        grace_s: float,
        stop: Stop = "cancel",
        name: str | None = None,
    ) -> Outcome[T]:
        """Run `function(*args)` under a child of `token`. After a cancel it returns within the
        grace."""
        check_seconds("grace_s", grace_s)
        if stop not in ("cancel", "token"):
            raise ValueError(f"stop must be 'cancel' or 'token', not {stop!r}")
        if not self._open:
            raise RuntimeError("this TaskOwner is not open; use `async with TaskOwner() as owner:`")
        accounts.refuse_if_too_many()
        name = name or name_of(function)
        with token.child(name) as source:
            work = _Work(OutcomeSlot[T](source, "coroutine", grace_s), stop)
            if source.token.cancelled:
                return work.slot.outcome_now("cancelled")
            self._works.add(work)
            work.task = spawn(lambda: work.main(self._works, lambda: function(*args)), name)
            if self._apart:
                keep_from_others(work.task)
            return await work.slot.settle(work.insist)


async def run_abandonable(
    function: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    token: Token,
    grace_s: float,
    stop: Stop = "cancel",
    name: str | None = None,
    owner: TaskOwner | None = None,
) -> Outcome[T]:
    """`TaskOwner.run` with the innermost open owner, or with the one given."""
    owner = owner or _owner.get()
    if owner is None:
        raise RuntimeError(
            "run_abandonable() needs an owner for its task; put `async with TaskOwner():` around it"
        )
    return await owner.run(function, *args, token=token, grace_s=grace_s, stop=stop, name=name)


class _Work(Generic[T]):
    """One coroutine in one task."""

    def __init__(self, slot: OutcomeSlot[T], stop: Stop) -> None:
        self.slot = slot
        # For work that checks its token itself: it is cancelled only when it is abandoned.
        self._scope = anyio.CancelScope() if stop == "token" else None
        self.task: NativeTask | None = None
        self.ended = Latch()
        self.owner_closed = False
        self.closed = False

    def drive(self, coroutine: AnyCoroutine) -> AnyCoroutine:
        """Wrap a task that the work itself starts, for example in its own task group."""
        return driven(coroutine, self._closes)

    def _closes(self) -> bool:
        """Whether the next cancel closes the coroutine. It does for abandoned work, and for tasks
        that outlive stopped work."""
        left_behind = self.ended.is_set and self.slot.source.token.cancelled
        if self.slot.given_up or self.owner_closed or left_behind:
            self.closed = True
        return self.closed

    async def main(self, works: "set[_Work[Any]]", start: Callable[[], Awaitable[T]]) -> None:
        slot = self.slot
        token = slot.source.token
        status: Status = "cancelled"
        value: T | None = None
        failure: BaseException | None = None
        task_driver.set(self.drive)
        try:
            if self._scope is None:
                with token.scope():
                    value = await Driven(start(), self._closes)
                    status = "finished"
            else:
                with self._scope, as_current(token):
                    value = await Driven(start(), self._closes)
                    status = "finished"
        except anyio.get_cancelled_exc_class() as error:
            if not token.cancelled:
                # A cancel from elsewhere, such as of a future that the work awaited.
                status, failure = "failed", error
            raise
        except BaseException as error:  # boundary: the outcome of this work carries the error
            if not self.closed and not (isinstance(error, Cancelled) and token.cancelled):
                status, failure = "failed", error
        finally:
            slot.work_ended()
            slot.put(status, value, failure)
            works.discard(self)
            # Breaks a cycle: the task's context refers to the driver, and that to this work.
            self.task = None
            self.ended.set()

    async def insist(self, left_s: float) -> None:
        """Cancel work that checks its token itself. It is abandoned by now, so the cancel closes
        it."""
        if self._scope is not None:
            self._scope.cancel()


# `Driven` stands between a coroutine and its cancels. It ends a coroutine that answers every cancel
# with one more await: the next cancel closes it instead.

# How many awaits the cleanup of a closed coroutine may try before it is frozen.
CLOSES_MAX = 20


class Driven(Generic[T]):
    """`await Driven(awaitable, closes)` is like awaiting the awaitable itself, until a cancel comes
    and `closes()` returns True: then it closes the awaitable and lets the cancel continue."""

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
            # An error that leaves here has this frame in its traceback. If the frame also referred
            # to the error, both would stay in memory until the garbage collector runs.
            value = error = cancel = None

    def __del__(self) -> None:
        if not self._started:
            # Cancelled before its first step. Without this Python warns that it was never awaited.
            self._coroutine.close()


def driven(coroutine: AnyCoroutine, closes: Callable[[], bool]) -> AnyCoroutine:
    """Return a coroutine for a task that drives `coroutine` and has its name."""
    wrapper = cast("CoroutineType[Any, Any, Any]", _await(Driven(coroutine, closes)))
    wrapper.__name__ = getattr(coroutine, "__name__", wrapper.__name__)
    wrapper.__qualname__ = getattr(coroutine, "__qualname__", wrapper.__qualname__)
    return wrapper


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _as_coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return awaitable if isinstance(awaitable, Coroutine) else _await(awaitable)


def _close(coroutine: AnyCoroutine) -> None:
    """End the coroutine where it stands, with everything that it awaits. Its cleanup runs, but no
    await in the cleanup does."""
    chain = _chain(coroutine)
    for _ in range(CLOSES_MAX):
        chain = [each for each in chain if not _is_closed_by_trying(each)]
        if not chain:
            return
    for each in chain:
        accounts.freeze(each)


def _chain(coroutine: AnyCoroutine) -> list[AnyCoroutine]:
    """Return the coroutine, the one that it awaits, and so on. A coroutine that refuses to end
    outlives those that awaited it."""
    chain = [coroutine]
    while isinstance(chain[-1], CoroutineType) and isinstance(chain[-1].cr_await, Coroutine):
        chain.append(chain[-1].cr_await)
    return chain


def _is_closed_by_trying(coroutine: AnyCoroutine) -> bool:
    try:
        coroutine.close()
    except BaseException:  # boundary: it was abandoned, and its errors are dropped
        return False
    return True
