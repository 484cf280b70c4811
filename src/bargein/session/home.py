"""Where an engine's tasks live: apart from the task that opened it.

A task group belongs to whoever enters it, and is cancelled with them. An engine's tasks settle
turns and write them down; a cancel of the program around the engine must not cut that short, only
end it in good order. So they live in a task of their own.
"""

import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context

import anyio
from anyio.abc import TaskGroup

from bargein.cancel._loops import NativeTask, spawn

_log = logging.getLogger("bargein.session")

Function = Callable[[], Coroutine[object, object, None]]


class TaskHome:
    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._task: NativeTask | None = None
        self._context = Context()
        self._is_open = anyio.Event()
        self._close = anyio.Event()
        self._closed = anyio.Event()

    async def open(self) -> None:
        # What is started here belongs to the engine, not to whoever happened to send a message.
        self._context = copy_context()
        self._task = spawn(self._live, "bargein engine")
        await self._is_open.wait()

    def spawn(self, function: Function) -> None:
        """Start a task. Its failure is a bug of ours: it is logged, and the others go on."""
        assert self._group is not None
        self._context.run(self._group.start_soon, self._guarded, function)

    async def close(self) -> None:
        """Cancel what is left and wait for it."""
        self._close.set()
        with anyio.CancelScope(shield=True):
            await self._closed.wait()

    async def _live(self) -> None:
        try:
            async with anyio.create_task_group() as self._group:
                self._is_open.set()
                await self._close.wait()
                self._group.cancel_scope.cancel()
        finally:
            self._closed.set()

    async def _guarded(self, function: Function) -> None:
        try:
            await function()
        except Exception as error:  # boundary: one task's bug does not end every session
            _log.error("a task of the engine failed", exc_info=error)
