"""A client as light as can be, so that the bench measures the server: bare sockets in one loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from bench._gateway_server import TOKEN

HEAD = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"


class Connection:
    """One connection that is kept; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: object = None) -> dict[str, Any]:
        content = msgspec.json.encode(body) if body is not None else b""
        head = f"POST {path} HTTP/1.1\r\n{HEAD}Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        told = await self._reader.readuntil(b"\r\n\r\n")
        place = told.index(b"content-length: ") + 16
        length = int(told[place : told.index(b"\r", place)])
        answer = msgspec.json.decode(await self._reader.readexactly(length), type=dict[str, Any])
        if not told.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{path}: {answer}")
        return answer

    def close(self) -> None:
        self._writer.close()


class Stream(asyncio.Protocol):
    """Counts server-sent events as they come, and the longest time between two of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._transport: asyncio.Transport | None = None
        self.parts = 0
        self.last_at = 0.0
        self.longest_s = 0.0
        self.told_settled = asyncio.Event()
        self.goal = 0
        self.reached = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(f"GET {self._path} HTTP/1.1\r\n{HEAD}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        came = data.count(b'"text_delta"')
        if came:
            now = time.perf_counter()
            if self.last_at:
                self.longest_s = max(self.longest_s, now - self.last_at)
            self.last_at = now
            self.parts += came
            if self.goal and self.parts >= self.goal:
                self.reached.set()
        if b'"turn_settled"' in data:
            self.told_settled.set()

    def begin(self) -> None:
        """Starts to measure pauses and to look for the end of a turn."""
        self.told_settled.clear()
        self.last_at = time.perf_counter()
        self.longest_s = 0.0

    @property
    def settled(self) -> bool:
        return self.told_settled.is_set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_stream(port: int, path: str, goal: int = 0) -> Stream:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(path), "127.0.0.1", port)
    stream.goal = goal
    return stream
