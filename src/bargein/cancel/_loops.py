"""The one file that knows event loops by name.

Everything else in the kernel uses anyio. This file has what anyio does not offer: calling into a
loop from a signal handler or another thread without waiting, asking whether this thread runs a
loop, starting a task that no group waits for (for `TaskOwner`), and wrapping the tasks that others
start in a loop.
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

# What is made of the coroutines of tasks that are started in this context: see `drive_tasks`.
task_driver: ContextVar[Driver | None] = ContextVar("bargein_task_driver", default=None)


class NativeTask(Protocol):
    def cancel(self) -> object: ...


class Alarm(Protocol):
    """Awaited by one task, in its loop, until it has a result. Asyncio's own futures are alarms: to
    await anything else, also one that is derived from them, takes it longer."""

    def done(self) -> bool: ...

    def set_result(self, result: None) -> None: ...

    def __await__(self) -> Generator[Any, None, None]: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


def running_loop() -> object:
    """The loop that runs here: an event loop of asyncio, or a token of trio.

    It asks asyncio first: anyio takes a dozen calls to find out.
    """
    asyncio = sys.modules.get("asyncio")
    loop: object = asyncio._get_running_loop() if asyncio is not None else None
    return loop if loop is not None else anyio.lowlevel.current_token().native_token


def new_alarm() -> Alarm:
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    return cast(Alarm, loop.create_future()) if loop is not None else _EventAlarm()


def ring(alarm: Alarm) -> None:
    """Let the waiter go on, if it has not, and was not cancelled."""
    if not alarm.done():
        alarm.set_result(None)


def ring_after(alarm: Alarm, seconds: float) -> Timer:
    if isinstance(alarm, _EventAlarm):
        return alarm.ring_after(seconds)
    return cast("asyncio.Future[None]", alarm).get_loop().call_later(seconds, ring, alarm)


def loop_time() -> float:
    """`anyio.current_time()`, by the clock of the loop itself."""
    loop: Any = running_loop()
    return float(loop.time() if hasattr(loop, "time") else anyio.current_time())


def loop_caller() -> Callable[[Call], object]:
    """A function that has the running loop call something soon; any thread, any handler.

    It raises RuntimeError if the loop has been closed since. What is called runs in the context
    of whoever asked for the function, and not in that of the thread that used it.
    """
    native = running_loop()
    call_soon = getattr(native, "call_soon_threadsafe", None)
    if call_soon is not None:
        return partial(call_soon, context=knowing_its_loop(copy_context()))
    return cast(Callable[[Call], object], getattr(native, "run_sync_soon", None))


def knowing_its_loop(context: Context) -> Context:
    """Name the loop in `context`. A callback is no task, and where sniffio is installed and anyio
    did not start the loop, anyio recognises asyncio only by its task."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None and context.get(sniffio.current_async_library_cvar) is None:
        library = sniffio.current_async_library()
        if library == "asyncio":
            context.run(sniffio.current_async_library_cvar.set, library)
    return context


def call_if_open(caller: Callable[[Call], object], call: Call) -> None:
    """Call into the loop; if it is gone, whatever waited in it is gone too."""
    try:
        caller(call)
    except RuntimeError:
        pass


def runs_in_loop() -> bool:
    """Whether a blocking call here would stop an event loop.

    Asked of the loops themselves, since a cancel from a thread pays for it: anyio would raise.
    """
    asyncio, trio = sys.modules.get("asyncio"), sys.modules.get("trio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def give_way() -> None:
    """Let the threads that were woken here go first, unless this one runs a loop itself.

    Waking a loop gives it neither this core nor the interpreter. A thread that went on computing
    would keep both for up to 5 ms (uvloop) before the loop that it woke could do anything.
    """
    if not runs_in_loop():
        os.sched_yield()


def copy_context_outside_loop() -> Context:
    """The current context for a thread of its own, which does not run the loop that we are in."""
    context = copy_context()
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        # The name of the loop is kept in the context, and would keep `anyio.run` from running.
        context.run(sniffio.current_async_library_cvar.set, None)
    return context


def spawn(function: Callable[[], Coroutine[object, object, None]], name: str) -> NativeTask | None:
    """Start a task that no group waits for; whoever asks for it owns it. It must not raise.

    On asyncio the task is given back, whose cancel goes through shields. The caller holds on to
    it: the loop does not.
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
    """At its end `asyncio.run` cancels every task that it knows of, also those that others need to
    end in good order. Like a system task of trio's, this one ends when its owner says so."""
    if task is not None:
        import asyncio

        asyncio._unregister_task(cast("asyncio.Task[object]", task))


class _EventAlarm:
    """Trio has no timers but the deadlines of scopes."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._scope = anyio.CancelScope()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: None) -> None:
        self._event.set()

    def ring_after(self, seconds: float) -> Timer:
        self._scope.deadline = anyio.current_time() + seconds
        return self

    def cancel(self) -> None:
        """As a timer. Its scope has ended with the waiting."""

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        with self._scope:
            await self._event.wait()


def carried_error(value: object) -> BaseException | None:
    """What a task is about to be resumed with, where the loop sends errors as values (trio)."""
    error = getattr(value, "error", None)
    return error if isinstance(error, BaseException) else None


def drive_tasks() -> None:
    """From now on, a task that is started in this loop where the context has a `task_driver` runs
    what the driver makes of its coroutine.

    It stays so for the life of the loop, and costs other tasks next to nothing. A loop that starts
    its tasks eagerly is left alone, since anyio has to recognise its factory.
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
    """A task factory of asyncio in front of the one that was there."""

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
