"""A relay between a client and a server, in the loop of the test, that cuts connections."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self


class CuttingRelay:
    """`async with CuttingRelay(port) as relay`: what comes to `relay.url` goes to that port.

    `cut()` ends every connection at once. `lose_answers()` lets the next thing that a client says
    reach the server, and cuts before the answer gets through. `lose_rest()` cuts at once when the
    server has it, before there is an answer. `lose_words()` cuts before the server has it.
    `away` takes no new connections. With `tls` it speaks TLS to its clients.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.away = False
        self._tls = tls
        self.url = ""
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lose: str | None = None

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def lose_answers(self) -> None:
        self._lose = "answers"

    def lose_rest(self) -> None:
        self._lose = "rest"

    def lose_words(self) -> None:
        self._lose = "words"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.away:
                raise ConnectionRefusedError
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._open |= {writer, back}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(reader, back))
                group.create_task(self._down(there, writer))
        except* ConnectionError:
            pass
        finally:
            self._open -= {writer, back}
            writer.transport.abort()
            # What was passed on arrives: an abort could take it back.
            back.close()

    async def _up(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            if self._lose == "words" and not piece.startswith(b"GET"):
                self._lose = None
                raise ConnectionError
            back.write(piece)
            await back.drain()
            if self._lose == "rest" and not piece.startswith(b"GET"):
                self._lose = None
                raise ConnectionError
        raise ConnectionError

    async def _down(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await there.read(65_536):
            if self._lose == "answers":
                self._lose = None
                raise ConnectionError
            writer.write(piece)
            await writer.drain()
        raise ConnectionError
