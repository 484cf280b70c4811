"""A TCP relay that loses, delays or refuses connections on command."""

import asyncio
from contextlib import suppress
from enum import StrEnum


class Way(StrEnum):
    OPEN = "open"
    SILENT = "silent"
    """Nothing arrives, in either direction; connections are still accepted."""
    NOTHING_UP = "nothing up"
    """What the client sends does not arrive."""
    NOTHING_DOWN = "nothing down"
    """What the server sends does not arrive: it does what it is asked, and nobody hears."""
    CUT = "cut"
    """Every connection is reset, and new ones are refused."""


class Relay:
    """Between clients and one server on loopback, which may move to another port."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._server_port = port
        self._host = host
        self.port = 0
        self._way = Way.OPEN
        self._changed = asyncio.Event()
        self._listening: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._serve, self._host, 0)
        self.port = self._listening.sockets[0].getsockname()[1]

    def lead_to(self, port: int) -> None:
        """The server is at another port now. Connections to the old one are reset."""
        self._server_port = port
        for writer in list(self._writers):
            writer.transport.abort()

    def set(self, way: Way) -> None:
        self._way = way
        if way is Way.CUT:
            for writer in list(self._writers):
                writer.transport.abort()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def aclose(self) -> None:
        self.set(Way.CUT)
        if self._listening is not None:
            self._listening.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._way is Way.CUT:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        loop = asyncio.get_running_loop()
        ways = [
            loop.create_task(self._pass(reader, up_writer, Way.NOTHING_UP)),
            loop.create_task(self._pass(up_reader, writer, Way.NOTHING_DOWN)),
        ]
        self._tasks.update(ways)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*ways, return_exceptions=True)
        self._tasks.difference_update(ways)
        for each in (writer, up_writer):
            self._writers.discard(each)
            each.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: Way
    ) -> None:
        """What is held back arrives when the way is open again, as it does after a partition."""
        with suppress(OSError):
            while data := await reader.read(65536):
                while self._way in (Way.SILENT, lost):
                    await self._changed.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
