"""The one file that knows event loops by name.

Everything else in the kernel speaks anyio. Three things anyio does not offer are here: calling
into a loop from a signal handler or another thread without waiting, asking whether this thread
runs a loop, and starting a task that its group need not wait for (which is `TaskOwner`'s).
"""

from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Protocol, cast

import anyio.lowlevel

Call = Callable[[], object]


class NativeTask(Protocol):
    def cancel(self) -> object: ...


def loop_caller() -> Callable[[Call], object]:
    """A function that has the running loop call something soon; any thread, any handler.

    It raises RuntimeError if the loop has been closed since.
    """
    native: object = anyio.lowlevel.current_token().native_token
    call = getattr(native, "call_soon_threadsafe", None) or getattr(native, "run_sync_soon", None)
    return cast(Callable[[Call], object], call)


def call_if_open(caller: Callable[[Call], object], call: Call) -> None:
    """Call into the loop; if it is gone, whatever waited in it is gone too."""
    try:
        caller(call)
    except RuntimeError:
        pass


def runs_in_loop() -> bool:
    """Whether a blocking call here would stop an event loop."""
    try:
        anyio.lowlevel.current_token()
    except (RuntimeError, LookupError):
        return False
    return True


def spawn(function: Callable[[], Coroutine[object, object, None]], name: str) -> NativeTask | None:
    """Start a task that no group waits for; whoever asks for it owns it. It must not raise.

    On asyncio the task is given back, whose cancel goes through shields. The caller holds on to
    it: the loop does not.
    """
    native = anyio.lowlevel.current_token().native_token
    if hasattr(native, "create_task"):
        return cast(NativeTask, native.create_task(function(), name=name))
    import trio

    trio.lowlevel.spawn_system_task(function, name=name, context=copy_context())
    return None


def carried_error(value: object) -> BaseException | None:
    """What a task is about to be resumed with, where the loop sends errors as values (trio)."""
    error = getattr(value, "error", None)
    return error if isinstance(error, BaseException) else None
