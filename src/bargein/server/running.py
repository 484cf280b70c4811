"""The server's life: listen, serve, and leave in good order.

From a SIGTERM or a Ctrl-C on, the server takes nothing new (503 with Retry-After); reading and
stopping stay possible. Turns may go on for the drain time, and are then stopped like any turn of a
program that ends. Waiting messages wait for the next start. A second signal skips the rest of the
drain time. A watchdog that needs no interpreter ends the process at the latest `quit_s` after the
drain time.
"""

import asyncio
import ctypes
import gc
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any

import anyio
import anyio.lowlevel
import uvicorn

from bargein.cancel import arm_quit_watchdog
from bargein.errors import UserError
from bargein.process.peers import is_owner
from bargein.server.accepting import Acceptor
from bargein.server.connections import Connections
from bargein.server.gateway import Gateway
from bargein.server.limits import Rate
from bargein.server.protocol import GatewayProtocol
from bargein.server.socket_protocol import GatewaySocketProtocol

_log = logging.getLogger("bargein.server")

BACKLOG = 2048
FILES_MAX = 65_536
LAST_PASSES = 3
"""Passes of the loop, in which it calls `connection_lost` of the last protocols."""
OBJECTS_UNTIL_COLLECTED = 10_000
# The numbers of M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX in glibc's malloc.h.
MALLOC_OPTIONS = ((-1, 1024 * 1024), (-3, 256 * 1024), (-8, 2))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. The kernel gives up a peer that is gone or reads nothing after
    half a minute, so that no half-open connection stays."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio turns Nagle's delay off (44 ms for an answer in two writes) if this says TCP.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 15),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 30_000),
        ):
            option = getattr(socket, name, None)
            if option is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with "
            "--host and --port"
        ) from error
    return made


def allow_many_files() -> None:
    """Raises the limit of open files to what this user may have. Every connection is a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(most, FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def collect_seldom() -> None:
    """Makes garbage collection rare. Sessions are many objects that stay, and by default Python
    collects after every 700 new objects, and every hundredth time it searches all objects. While
    many turns begin or stop at once, that would be half of the work."""
    gc.freeze()
    gc.set_threshold(OBJECTS_UNTIL_COLLECTED, 10, 10)


def give_memory_back() -> None:
    """Makes glibc return large freed buffers to the system. By default it keeps them for later,
    more with each large body, and separately for each thread."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in MALLOC_OPTIONS:
            mallopt(option, value)


def _acceptor(
    listening: socket.socket, make_protocol: Callable[..., asyncio.BaseProtocol], pace: Rate
) -> Acceptor:
    """Accepts connections; by a unix socket, which is the owner's door, only the owner's."""
    if listening.family != socket.AF_UNIX:
        return Acceptor(listening, make_protocol, pace=pace)
    by_door = partial(make_protocol, by_door=True)
    return Acceptor(listening, by_door, pace=pace, admits=is_owner)


class GatewayServer(uvicorn.Server):
    """uvicorn, with a drain before its own shutdown."""

    def __init__(
        self,
        gateway: Gateway,
        app: Any,
        *,
        before_closing: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`before_closing` is awaited when nothing runs any more, and before the address closes."""
        super().__init__(
            uvicorn.Config(
                app,
                # uvicorn only calls these, with the arguments that it gives its own classes.
                http=partial(  # type: ignore[arg-type]
                    GatewayProtocol,
                    connections=Connections(gateway.limits, gateway.settings.is_proxy),
                    body_bytes_max=gateway.limits.body_bytes_max,
                ),
                ws=partial(GatewaySocketProtocol, budget=gateway.budget),  # type: ignore[arg-type]
                ws_per_message_deflate=False,
                log_config=None,
                access_log=False,
                server_header=False,
                # Otherwise a client could choose its own address for the audit log.
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=3,
                lifespan="on",
                ws_max_size=gateway.limits.command_bytes_max,
            )
        )
        self._gateway = gateway
        self._before_closing = before_closing
        self.leaving = anyio.Event()
        self.listening = anyio.Event()
        self._signals = 0
        self._for_guests: Acceptor | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the caller, because uvicorn's own handling would skip the drain."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        made_by: Any = self.config.http_protocol_class
        self._make_protocol = partial(
            made_by,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        limits = self._gateway.limits
        self._pace = Rate(limits.connections_per_s, limits.connections_burst)
        # uvicorn only closes them.
        self.servers: list[Any] = [
            _acceptor(each, self._make_protocol, self._pace) for each in sockets or ()
        ]
        if self._gateway.guests is not None:
            self._gateway.guests.begin(self)
        self.listening.set()

    def listen_for_guests(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        """Accepts guests of shared chats, with TLS, from now on."""
        make_protocol = partial(self._make_protocol, for_guests=True)
        acceptor = Acceptor(listening, make_protocol, pace=self._pace, tls=context)
        self._for_guests = acceptor
        self.servers.append(acceptor)

    def stop_listening_for_guests(self) -> None:
        acceptor, self._for_guests = self._for_guests, None
        if acceptor is not None and acceptor in self.servers:
            acceptor.close()
            self.servers.remove(acceptor)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Leaves no connection open: neither one whose peer reads nothing, nor one that was
        accepted while the others were being closed."""
        if self._gateway.guests is not None:
            self._gateway.guests.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for _ in range(LAST_PASSES):
            await anyio.lowlevel.checkpoint()

    def leave(self) -> None:
        """Drains at the first call, and ends the drain at the second. Call it in the loop."""
        self._signals += 1
        limits = self._gateway.limits
        if self._signals == 1:
            arm_quit_watchdog(limits.drain_s + limits.quit_s)
            self._gateway.drain()
            self.leaving.set()
        else:
            self._gateway.hurry.set()

    async def run_until_left(self, sockets: list[socket.socket]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._drain)
            await self.serve(sockets=sockets)
            group.cancel_scope.cancel()

    async def _drain(self) -> None:
        await self.leaving.wait()
        gateway = self._gateway
        _log.info("shutting down: turns may go on for %g s", gateway.limits.drain_s)
        with anyio.move_on_after(gateway.limits.drain_s):
            await gateway.drained_or_hurried()
        if self._before_closing is not None:
            await self._before_closing()
        gateway.cut_streams()
        self.should_exit = True
