"""A real HTTP server on loopback that misbehaves exactly as told.

Each request gets a reply, which is a sequence of steps (`fault_steps`): bytes released on command,
one at a time if wanted, gates, silence, drops, resets. Each connection is recorded as a `Visit`:
when the client connected, when its request was complete, and when and how it went away, in
monotonic nanoseconds. The server notices at that moment that a client went away, even while it is
silent and while it does not read.

    async with FaultServer([[Head(), Body(b"data: hi\\n\\n"), Gate("rest"), Hang()]]) as server:
        ...                                 # a client talks to server.url
        await server.visits[0].gone.wait_async()

`serve_in_thread` runs a server in a thread with its own loop. `python -m
bargein.testing.fault_server` runs the zoo of `fault_zoo` in a process: the first folder of the path
names the animal that answers, and `GET /visits` returns the record.
"""

import asyncio
import contextlib
import select
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Self

from bargein.testing.fault_connection import FaultConnection, Signal, Visit
from bargein.testing.fault_steps import Choose, Reply, Request

LAST_ROUNDS = 10


class FaultServer:
    """Plays `replies` in order and then repeats the last one; or a function chooses.

    With `tls` it speaks TLS. A small `receive_buffer_bytes` makes clients notice a server that does
    not read.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Choose,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        self.choose = replies if callable(replies) else _in_order(replies)
        self._tls = tls
        self._host = host
        self._port = port
        self._receive_buffer_bytes = receive_buffer_bytes
        self._gates: dict[str, Signal] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[FaultConnection] = set()
        self._emptied = asyncio.Event()
        self._visited = threading.Condition()
        self.visits: list[Visit] = []

    async def __aenter__(self) -> Self:
        listener = socket.create_server((self._host, self._port), backlog=512)
        if self._receive_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        self._port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: FaultConnection(self), sock=listener, ssl=self._tls
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        # Closing the server makes asyncio lose connections that were accepted but not announced:
        # so first stop accepting, then let those be announced, then close.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _round in range(LAST_ROUNDS):
            await asyncio.sleep(0)
        self._server.close()
        for connection in list(self._connections):
            connection.close()
        while self._connections:
            self._emptied.clear()
            await self._emptied.wait()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://{self._host}:{self._port}"

    @property
    def requests(self) -> list[Request]:
        """The complete requests, in the order in which clients connected."""
        return [visit.request for visit in self.visits if visit.request is not None]

    def gate(self, name: str) -> Signal:
        """Returns a gate; `gate(name).set()` opens it, from any thread."""
        return self._gates.setdefault(name, Signal())

    async def visit(self, number: int, timeout_s: float = 10.0) -> Visit:
        """Returns the visit with that number, once the client has connected."""
        return await asyncio.to_thread(self.wait_visit, number, timeout_s)

    def wait_visit(self, number: int, timeout_s: float = 10.0) -> Visit:
        with self._visited:
            if not self._visited.wait_for(lambda: len(self.visits) > number, timeout_s):
                raise TimeoutError(f"client number {number} did not come within {timeout_s:g} s")
        return self.visits[number]

    def begin(self, connection: FaultConnection) -> Visit:
        self._connections.add(connection)
        with self._visited:
            visit = Visit(len(self.visits))
            self.visits.append(visit)
            visit.connected.set()
            self._visited.notify_all()
        return visit

    def end(self, connection: FaultConnection) -> None:
        self._connections.discard(connection)
        self._emptied.set()


def _in_order(replies: Sequence[Reply]) -> Choose:
    if not replies:
        raise ValueError("a fault server needs at least one reply")
    left = list(replies)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


@contextlib.contextmanager
def serve_in_thread(server: FaultServer) -> Iterator[FaultServer]:
    """Runs the server in a thread with its own loop, for tests that are not async."""
    started = Signal()
    stop = Signal()
    failure: list[BaseException] = []

    async def main() -> None:
        async with server:
            started.set()
            await stop.wait_async(None)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # boundary: raised in the thread that started this one
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="fault-server", daemon=True)
    thread.start()
    started.wait(10.0)
    try:
        if failure:
            raise failure[0]
        yield server
    finally:
        stop.set()
        thread.join(10.0)


def make_tls(*hosts: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns contexts for a server and for a client that trusts it, with a new certificate."""
    import trustme

    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*(hosts or ("127.0.0.1", "localhost"))).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@contextlib.contextmanager
def full_listener(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Yields a port where connecting hangs: its listener accepts nobody and its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(64):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            if not select.select([], [filler], [], 0.1)[1]:
                filler.close()
                break
            stack.callback(filler.close)
        yield address[1]


def unused_port(host: str = "127.0.0.1") -> int:
    """Returns a port where nothing listens."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    from bargein.testing.fault_zoo import run_zoo

    sys.exit(run_zoo(sys.argv[1:]))
