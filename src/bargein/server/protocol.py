"""HTTP as uvicorn speaks it, with bounds on those who do not get to the point.

A connection has so long to bring the head of a request, and so many bytes for it. An app can have
a connection ended at once (`abort_of`), also when its peer reads nothing and a polite end would
wait for it. It can also be told that all of a request has come (`is_whole`), which is so for nearly
every one that is not large: nothing waits then that would need a bound.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 15.0
HEAD_BYTES_MAX = 64 * 1024

_ABORT = "bargein.abort"
_WHOLE = "bargein.whole"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def abort_of(scope: Scope) -> Callable[[], None]:
    """Ends the connection of a request at once; does nothing where the server offers no way."""
    abort: Callable[[], None] = scope.get(_ABORT, _nothing)
    return abort


def is_whole(scope: Scope) -> bool:
    """Whether all of the request has come, so that whoever receives it does not wait. False also
    where the server does not say."""
    return _WHOLE in scope


def _nothing() -> None:
    pass


class GatewayProtocol(HttpToolsProtocol):
    head_s = HEAD_S
    _patience: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and self._patience is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        # The rest of the head is waited for if it is not there already, as it nearly always is.
        self._stop_waiting()
        self.scope[_ABORT] = self.transport.abort  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope[_WHOLE] = True  # type: ignore[literal-required]

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _wait_for_head(self) -> None:
        self._patience = self.loop.call_later(self.head_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
