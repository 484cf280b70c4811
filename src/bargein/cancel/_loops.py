"""The only file that uses asyncio and trio directly.

Everything else in the kernel uses anyio. This file has what anyio does not offer: calling into a
loop from a signal handler or another thread without waiting, testing whether this thread runs a
loop, starting a task that no group waits for (for `TaskOwner`), ending one, and wrapping the tasks
that other code starts in a loop.
"""

import os
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import cache, partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio.lowlevel

if TYPE_CHECKING:
    import asyncio

    import trio

Call = Callable[[], object]
AnyCoroutine = Coroutine[Any, Any, Any]
Driver = Callable[[AnyCoroutine], AnyCoroutine]

# Wraps the coroutine of each task started in this context: see `drive_tasks`.
task_driver: ContextVar[Driver | None] = ContextVar("bargein_task_driver", default=None)


class NativeTask(Protocol):
    def cancel(self) -> object: ...


async def end_task(task: "asyncio.Task[Any]") -> BaseException | None:
    """Cancels a task of asyncio and waits for its end; returns what it raised. If the caller is
    cancelled meanwhile, it hears of that: `await task` inside `suppress(CancelledError)` would
    swallow it."""
    import asyncio

    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.exception()


class Alarm(Protocol):
    """One task awaits it, in its loop, until it has a result. On asyncio it is a plain future:
    asyncio takes longer to await anything else, even a subclass."""

    def done(self) -> bool: ...

    def set_result(self, result: None) -> None: ...

    def __await__(self) -> Generator[Any, None, None]: ...


class LoopTimer(Protocol):
    def cancel(self) -> None: ...


def running_loop() -> object:
    """Return the loop that runs here: asyncio's event loop, or a trio token.

    Asks asyncio first: anyio needs a dozen calls to find out.
    """
    asyncio = sys.modules.get("asyncio")
    loop: object = asyncio._get_running_loop() if asyncio is not None else None
    return loop if loop is not None else anyio.lowlevel.current_token().native_token


def new_alarm() -> Alarm:
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    return cast(Alarm, loop.create_future()) if loop is not None else _EventAlarm()


def ring(alarm: Alarm) -> None:
    """Wake the waiter, unless it was already woken or cancelled."""
    if not alarm.done():
        alarm.set_result(None)


def ring_after(alarm: Alarm, seconds: float) -> LoopTimer:
    if isinstance(alarm, _EventAlarm):
        return alarm.ring_after(seconds)
    return cast("asyncio.Future[None]", alarm).get_loop().call_later(seconds, ring, alarm)


def loop_time() -> float:
    """`anyio.current_time()`, by the clock of the loop itself."""
    loop: Any = running_loop()
    return float(loop.time() if hasattr(loop, "time") else anyio.current_time())


def loop_caller() -> Callable[[Call], object]:
    """Return a function that makes the running loop call something soon.

    Any thread and any signal handler may use it. It raises RuntimeError if the loop has been closed
    since. The call runs in the context of the caller of `loop_caller`, not in the context of the
    thread that uses the function.
    """
    native = running_loop()
    call_soon = getattr(native, "call_soon_threadsafe", None)
    if call_soon is not None:
        return partial(call_soon, context=knowing_its_loop(copy_context()))
    return cast(Callable[[Call], object], getattr(native, "run_sync_soon", None))


def knowing_its_loop(context: Context) -> Context:
    """Set the name of the loop in `context`. If sniffio is installed and anyio did not start the
    loop, anyio recognises asyncio only inside of a task, and a callback is not a task."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None and context.get(sniffio.current_async_library_cvar) is None:
        library = sniffio.current_async_library()
        if library == "asyncio":
            context.run(sniffio.current_async_library_cvar.set, library)
    return context


def call_if_open(caller: Callable[[Call], object], call: Call) -> None:
    """Call into the loop. If the loop is gone, so is everything that waited in it."""
    try:
        caller(call)
    except RuntimeError:
        pass


def runs_in_loop() -> bool:
    """Whether a blocking call here would block an event loop.

    Asks the loops directly: every cancel from a thread pays for this, and anyio would raise.
    """
    asyncio, trio = sys.modules.get("asyncio"), sys.modules.get("trio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def give_way() -> None:
    """Let the woken threads run first, unless this thread runs a loop itself.

    Waking a loop gives it neither this core nor the interpreter. A thread that continued to compute
    would keep both for up to 5 ms (uvloop) before the woken loop could do anything.
    """
    if not runs_in_loop():
        os.sched_yield()


def copy_context_outside_loop() -> Context:
    """Copy the current context for a new thread, which does not run this loop."""
    context = copy_context()
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        # The context holds the name of the loop, which would make `anyio.run` refuse to start.
        context.run(sniffio.current_async_library_cvar.set, None)
    return context


def spawn(function: Callable[[], Coroutine[object, object, None]], name: str) -> NativeTask | None:
    """Start a task that no group waits for; the caller owns it. It must not raise.

    On asyncio this returns the task, whose cancel passes through shields. The caller must keep a
    reference: the loop does not.
    """
    native = anyio.lowlevel.current_token().native_token
    context = copy_context()
    context.run(task_driver.set, None)
    if not hasattr(native, "create_task"):
        import trio

        trio.lowlevel.spawn_system_task(function, name=name, context=context)
        return None
    import asyncio

    loop = cast("asyncio.AbstractEventLoop", native)
    return asyncio.Task(function(), loop=loop, name=name, context=context)


def keep_from_others(task: NativeTask | None) -> None:
    """Hide the task from `asyncio.run`, which at its end cancels every task that it knows, even
    tasks needed for an orderly end. Like a system task of trio, this one ends when its owner
    decides."""
    if task is not None:
        import asyncio

        asyncio._unregister_task(cast("asyncio.Task[object]", task))


class _EventAlarm:
    """An alarm for trio, whose only timers are the deadlines of scopes."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._scope = anyio.CancelScope()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: None) -> None:
        self._event.set()

    def ring_after(self, seconds: float) -> LoopTimer:
        self._scope.deadline = anyio.current_time() + seconds
        return self

    def cancel(self) -> None:
        """`LoopTimer.cancel`: nothing to do, because the scope ends with the wait."""

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        with self._scope:
            await self._event.wait()


def carried_error(value: object) -> BaseException | None:
    """Return the error that a task is about to be resumed with. Trio sends errors as values."""
    error = getattr(value, "error", None)
    return error if isinstance(error, BaseException) else None


def drive_tasks() -> None:
    """Make this loop apply `task_driver`: a task started in a context that has one runs the
    coroutine that the driver returns.

    This lasts for the life of the loop and costs other tasks next to nothing. A loop that starts
    tasks eagerly stays as it is, because anyio has to recognise its factory.
    """
    native = anyio.lowlevel.current_token().native_token
    if not hasattr(native, "set_task_factory"):
        import trio

        trio.lowlevel.add_instrument(_driving_instrument())
        return
    loop = cast("asyncio.AbstractEventLoop", native)
    factory = loop.get_task_factory()
    if not isinstance(factory, _DrivingFactory) and not _starts_eagerly(factory):
        loop.set_task_factory(_DrivingFactory(factory))


class _DrivingFactory:
    """An asyncio task factory in front of the existing one."""

    def __init__(self, behind: "asyncio.events._TaskFactory | None") -> None:
        self._behind = behind

    def __call__(
        self, loop: "asyncio.AbstractEventLoop", coroutine: Any, **options: Any
    ) -> "asyncio.Future[Any]":
        context: Context | None = options.get("context")
        driver = task_driver.get() if context is None else context.get(task_driver)
        if driver is not None:
            coroutine = driver(coroutine)
        if self._behind is not None:
            return self._behind(loop, coroutine, **options)
        import asyncio

        return asyncio.Task(coroutine, loop=loop, **options)


def _starts_eagerly(factory: object) -> bool:
    if sys.version_info < (3, 12):
        return False
    import asyncio

    eager = asyncio.eager_task_factory.__code__
    return getattr(factory, "__code__", None) is eager


@cache
def _driving_instrument() -> "trio.abc.Instrument":
    import trio

    class DrivingInstrument(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            driver = task.context.get(task_driver)
            if driver is not None:
                task.coro = cast("CoroutineType[Any, Any, Any]", driver(task.coro))

    return DrivingInstrument()
