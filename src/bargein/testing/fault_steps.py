"""The steps that the fault server can play for one request.

A reply is a sequence of steps, played in order once the request has arrived. The end of the
sequence finishes the answer properly and closes the connection.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Head:
    """Sends the status line and headers. With a chunked body a client can tell a cut from an end,
    as with real providers; otherwise the body lasts until the connection closes."""

    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": "text/event-stream; charset=utf-8"}
    )
    chunked: bool = True


@dataclass(frozen=True, slots=True)
class Body:
    """Sends some of the body, in one write or in writes of `size` bytes."""

    data: bytes
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """Sends bytes outside any framing: half a status line, a broken chunk."""

    data: bytes
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Waits until `server.gate(name).set()`. A gate stays open."""

    name: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Waits for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drip:
    """Sends one byte of the body at a time, as long as the client stays."""

    data: bytes
    every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """Sends nothing more, and stays connected as long as the client does."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Reads nothing more, and hangs. As the first step: not even the body of the request."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Closes the connection without finishing the answer."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Resets the connection."""


Step = Head | Body | Raw | Gate | Pause | Drip | Hang | Stall | Drop | Reset
Reply = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


Choose = Callable[[Request], Reply]
"""Called with the head of a request, before its body is read."""
