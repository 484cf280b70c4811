"""Writing to a command's standard input, or to its terminal."""

import asyncio
import os
from functools import partial

from bargein.process.errors import InputClosed
from bargein.process.watch import Event, Watch


class InputWriter:
    """Owns the descriptor it is given, which must not block."""

    def __init__(self, watch: Watch, fd: int) -> None:
        self._watch = watch
        self._fd = fd
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """All of it, in turn with other writers. Waits while the command does not read.

        If the wait is cancelled, part of the data may have been written.
        """
        async with self._turn:
            rest = memoryview(data)
            while rest:
                rest = rest[self._write_some(rest) :]
                if rest:
                    await self._until_writable()

    def write_now(self, data: bytes) -> None:
        """A few bytes, if there is room for them. Raises `InputClosed`."""
        self._write_some(memoryview(data))

    def close(self) -> None:
        if self._fd >= 0:
            self._watch.remove(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _write_some(self, data: memoryview) -> int:
        if self._fd < 0:
            raise InputClosed("the command's input is closed")
        try:
            return os.write(self._fd, data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise InputClosed(f"the command does not read its input any more: {error}") from error

    async def _until_writable(self) -> None:
        fd = self._fd
        waiting = self._waiting = self._watch.loop.create_future()
        self._watch.add(fd, Event.WRITABLE, partial(_wake, waiting))
        try:
            await waiting
        finally:
            if self._fd == fd:
                self._watch.remove(fd)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
