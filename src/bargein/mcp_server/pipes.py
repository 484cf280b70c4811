"""Speaks the protocol on standard input and output: one JSON message a line, and nothing else.

While the server runs, everything that the program itself prints goes to standard error, because the
client would take it for a message. A client that does not read delays only the writer: then
messages that may be dropped are dropped, and too many others end the connection.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from bargein.errors import UserError, WorldError
from bargein.mcp.lines import LineSplitter, TooLong

LINE_BYTES_MAX: Final = 16 << 20
WAITING_BYTES_MAX: Final = 32 << 20
DROPPABLE_BYTES_MAX: Final = 1 << 20
CHUNK_BYTES: Final = 64 << 10


class LineOutbox:
    """Messages that wait to be written, in order."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._wake = anyio.Event()
        self.overflowed = anyio.Event()

    def send(self, body: bytes, droppable: bool) -> None:
        if droppable and self._bytes > DROPPABLE_BYTES_MAX:
            return
        if self._bytes + len(body) > WAITING_BYTES_MAX:
            self.overflowed.set()
            return
        self._queue.append(body)
        self._bytes += len(body)
        self._wake.set()

    async def next(self) -> bytes:
        while not self._queue:
            self._wake = anyio.Event()
            await self._wake.wait()
        body = self._queue.popleft()
        self._bytes -= len(body)
        return body


@contextmanager
def own_streams() -> Iterator[tuple[int, int]]:
    """Takes standard input and output for the protocol: commands and prints get neither."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield reading, writing
    finally:
        os.dup2(writing, 1)
        for each in (nothing, reading, writing):
            os.close(each)


async def read_lines(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yields each line until the end. A line that is too long is passed over."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=CHUNK_BYTES)
    try:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(descriptor), "rb")
        )
    except (ValueError, OSError) as error:
        raise UserError(f"standard input cannot be used for MCP: {error}; use a pipe") from error
    lines = LineSplitter(LINE_BYTES_MAX)
    try:
        while piece := await reader.read(CHUNK_BYTES):
            for line in lines.feed(piece):
                if not isinstance(line, TooLong) and line.strip():
                    yield line
    except OSError:
        return
    finally:
        transport.close()


async def write_lines(descriptor: int, outbox: LineOutbox) -> None:
    """Writes until cancelled. Raises `WorldError` if the client has gone or does not read."""
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(os.dup(descriptor), "wb")
        )
    except (ValueError, OSError) as error:
        raise UserError(f"standard output cannot be used for MCP: {error}; use a pipe") from error
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while True:
            body = await outbox.next()
            if transport.is_closing():
                raise BrokenPipeError("its end is closed")
            writer.write(body + b"\n")
            await writer.drain()
    except OSError as error:
        raise WorldError(
            f"the MCP client does not read any more: {error}", retryable=False
        ) from error
    finally:
        transport.close()
