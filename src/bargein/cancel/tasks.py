"""Coroutines that can be given up: `TaskOwner` and `run_abandonable`.

Each runs in a task of its own, which belongs to an owner that outlives the caller, under a child
token and its scope. The caller waits for the outcome, not for the task, so it is never held up by
a coroutine that will not stop:

- When the token is cancelled the coroutine is cancelled at each of its awaits until it ends.
  With `stop="token"` it is not: it looks at its token itself and may still give a result.
- When its grace is over it is abandoned: its outcome is decided, a late result goes nowhere and
  is counted. The next cancel that would have been delivered to it, or to a task that it started,
  closes that instead, so it takes no core. Inside an anyio shield none is delivered: there it
  runs on to the end of the shield.
- If the caller itself is cancelled, the coroutine is cancelled with `client_gone`, waited for
  within its grace, and the caller's cancel goes on its way untouched.
- Closing the owner cancels what is left, waits `close_grace_s`, on asyncio then reaches through
  shields too, and waits as long again at most.
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
    """`async with TaskOwner() as owner:` the home of tasks that may have to be abandoned.

    `apart`: the loop does not know them, so that the end of `asyncio.run`, which cancels all that
    it knows, leaves it to their owner how they end.
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
        """Run `function(*args)` under a child of `token`; always back within the grace."""
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
        raise RuntimeError("run_abandonable() needs a home: `async with TaskOwner():` around it")
    return await owner.run(function, *args, token=token, grace_s=grace_s, stop=stop, name=name)


class _Work(Generic[T]):
    """One coroutine in one task."""

    def __init__(self, slot: OutcomeSlot[T], stop: Stop) -> None:
        self.slot = slot
        # Of one that looks at its token itself, and is cancelled only when it is given up.
        self._scope = anyio.CancelScope() if stop == "token" else None
        self.task: NativeTask | None = None
        self.ended = Latch()
        self.owner_closed = False
        self.closed = False

    def drive(self, coroutine: AnyCoroutine) -> AnyCoroutine:
        """Wrap a task that the work itself starts, in a task group of its own say."""
        return driven(coroutine, self._closes)

    def _closes(self) -> bool:
        """Whether the next cancel closes the coroutine: it does for work that was given up, and for
        tasks that outlive work that was stopped."""
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
                # Somebody else's cancel, such as that of a future that it waited for.
                status, failure = "failed", error
            raise
        except BaseException as error:  # boundary: the error of this work, told in its outcome
            if not self.closed and not (isinstance(error, Cancelled) and token.cancelled):
                status, failure = "failed", error
        finally:
            slot.work_ended()
            slot.put(status, value, failure)
            works.discard(self)
            # Its context knows the driver, which is this work's.
            self.task = None
            self.ended.set()

    async def insist(self, left_s: float) -> None:
        """Cancel work that looks at its token itself. It is given up by now: the cancel closes
        it."""
        if self._scope is not None:
            self._scope.cancel()


# Standing between a coroutine and the cancels for it. That is how a coroutine is taken out of
# circulation that answers every cancel with one more await: the next cancel closes it instead.

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
        accounts.freeze(each)


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
