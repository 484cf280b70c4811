"""Owns an engine's tasks, independently of the task that opened the engine.

A task group belongs to the task that enters it and is cancelled with it. An engine's tasks settle
turns and store them; a cancel of the program around the engine must end them in an orderly way, not
cut them short. So each is a separate task, listed here and started in the engine's context. There
is no task group, because starting a task in a group costs as much as everything else that a session
does to store a stop.
"""

import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context

import anyio

from bargein.cancel._loops import NativeTask, keep_from_others, knowing_its_loop, spawn

_log = logging.getLogger("bargein.session")

Function = Callable[[], Coroutine[object, object, None]]


class EngineTasks:
    def __init__(self) -> None:
        self._context: Context | None = None
        # References, because the loop itself does not keep its tasks alive.
        self._tasks: dict[_EngineTask, None] = {}
        self._closing = False
        self._empty = anyio.Event()

    def open(self) -> None:
        # Tasks belong to the engine, not to the caller that happened to send a message.
        self._context = knowing_its_loop(copy_context())

    def spawn(self, function: Function) -> None:
        """Start a task. If it fails, that is a bug of ours: it is logged, and the others go on."""
        if self._context is None or self._empty.is_set():
            raise RuntimeError("the engine is not open")
        task = _EngineTask(self, function)
        self._tasks[task] = None
        if self._closing:
            task.scope.cancel()
        task.native = self._context.run(spawn, task.main, "bargein engine")
        keep_from_others(task.native)

    async def finish(self, function: Function) -> None:
        """Run a function to its end in a separate task. A cancel of the waiting caller is held back
        until then: on asyncio it would pass through any shield."""
        over = anyio.Event()

        async def run() -> None:
            try:
                await function()
            finally:
                over.set()

        self.spawn(run)
        held: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not over.is_set():
                try:
                    await over.wait()
                except anyio.get_cancelled_exc_class() as cancelled:
                    held = cancelled
        if held is not None:
            raise held

    async def close(self) -> None:
        """Cancel the remaining tasks and wait for them."""
        self._closing = True
        for task in self._tasks:
            task.scope.cancel()
        if not self._tasks:
            self._empty.set()
        with anyio.CancelScope(shield=True):
            await self._empty.wait()

    def ended(self, task: "_EngineTask") -> None:
        self._tasks.pop(task, None)
        if self._closing and not self._tasks:
            self._empty.set()


class _EngineTask:
    def __init__(self, tasks: EngineTasks, function: Function) -> None:
        self.scope = anyio.CancelScope()
        self.native: NativeTask | None = None
        self._owner = tasks
        self._function = function

    async def main(self) -> None:
        try:
            with self.scope:
                await self._function()
        except Exception as error:  # boundary: a bug in one task must not end every session
            _log.error("a task of the engine failed", exc_info=error)
        finally:
            self._owner.ended(self)
