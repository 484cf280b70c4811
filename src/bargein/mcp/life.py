"""Starts one MCP server for one principal when it is needed, and closes it.

A server that was lost is started again by the next call that needs it, never by itself. A start
belongs to the callers that wait for it: when the last of them is stopped, the start ends and its
process is killed. After a failed start, calls fail at once for a while; none of them waits for the
time-out of a dead server.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from enum import StrEnum
from typing import Final

import anyio

from bargein.cancel import CancelSource, Cause, Reason, Token
from bargein.cancel._loops import keep_from_others
from bargein.mcp.connection import McpConnection
from bargein.mcp.errors import McpError, ServerDown
from bargein.mcp.listing import ListedTools, list_tools
from bargein.mcp.server import McpServer
from bargein.mcp.transport import Receiver, Transport
from bargein.process import StopReport

BACKOFF_S: Final = 1.0
BACKOFF_S_MAX: Final = 60.0
CLOSE_S: Final = 4.0
RELIST_S: Final = 0.5

_log = logging.getLogger("bargein.mcp")

OpenTransport = Callable[[McpServer, Token, Receiver], Transport]
"""Makes the transport of a server. Cancelling the token stops the server's process."""


class ServerState(StrEnum):
    IDLE = "not started"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class _Start:
    """One connection from its start to its end."""

    def __init__(self, name: str) -> None:
        self.source = CancelSource(f"MCP server {name}")
        self.users = 0
        self.kept = False
        self.decided = anyio.Event()
        self.over = anyio.Event()
        self.connection: McpConnection | None = None
        self.error: McpError | None = None
        self.relist = anyio.Event()
        self.task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0 and not self.kept and not self.decided.is_set():
            self.source.cancel(Reason(Cause.CLIENT_GONE, "nobody waits for it any more"))


class ServerLife:
    """`on_tools` is called with the tools of the server whenever they were listed."""

    def __init__(
        self,
        server: McpServer,
        open_transport: OpenTransport,
        *,
        client_version: str,
        on_tools: Callable[[ListedTools], None],
    ) -> None:
        self.server = server
        self.error: McpError | None = None
        self.tools = ListedTools()
        self._open_transport = open_transport
        self._client_version = client_version
        self._on_tools = on_tools
        self._start: _Start | None = None
        self._stateless: bool | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def state(self) -> ServerState:
        start = self._start
        if start is not None and not start.over.is_set():
            return ServerState.READY if start.decided.is_set() else ServerState.STARTING
        return ServerState.FAILED if self.error is not None else ServerState.IDLE

    @property
    def connection(self) -> McpConnection | None:
        """The connection, while it can be used or while it starts."""
        start = self._start
        return start.connection if start is not None and not start.over.is_set() else None

    @property
    def waited_for_before(self) -> bool:
        """Whether its last start failed, or a turn has given up waiting for its start."""
        start = self._start
        is_slow = start is not None and start.kept and not start.decided.is_set()
        return self._failures > 0 or is_slow

    @property
    def may_start(self) -> bool:
        """Whether it runs, is starting, or may be started now."""
        is_up = self.state in (ServerState.READY, ServerState.STARTING)
        return is_up or _now() >= self._not_before

    async def connected(self, keep_after_s: float | None = None) -> McpConnection:
        """Return the connection; start the server first if necessary. Raises `ServerDown`.

        Cancelling ends the waiting, and also the start unless somebody else waits for it. With
        `keep_after_s` this raises `TimeoutError` after that time, and the start goes on.
        """
        start = self._start
        if start is None or start.over.is_set() or _is_lost(start):
            start = self._begin()
        start.users += 1
        try:
            if keep_after_s is None:
                await start.decided.wait()
            else:
                with anyio.move_on_after(keep_after_s) as waiting:
                    await start.decided.wait()
                if waiting.cancelled_caught:
                    start.kept = True
                    raise TimeoutError
        finally:
            start.leave()
        if start.error is not None or start.connection is None:
            raise start.error or ServerDown(self.server.name, "its start was ended")
        return start.connection

    def _begin(self) -> _Start:
        if self._closed:
            raise ServerDown(self.server.name, "the program is ending")
        if _now() < self._not_before and self.error is not None:
            raise self.error
        self._start = start = _Start(self.server.name)
        # A task in an empty context, because it belongs to no caller.
        loop = asyncio.get_running_loop()
        start.task = Context().run(loop.create_task, self._main(start))
        keep_from_others(start.task)
        return start

    async def _main(self, start: _Start) -> None:
        """The one task that owns the connection."""
        error: McpError | None = None
        try:
            with start.source.token.scope():
                error = await self._serve(start, self._stateless)
                if error is not None and start.connection and start.connection.probed_only:
                    # It died of the probe for its era, before anything else was sent.
                    error = await self._serve(start, False)
        except McpError as down:
            error = down
        except Exception as bug:  # boundary: all waiting callers get it, and the log
            _log.exception("MCP server %s: its connection failed", self.server.name)
            error = ServerDown(self.server.name, f"{type(bug).__name__}: {bug}")
        finally:
            self._over(start, error)

    def _over(self, start: _Start, error: McpError | None) -> None:
        was_up = start.decided.is_set()
        stopped = start.source.token.cancelled
        start.source.seal()
        start.error = error or ServerDown(self.server.name, "it was stopped")
        if self._start is start:
            self.error = None if stopped else start.error
        if not was_up and not stopped:
            self._failures += 1
            pause_s = min(BACKOFF_S * 2 ** (self._failures - 1), BACKOFF_S_MAX)
            self._not_before = _now() + pause_s
        start.over.set()
        start.decided.set()

    async def _serve(self, start: _Start, stateless: bool | None) -> McpError | None:
        """Run one connection to its end, and return why it ended."""
        server = self.server
        connection = start.connection = McpConnection(
            server.name,
            lambda receiver: self._open_transport(server, start.source.token, receiver),
            client_version=self._client_version,
            stateless=stateless,
            on_change=lambda kind: start.relist.set() if kind == "tools" else None,
        )
        deadline = anyio.current_time() + server.startup_timeout_s
        with anyio.CancelScope(deadline=deadline) as starting:

            async def prepare() -> None:
                self._know(await list_tools(server, connection))
                starting.deadline = float("inf")
                self._stateless = connection.era.stateless
                self._failures, self.error = 0, None
                start.decided.set()

            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._list_again, start, connection)
                    await connection.main(prepare)
            except BaseExceptionGroup as group:
                errors = [each for each in group.exceptions if isinstance(each, McpError)]
                if len(errors) != len(group.exceptions):
                    raise
                return errors[0]
        if starting.cancelled_caught:
            said = connection.transport.last_words
            told = f"; it said: {said}" if said else ""
            late = f"it did not start within {server.startup_timeout_s:g} s{told}"
            return ServerDown(server.name, late)
        return None

    async def _list_again(self, start: _Start, connection: McpConnection) -> None:
        """List the tools again when the server says that they changed, at most every `RELIST_S`."""
        await start.decided.wait()
        while True:
            await start.relist.wait()
            start.relist = anyio.Event()
            try:
                with anyio.move_on_after(self.server.startup_timeout_s):
                    self._know(await list_tools(self.server, connection))
            except McpError as error:
                _log.warning("its tools could not be listed again: %s", error)
            await anyio.sleep(RELIST_S)

    def _know(self, tools: ListedTools) -> None:
        self.tools = tools
        self._on_tools(tools)

    async def restart(self, why: str, within_s: float) -> StopReport | None:
        """Kill the server's processes, so that the next call starts it anew. Returns how they
        ended, if they did in time."""
        start = self._start
        if start is None or start.connection is None:
            return None
        connection = start.connection
        connection.lose(why)
        start.source.cancel(Reason(Cause.USER_STOP, why))
        connection.transport.kill()
        with anyio.move_on_after(within_s):
            await start.over.wait()
        return connection.transport.stop_report

    async def aclose(self) -> None:
        self._closed = True
        start = self._start
        if start is None or start.over.is_set():
            return
        start.source.cancel(Reason(Cause.SHUTDOWN, "the program is ending"))
        with anyio.move_on_after(CLOSE_S, shield=True):
            await start.over.wait()


def _is_lost(start: _Start) -> bool:
    return start.connection is not None and start.connection.lost is not None


def _now() -> float:
    return anyio.current_time()
