"""A relay between a browser and the server that can be slow or gone, or refuse WebSockets."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

WITHIN_S = 20.0
SENT_MAX = 1_000_000
NO_UPGRADE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Relay:
    """`with Relay(port) as relay`: what comes to `relay.address` goes to that port of this machine.
    `hears_upgrades`: whether a WebSocket gets through. `sent`: what browsers have sent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="relay under test", daemon=True
        )
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_away = False
        self._open: set[asyncio.StreamWriter] = set()
        self.hears_upgrades = True
        self.address = ""
        self.sent = b""

    # What happens to those who use it

    def hold(self) -> None:
        """Holds back what browsers send from now on. What the server sends passes."""
        self._call(self._flowing.clear)

    def release(self) -> None:
        self._call(self._flowing.set)

    def go_away(self) -> None:
        """Cuts every connection, and accepts no new one."""

        def cut() -> None:
            self._is_away = True
            for writer in self._open:
                writer.transport.abort()

        self._call(cut)

    def come_back(self) -> None:
        self._is_away = False

    def _call(self, function: object) -> None:
        assert callable(function)

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(WITHIN_S)

    # Its life

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(WITHIN_S)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def close() -> None:
            self._is_away = True
            self._server.close()
            self._flowing.set()
            # A connection that is only beginning has a task before it has a writer.
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                for writer in self._open:
                    writer.transport.abort()
                await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
            # The loop closes an aborted transport in its next pass.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_away:
            writer.transport.abort()
            return
        self._open.add(writer)
        opened = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            opened.append(back)
            self._open.add(back)
            if self._is_away:
                raise ConnectionError
            await asyncio.gather(self._up(reader, writer, back), self._down(there, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in opened:
                self._open.discard(each)
                each.transport.abort()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        while piece := await reader.read(65_536):
            await self._flowing.wait()
            if not self.hears_upgrades and b"upgrade: websocket" in piece.lower():
                writer.write(NO_UPGRADE)
                await writer.drain()
                raise ConnectionError
            self.sent += piece[: SENT_MAX - len(self.sent)]
            back.write(piece)
            await back.drain()
        raise ConnectionError

    async def _down(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await there.read(65_536):
            writer.write(piece)
            await writer.drain()
        raise ConnectionError
