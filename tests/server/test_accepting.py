"""New connections are accepted a few at a time, and open ones are served in between."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import ExitStack

import pytest

from bargein.server.accepting import AT_ONCE_MAX, Acceptor
from bargein.server.limits import Rate
from bargein.server.running import listen

pytestmark = pytest.mark.anyio
BURST = 40
NO_PACE = Rate(1e9, 10**9)


class Counting(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        transport.close()


def listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(2 * BURST)
    return made


async def test_others_are_served_between_the_connections_of_a_burst() -> None:
    Counting.made = 0
    with ExitStack() as stack:
        server = stack.enter_context(listening())
        for _ in range(BURST):
            stack.enter_context(socket.create_connection(server.getsockname()))
        acceptor = Acceptor(server, Counting, pace=NO_PACE)
        steps, before = [], 0
        while Counting.made < BURST:
            await asyncio.sleep(0)
            steps.append(Counting.made - before)
            before = Counting.made
        assert max(steps) <= 2 * AT_ONCE_MAX, "one pass of the loop may see two of ours"
        acceptor.close()
        await acceptor.wait_closed()


class Full(socket.socket):
    """For a while it has no descriptor for another connection."""

    refusals = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_without_a_descriptor_it_waits_and_goes_on() -> None:
    came = asyncio.Event()

    class Announcing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            came.set()
            transport.close()

    with ExitStack() as stack:
        server = stack.enter_context(Full())
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        stack.enter_context(socket.create_connection(server.getsockname()))
        acceptor = Acceptor(server, Announcing, pace=NO_PACE, no_room_s=0.01)
        async with asyncio.timeout(20):
            await came.wait()
        assert server.refusals == 0
        acceptor.close()


async def test_a_crowd_is_accepted_at_the_pace_and_nobody_is_refused() -> None:
    Counting.made = 0
    now = 0.0
    with ExitStack() as stack:
        server = stack.enter_context(listening())
        for _ in range(BURST):
            stack.enter_context(socket.create_connection(server.getsockname()))
        acceptor = Acceptor(server, Counting, pace=Rate(1000.0, 10, now=lambda: now))
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert Counting.made == 10, "the burst, and no more while the clock stands still"
        while Counting.made < BURST:
            now += 0.01
            await asyncio.sleep(0.001)
        acceptor.close()
        await acceptor.wait_closed()


class Delaying(asyncio.Protocol):
    """Notes whether the kernel keeps small writes back until the one before is acknowledged."""

    def __init__(self, delays: asyncio.Future[bool]) -> None:
        self._delays = delays

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = transport.get_extra_info("socket")
        self._delays.set_result(not own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        transport.close()


async def is_delayed() -> bool:
    delays: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    with ExitStack() as stack:
        server = stack.enter_context(listen("127.0.0.1", 0))
        acceptor = Acceptor(server, lambda: Delaying(delays), pace=NO_PACE)
        stack.callback(acceptor.close)
        stack.enter_context(socket.create_connection(server.getsockname()))
        found = await asyncio.wait_for(delays, 10)
        await acceptor.wait_closed()
    return found


def test_an_answer_in_two_writes_is_not_delayed() -> None:
    """Also by asyncio's own loop, which looks at what the socket says that it is."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        assert not runner.run(is_delayed())
