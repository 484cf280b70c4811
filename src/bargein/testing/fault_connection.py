"""One connection to the fault server: one request, one reply, and when the client went away.

`Signal` is a flag that threads and tasks of any asyncio loop can wait for.
The loop notices at once when a client closes its side, because the loop always reads. Where a reply
says not to read, a separate epoll watches for the end.
"""

import asyncio
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

import msgspec

from bargein.testing.fault_steps import (
    Body,
    Drip,
    Drop,
    Gate,
    Hang,
    Head,
    Pause,
    Raw,
    Reply,
    Request,
    Reset,
    Stall,
    Step,
)

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_HEAD_BYTES_MAX = 1024 * 1024


class Signal:
    """Set once, by anyone. `at_ns` is the monotonic time at which that happened."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.at_ns = 0

    def set(self) -> bool:
        """Returns True for the call that set it."""
        with self._lock:
            if self._event.is_set():
                return False
            self.at_ns = time.monotonic_ns()
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:
                # That loop is closed, so nothing waits in it.
                pass
        return True

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Blocks this thread."""
        return self._event.wait(timeout_s)

    async def wait_async(self, timeout_s: float | None = 10.0) -> None:
        """Waits in a task; raises TimeoutError, so that a test never hangs."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append((loop, future))
        async with asyncio.timeout(timeout_s):
            await future


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Visit:
    """One connection, as the server saw it. Each `Signal` has the time at which it happened."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.connected = Signal()
        self.requested = Signal()
        self.gone = Signal()
        self.gone_by = ""
        self.request: Request | None = None
        self.reached: dict[str, Signal] = {}
        self.sent_bytes = 0

    def at(self, gate: str) -> Signal:
        """Returns the signal that is set when the reply arrives at that gate."""
        return self.reached.setdefault(gate, Signal())


class FaultHost(Protocol):
    """What a connection needs from its server."""

    def choose(self, request: Request) -> Reply: ...

    def gate(self, name: str) -> Signal: ...

    def begin(self, connection: "FaultConnection") -> Visit: ...

    def end(self, connection: "FaultConnection") -> None: ...


class FaultConnection(asyncio.Protocol):
    """Reads one request, plays one reply, and records when the client goes."""

    def __init__(self, host: FaultHost) -> None:
        self._host = host
        self._buffer = bytearray()
        self._head: Request | None = None
        self._body_bytes = 0
        self._player: asyncio.Task[None] | None = None
        self._chunked = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._stop_watching: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not a subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.visit = self._host.begin(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD_BYTES_MAX:
                    self.close()
                return
            self._head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._body_bytes = int(self._head.headers.get("content-length", "0"))
            self._reply = self._host.choose(self._head)
            if self._reply and isinstance(self._reply[0], Stall):
                self._play()
                return
        if self._player is None and len(self._buffer) >= self._body_bytes:
            self._play()

    def _play(self) -> None:
        assert self._head is not None
        head = self._head
        body = bytes(self._buffer[: self._body_bytes])
        self.visit.request = Request(head.method, head.path, head.headers, body)
        self.visit.requested.set()
        self._player = asyncio.get_running_loop().create_task(self._run())

    def eof_received(self) -> bool:
        self._note_gone("fin")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._note_gone("reset" if error is not None else "fin")
        self._stop_watching()
        self._can_write.set()
        if self._player is not None:
            self._player.cancel()
        self._host.end(self)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def close(self) -> None:
        self._note_gone("server")
        self._transport.abort()

    def _note_gone(self, by: str) -> None:
        if not self.visit.gone.is_set():
            self.visit.gone_by = by
            self.visit.gone.set()

    async def _run(self) -> None:
        for step in self._reply:
            if not await self._step(step):
                return
        if self._chunked:
            await self._write(b"0\r\n\r\n")
        self._note_gone("server")
        self._transport.close()

    async def _step(self, step: Step) -> bool:
        """Plays one step; returns False if it was the last."""
        match step:
            case Gate(name=name):
                self.visit.at(name).set()
                await self._host.gate(name).wait_async(None)
            case Pause(seconds=seconds):
                await asyncio.sleep(seconds)
            case Hang() | Stall() | Drop() | Reset():
                self._stop(step)
                return False
            case _:
                await self._say(step)
        return True

    async def _say(self, step: Head | Body | Raw | Drip) -> None:
        match step:
            case Head():
                await self._write(self._head_bytes(step))
            case Body(data=data, size=size):
                for piece in _pieces(data, size):
                    await self._write(self._framed(piece))
            case Raw(data=data, size=size):
                for piece in _pieces(data, size):
                    await self._write(piece)
            case Drip(data=data, every_s=every_s):
                while True:
                    for byte in data:
                        await self._write(self._framed(bytes([byte])))
                        await asyncio.sleep(every_s)

    def _stop(self, step: Hang | Stall | Drop | Reset) -> None:
        match step:
            case Hang():
                pass
            case Stall():
                self._transport.pause_reading()
                self._stop_watching = _watch_hang_up(self._transport, self._hung_up)
            case Drop():
                self._note_gone("server")
                self._transport.close()
            case Reset():
                raw = self._transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                self.close()

    def _hung_up(self) -> None:
        self._stop_watching()
        self._note_gone("fin")
        self._transport.abort()

    def _head_bytes(self, head: Head) -> bytes:
        self._chunked = head.chunked and head.status not in (204, 304)
        lines = [f"HTTP/1.1 {head.status} Status", "FaultConnection: close"]
        lines += [f"{name}: {value}" for name, value in head.headers.items()]
        if self._chunked:
            lines.append("Transfer-Encoding: chunked")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data

    async def _write(self, data: bytes) -> None:
        self._transport.write(data)
        self.visit.sent_bytes += len(data)
        await self._can_write.wait()


def _parse_head(head: bytes) -> Request:
    first, *rest = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request(method, path, headers)


def _pieces(data: bytes, size: int | None) -> Iterator[bytes]:
    step = size or len(data) or 1
    for start in range(0, len(data), step):
        yield data[start : start + step]


def _watch_hang_up(transport: asyncio.Transport, hung_up: Callable[[], None]) -> Callable[[], None]:
    """Notices that the client went away although nothing is read, with an epoll that the loop
    watches.

    Only Linux has epoll; elsewhere the end of a stalled client is noticed when the server closes.
    """
    if not hasattr(select, "epoll"):
        return lambda: None
    loop = asyncio.get_running_loop()
    watcher = select.epoll()
    raw = transport.get_extra_info("socket")
    watcher.register(raw.fileno(), select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
    loop.add_reader(watcher.fileno(), hung_up)

    def stop() -> None:
        if not watcher.closed:
            loop.remove_reader(watcher.fileno())
            watcher.close()

    return stop


def visits_json(visits: Sequence[Visit]) -> bytes:
    """Returns the record as JSON, for other processes."""
    return msgspec.json.encode([_visit_row(visit) for visit in visits])


def _visit_row(visit: Visit) -> Mapping[str, object]:
    return {
        "number": visit.number,
        "path": visit.request.path if visit.request else "",
        "connected_ns": visit.connected.at_ns,
        "requested_ns": visit.requested.at_ns,
        "gone_ns": visit.gone.at_ns,
        "gone_by": visit.gone_by,
    }
