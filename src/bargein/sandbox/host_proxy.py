"""Lets commands in a sandbox without network reach the hosts that the user named, and no others.

A network namespace has a loopback of its own. Its first process (`process.helper.init`) makes a
listening socket there and hands it to us through our door, a unix socket. So this proxy serves
commands from outside of the namespace, and none of our code runs inside. When the namespace is
gone, the connection to the door ends, and the proxy closes all connections from there.

It speaks HTTP: `CONNECT`, and plain requests, one to a connection. A request for another host gets
403 with the reason. A program that does not use the proxy has no network.

Called on an asyncio loop. `async with HostProxy(hosts, folder)`: closing ends all connections.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from bargein.errors import UserError
from bargein.net.public_address import is_reachable
from bargein.net.resolver import ThreadResolver
from bargein.process.helper.sandbox import PROXY_PORT

_HEAD_BYTES_MAX: Final = 64 << 10
_HEAD_S_MAX: Final = 15.0
_CONNECT_S_MAX: Final = 20.0
_CONNECTIONS_MAX: Final = 256
# So that one command does not keep others from the proxy.
_CONNECTIONS_OF_ONE_MAX: Final = 64
_PORTS: Final = (80, 443)
_PIECE: Final = 64 << 10


class Hosts:
    """`example.com` is this host at the ports 80 and 443, `*.example.com` every host below it, and
    `example.com:8080` another port. Raises `UserError`."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._entries = [_entry(each) for each in entries]

    def allow(self, host: str, port: int) -> bool:
        name = host.casefold().rstrip(".")
        return any(
            port in ports and (name == known or (known[:2] == "*." and name.endswith(known[1:])))
            for known, ports in self._entries
        )

    def named(self, host: str) -> bool:
        """It is in the list itself, so the user knows where it leads: maybe to this network."""
        return any(host.casefold().rstrip(".") == known for known, _ in self._entries)


def _entry(text: str) -> tuple[str, tuple[int, ...]]:
    host, colon, port = text.strip().casefold().rpartition(":")
    if not colon or "]" in port:
        host, port = text.strip().casefold(), ""
    host = host.strip("[]").rstrip(".")
    wrong = not host or any(each in host for each in "/@ ") or "*" in host.removeprefix("*.")
    if wrong or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise UserError(
            f"sandbox.hosts has {text!r}, which is no host; write example.com, *.example.com or "
            "example.com:8080"
        )
    return host, (int(port),) if port else _PORTS


class HostProxy:
    """`door` is the path of the unix socket that hands listening sockets to it."""

    def __init__(self, hosts: tuple[str, ...], folder: Path) -> None:
        self._hosts = Hosts(hosts)
        self.door = str(folder / "door")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_CONNECTIONS_MAX)

    async def __aenter__(self) -> Self:
        self._listening.bind(self.door)
        os.chmod(self.door, 0o600)
        self._listening.listen(64)
        self._listening.setblocking(False)
        self._start(self._answer_door())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(self._tasks)
        self._listening.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # of a connection: its other end has seen it

    async def _answer_door(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            visitor, _ = await loop.sock_accept(self._listening)
            self._start(self._serve_namespace(visitor))

    async def _serve_namespace(self, visitor: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with visitor:
            await _readable(visitor)
            _, handles, _, _ = socket.recv_fds(visitor, 1, 1)
            if not handles:
                return
            with socket.socket(fileno=handles[0]) as listening:
                listening.setblocking(False)
                accepting = loop.create_task(self._accept(listening))
                try:
                    await loop.sock_recv(visitor, 1)  # until the namespace is gone
                finally:
                    accepting.cancel()
                    await asyncio.wait([accepting])

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        mine: set[asyncio.Task[None]] = set()
        left = asyncio.Semaphore(_CONNECTIONS_OF_ONE_MAX)

        def ended(task: asyncio.Task[None]) -> None:
            mine.discard(task)
            left.release()
            self._free.release()
            if not task.cancelled():
                task.exception()  # its other end has seen it

        try:
            while True:
                await left.acquire()
                connection, _ = await loop.sock_accept(listening)
                try:
                    await self._free.acquire()
                except BaseException:
                    connection.close()
                    raise
                task = loop.create_task(self._serve(connection))
                mine.add(task)
                # Also for a task that is cancelled before it begins.
                task.add_done_callback(ended)
        finally:
            for task in list(mine):
                task.cancel()
            if mine:
                await asyncio.wait(mine)

    async def _serve(self, connection: socket.socket) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=_HEAD_BYTES_MAX)
            await self._answer(reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass  # the connection ends, which is what its other end sees
        finally:
            if writer is not None:
                writer.close()
            else:
                connection.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        method, _, others = first.decode("latin-1").partition(" ")
        target, _, version = others.partition(" ")
        asked = _asked(method, target)
        if asked is None:
            return await _refuse(writer, 400, "this proxy takes CONNECT and http:// requests")
        host, port, path = asked
        if not self._hosts.allow(host, port):
            return await _refuse(
                writer,
                403,
                f"the sandbox allows no connection to {host}:{port}; the user can add it to "
                "sandbox.hosts",
            )
        try:
            async with asyncio.timeout(_CONNECT_S_MAX):
                there = await self._connect(host, port)
        except (OSError, TimeoutError) as error:
            return await _refuse(writer, 502, f"{host}:{port} cannot be reached: {error}")
        upstream, onward = there
        try:
            if path:
                lines = [each for each in rest.split(b"\r\n") if not _is_hop(each)]
                request = f"{method} {path} {version}".encode("latin-1")
                onward.write(b"\r\n".join([request, b"Connection: close", *lines]))
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _relay(reader, writer, upstream, onward)
        finally:
            onward.close()
        return None

    async def _connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = [each["host"] for each in await ThreadResolver().resolve(host, port)]
        if not self._hosts.named(host):
            # Whoever owns a domain decides where names below it lead.
            found = [each for each in found if is_reachable(each)]
        for number, address in enumerate(found):
            try:
                return await asyncio.open_connection(address, port)
            except OSError:
                if number == len(found) - 1:
                    raise
        raise OSError("it leads to no public address")


def _asked(method: str, target: str) -> tuple[str, int, str] | None:
    """The host, the port, and the path of a plain request."""
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return (host.strip("[]"), int(port), "") if host and port.isdigit() else None
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.hostname:
        return None
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    return parts.hostname, parts.port or 80, path


def _is_hop(line: bytes) -> bool:
    return line.lower().startswith((b"connection:", b"proxy-", b"keep-alive:"))


async def _refuse(writer: asyncio.StreamWriter, code: int, why: str) -> None:
    body = f"[sandbox: {why}]\n".encode()
    head = f"HTTP/1.1 {code} {'Forbidden' if code == 403 else 'Not done'}\r\n"
    head += f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: asyncio.StreamReader,
    onward: asyncio.StreamWriter,
) -> None:
    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()
        with suppress(OSError):
            sink.write_eof()

    async with asyncio.TaskGroup() as both:
        both.create_task(pump(reader, onward))
        both.create_task(pump(upstream, writer))


async def _readable(handle: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    handle.setblocking(False)
    came: asyncio.Future[None] = loop.create_future()

    def heard() -> None:
        if not came.done():
            came.set_result(None)

    loop.add_reader(handle.fileno(), heard)
    try:
        await came
    finally:
        loop.remove_reader(handle.fileno())


def proxy_variables() -> dict[str, str]:
    """What most programs need to use it."""
    address = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    found = {name: address for each in names for name in (each, each.upper())}
    here = "localhost,127.0.0.1,::1"
    return {**found, "no_proxy": here, "NO_PROXY": here}
