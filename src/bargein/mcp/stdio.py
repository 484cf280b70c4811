"""The transport to a server that we start: JSON lines on its standard input and output.

One task reads and one writes. A short message that fits into the pipe is written at once and whole,
so a stop never tears it apart. A server that does not read its input delays only the writer. A
server that writes unwanted messages is read slowly (`FloodGuard`).
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from bargein.calls.text import one_line
from bargein.contracts.visible import visible
from bargein.mcp.eras import Era
from bargein.mcp.errors import ServerDown
from bargein.mcp.flood import FloodGuard
from bargein.mcp.lines import LineSplitter, TooLong
from bargein.mcp.transport import MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, Receiver
from bargein.mcp.wire import Outgoing
from bargein.process import InputClosed, Service, SpawnError, StopReport

STOP_S: Final = 3.0
"""Longer than the ladder of a service takes."""
LAST_WORDS_CHARS: Final = 2000
PROCESSES_SHOWN: Final = 20

Start = Callable[[], Awaitable[Service]]


class StdioTransport:
    has_streams = False

    def __init__(self, name: str, start: Start, receiver: Receiver) -> None:
        self._name = name
        self._start = start
        self._receiver = receiver
        self._service: Service | None = None
        self._report: StopReport | None = None
        self._queue: deque[Outgoing] = deque()
        self._writing: Outgoing | None = None
        self._queued_bytes = 0
        self._wake_writer = anyio.Event()

    async def run(self, opened: Callable[[], None]) -> None:
        try:
            try:
                self._service = await self._start()
            except SpawnError as error:
                raise ServerDown(self._name, f"it cannot be started: {error}") from error
            opened()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                await self._read(self._service)
                tasks.cancel_scope.cancel()
            raise ServerDown(self._name, await self._how_it_ended(self._service))
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._service is None:
            return
        with anyio.move_on_after(STOP_S, shield=True):
            self._report = await self._service.stop()

    async def _how_it_ended(self, service: Service) -> str:
        with anyio.move_on_after(STOP_S):
            ended = await service.wait()
            said = f"; it said: {self.last_words}" if self.last_words else ""
            return f"its process ended ({ended}){said}"
        return "it closed its standard output"

    async def _read(self, service: Service) -> None:
        lines, guard = LineSplitter(MESSAGE_BYTES_MAX), FloodGuard()
        while piece := await service.read():
            guard.begin()
            for line in lines.feed(piece):
                if isinstance(line, TooLong):
                    self._receiver.too_long(line.head, line.length, None)
                elif line.strip():
                    await guard.count(self._receiver.received(line, None))
            await guard.pause()

    async def _write(self) -> None:
        assert self._service is not None
        while True:
            while self._queue:
                message = self._writing = self._queue.popleft()
                self._queued_bytes -= len(message.body)
                try:
                    await self._service.write(message.body + b"\n")
                except InputClosed:
                    # The reader learns how the server ended.
                    return
                self._writing = None
            self._wake_writer = anyio.Event()
            await self._wake_writer.wait()

    def speak(self, era: Era | None) -> None:
        """Nothing on a pipe depends on it."""

    def listen(self) -> None:
        """It is always heard."""

    def send(self, message: Outgoing, *, first: bool = False) -> None:
        if self._is_written_at_once(message):
            return
        if self._queued_bytes + len(message.body) > QUEUE_BYTES_MAX:
            raise ServerDown(self._name, "it does not read what it is sent, and too much waits")
        if first:
            self._queue.appendleft(message)
        else:
            self._queue.append(message)
        self._queued_bytes += len(message.body)
        self._wake_writer.set()

    def _is_written_at_once(self, message: Outgoing) -> bool:
        """What is short, while nothing waits: most messages need not wake the writer."""
        if self._service is None or self._writing is not None or self._queue:
            return False
        try:
            return self._service.try_write(message.body + b"\n")
        except InputClosed:
            # The reader learns how the server ended.
            return True

    def withdraw(self, request_id: int) -> bool:
        for message in self._queue:
            if message.id == request_id:
                self._queue.remove(message)
                self._queued_bytes -= len(message.body)
                return True
        return False

    def is_unwritten(self, message: Outgoing) -> bool:
        return any(each is message for each in (self._writing, *self._queue))

    async def deliver(self, message: Outgoing) -> bool:
        self.send(message, first=True)
        return True

    def close_stream(self, request_id: int) -> None:
        """All requests share one pipe."""

    def kill(self) -> None:
        if self._service is not None:
            self._service.begin_stop(hurry=True)

    @property
    def last_words(self) -> str:
        if self._service is None:
            return ""
        return visible(self._service.errors.text().strip()[-LAST_WORDS_CHARS:])

    @property
    def processes(self) -> tuple[str, ...]:
        if self._service is None or not self._service.alive:
            return ()
        # Without arguments: they may hold keys.
        found = self._service.processes()
        shown = [f"pid {pid} ({one_line(name)})" for pid, name in found[:PROCESSES_SHOWN]]
        left = len(found) - len(shown)
        return (*shown, f"and {left} more") if left else tuple(shown)

    @property
    def stop_report(self) -> StopReport | None:
        return self._report
