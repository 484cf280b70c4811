"""Resolves names on daemon threads, so that a hung lookup blocks nothing.

A lookup cannot be stopped, only abandoned. So each runs on its own thread, which neither the loop
nor the process waits for at exit. Requests for the same name share a lookup, so a hanging name
server costs one thread per name, and the number of names is bounded too. Nothing is cached here:
the system does that, and knows for how long.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

LOOKUPS_MAX = 64

FoundAddress = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` gives it; the address itself differs by family."""
Found = Sequence[FoundAddress]
Lookup = Callable[..., Found]
"""Called like `socket.getaddrinfo`."""


class _Shared:
    """One lookup and everything that waits for it, in any event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[Callable[[], None]] = []
        self._done = False
        self.found: Found = ()
        self.error: OSError | None = None

    def subscribe(self, waiter: Callable[[], None]) -> None:
        with self._lock:
            if not self._done:
                self._waiters.append(waiter)
                return
        waiter()

    def unsubscribe(self, waiter: Callable[[], None]) -> None:
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def finish(self) -> None:
        with self._lock:
            self._done = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()


_Key = tuple[Lookup, str, int, int]
_under_way: dict[_Key, _Shared] = {}


class ThreadResolver(AbstractResolver):
    """A resolver for aiohttp. `lookup` is called like `socket.getaddrinfo`; tests replace it."""

    def __init__(self, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        shared = _join(self._lookup, host, port, family)
        answered: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_set, answered)
            except RuntimeError:
                # The loop is closed, so nothing waits any more.
                pass

        shared.subscribe(wake)
        try:
            await answered
        finally:
            shared.unsubscribe(wake)
        if shared.error is not None:
            # A copy each: an exception raised by several waiters would mix their tracebacks.
            raise type(shared.error)(*shared.error.args)
        return [_result(host, port, entry) for entry in shared.found]

    async def close(self) -> None:
        """Does nothing: nothing is held between lookups."""


def _set(answered: "asyncio.Future[None]") -> None:
    if not answered.done():
        answered.set_result(None)


def _join(lookup: Lookup, host: str, port: int, family: int) -> _Shared:
    key = (lookup, host, port, family)
    if len(_under_way) >= LOOKUPS_MAX and key not in _under_way:
        raise OSError(f"{LOOKUPS_MAX} name lookups already hang; the name server does not answer")
    mine = _Shared()
    shared = _under_way.setdefault(key, mine)
    if shared is mine:
        threading.Thread(
            target=_run, args=(key, shared), name=f"bargein-lookup {host}", daemon=True
        ).start()
    return shared


def _run(key: _Key, shared: _Shared) -> None:
    lookup, host, port, family = key
    try:
        shared.found = lookup(
            host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except OSError as error:
        shared.error = error
    except Exception as error:  # boundary: a name that cannot even be encoded is a bad name
        shared.error = socket.gaierror(socket.EAI_NONAME, f"{host!r}: {error}")
    finally:
        _under_way.pop(key, None)
        shared.finish()


def _result(hostname: str, port: int, entry: FoundAddress) -> ResolveResult:
    family, _, protocol, _, address = entry
    host = str(address[0])
    if family == socket.AF_INET6 and len(address) > 3 and address[3]:
        host = f"{host.partition('%')[0]}%{address[3]}"
    return ResolveResult(
        hostname=hostname,
        host=host,
        port=port,
        family=family,
        proto=protocol,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
