"""Connections to PostgreSQL, each with a bound on every answer.

A `PostgresConnection` connects when it is first used and again after a failure, and runs one piece
of work at a time. What holds:

- A caller that is cancelled only stops waiting. The statement runs to its end: the driver would
  otherwise cancel it on the wire, with a second connection that has no bound, and a commit that is
  cancelled while it waits for a standby is visible and not yet safe.
- A server that accepts and never answers counts as failed: after the bound it drops the
  connection and raises `StoreFailed`. What it was doing may or may not happen.
- No state of a connection outlives a statement, so PgBouncer may give each to another server
  connection.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import asyncpg

from bargein.stores.postgres.faults import LOST, closed, explain, silent

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

CONNECT_S = 5.0
ANSWER_S = 10.0
CLOSE_S = 2.0
STATEMENTS_KEPT = 100

KEEPALIVE_IDLE_S = 10
KEEPALIVE_EVERY_S = 5
KEEPALIVE_COUNT = 3
UNACKNOWLEDGED_MS = 10_000


async def connect(
    address: str, *, keeps_statements: bool, purpose: str, bound_s: float = CONNECT_S
) -> Connection:
    """`keeps_statements` must be False behind a pooler: it gives the next statement to another
    server connection, which does not know them."""
    connection = await asyncpg.connect(
        address,
        timeout=bound_s,
        statement_cache_size=STATEMENTS_KEPT if keeps_statements else 0,
        server_settings={"application_name": f"bargein {purpose}"},
    )
    _watch_peer(connection)
    return connection


def _watch_peer(connection: Connection) -> None:
    """Have the kernel notice a peer that is gone, also while nothing is being asked."""
    transport = getattr(connection, "_transport", None)
    peer = transport.get_extra_info("socket") if transport is not None else None
    if peer is None or peer.family == socket.AF_UNIX:
        return
    options = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": KEEPALIVE_EVERY_S,
        "TCP_KEEPCNT": KEEPALIVE_COUNT,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
    }
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options.items():
            # Not every system has them all.
            if hasattr(socket, option):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class PostgresConnection:
    """`on_connect` runs on every new connection, before anything else does."""

    def __init__(
        self,
        address: str,
        name: str,
        *,
        keeps_statements: bool = True,
        purpose: str = "store",
        on_connect: Work[object] | None = None,
    ) -> None:
        self._address = address
        self._name = name
        self._keeps_statements = keeps_statements
        self._purpose = purpose
        self._on_connect = on_connect
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def run(self, work: Work[T], *, bound_s: float | None = None) -> T:
        """Raises what `work` raises; `StoreFailed` if the connection fails or stays silent."""
        if self._closed:
            raise closed(self._name)
        task = asyncio.get_running_loop().create_task(self._run(work, bound_s or ANSWER_S))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Its caller may have been cancelled, and then nobody asks for the error.
            task.exception()

    async def _run(self, work: Work[T], bound_s: float) -> T:
        async with self._turn:
            if self._closed:
                raise closed(self._name)
            connection = await self._connected(bound_s)
            return await self._bounded(connection, work, bound_s)

    async def _bounded(self, connection: Connection, work: Work[T], bound_s: float) -> T:
        expired = False

        def drop() -> None:
            nonlocal expired
            expired = True
            connection.terminate()

        timer = asyncio.get_running_loop().call_later(bound_s, drop)
        try:
            return await work(connection)
        except BaseException as error:
            if isinstance(error, LOST) or connection.is_closed():
                self.drop()
                if expired:
                    raise silent(self._name, bound_s) from error
                raise explain(error, self._name) from error
            raise
        finally:
            timer.cancel()

    async def _connected(self, bound_s: float) -> Connection:
        connection = self._connection
        if connection is not None and not connection.is_closed():
            return connection
        connect_s = min(CONNECT_S, bound_s)
        try:
            connection = await connect(
                self._address,
                keeps_statements=self._keeps_statements,
                purpose=self._purpose,
                bound_s=connect_s,
            )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if isinstance(error, TimeoutError):
                raise silent(self._name, connect_s) from error
            raise explain(error, self._name) from error
        self._connection = connection
        if self._on_connect is not None:
            try:
                await self._bounded(connection, self._on_connect, bound_s)
            except BaseException:
                self.drop()
                raise
        return connection

    def drop(self) -> None:
        """Give up the connection without a word to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def aclose(self) -> None:
        """Wait for what is running, then close. Bounded."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_S)
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        timer = asyncio.get_running_loop().call_later(CLOSE_S, connection.terminate)
        try:
            await connection.close()
        except LOST:
            pass
        finally:
            timer.cancel()


class ReadConnections:
    """A few links for reading. Work waits for a free one, in the order of asking."""

    def __init__(self, make: Callable[[], PostgresConnection], count: int) -> None:
        self._all = [make() for _ in range(count)]
        self._idle = list(self._all)
        self._free = asyncio.Semaphore(count)
        self._closed = False

    async def run(self, work: Work[T], *, bound_s: float | None = None) -> T:
        if self._closed:
            # A closed link says so.
            return await self._all[0].run(work, bound_s=bound_s)
        async with self._free:
            # The one that was used last is the most likely to be connected.
            link = self._idle.pop()
            try:
                return await link.run(work, bound_s=bound_s)
            finally:
                self._idle.append(link)

    async def aclose(self) -> None:
        self._closed = True
        for link in self._all:
            await link.aclose()
