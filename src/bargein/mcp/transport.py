"""The seam between a connection and the way its messages travel.

A transport runs inside the one task that owns the connection. `send` never waits: it hands the
message over, and the `Receiver` gets answers and failures. All methods are called on the loop.
"""

from collections.abc import Callable
from typing import Protocol

from bargein.mcp.eras import Era
from bargein.mcp.errors import McpError
from bargein.mcp.wire import Outgoing
from bargein.process import StopReport

MESSAGE_BYTES_MAX = 16 << 20
"""A longer message is dropped up to its end, and the request that it answers fails."""

QUEUE_BYTES_MAX = 32 << 20
"""How much may wait to be written to a server that does not read."""


class Receiver(Protocol):
    """The connection, as its transport sees it."""

    def received(self, data: bytes, via: int | None) -> bool:
        """A message came; `via` is the request on whose stream it came, if it has one. Returns
        whether anybody wanted it."""
        ...

    def too_long(self, head: bytes, length: int, via: int | None) -> None:
        """A message was dropped because of its length; `head` is its beginning."""
        ...

    def request_failed(self, request_id: int, error: McpError) -> None:
        """The request gets no answer any more. `Rejected` if the server refused it; with any other
        error nobody knows whether the server has seen it."""
        ...

    def lose(self, why: str) -> None:
        """The connection cannot be used any more."""
        ...

    def is_open(self, request_id: int) -> bool:
        """Whether somebody still waits for the answer to this request."""
        ...


class Transport(Protocol):
    has_streams: bool
    """Whether each request has a stream of its own, which can be closed."""

    async def run(self, opened: Callable[[], None]) -> None:
        """Open it, call `opened`, and go on until it is lost: raises `ServerDown`. Cancelling
        closes it and leaves nothing behind, within a bound."""
        ...

    def speak(self, era: Era | None) -> None:
        """From now on messages are of this era; None while none is agreed on."""
        ...

    def listen(self) -> None:
        """Hear what the server says unasked, if that takes a stream of its own."""
        ...

    def send(self, message: Outgoing, *, first: bool = False) -> None:
        """`first`: before everything else that waits to be written. Raises `ServerDown` if too much
        waits already."""
        ...

    def withdraw(self, request_id: int) -> bool:
        """Take back a request of which nothing was written yet."""
        ...

    def is_unwritten(self, message: Outgoing) -> bool:
        """Whether some of the message still waits to be written, as far as that can be known."""
        ...

    async def deliver(self, message: Outgoing) -> bool:
        """Send a notification and wait until the server has taken it, where that can be known."""
        ...

    def close_stream(self, request_id: int) -> None:
        """Close the stream of a request."""
        ...

    def kill(self) -> None:
        """Kill the server's processes without further grace, as far as they are ours."""
        ...

    @property
    def last_words(self) -> str:
        """The end of what the server wrote for people, such as its standard error."""
        ...

    @property
    def processes(self) -> tuple[str, ...]:
        """The server's processes as far as they are known, in words."""
        ...

    @property
    def stop_report(self) -> StopReport | None:
        """How its processes ended, once they have."""
        ...
