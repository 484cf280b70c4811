"""What the fault server can be told to do with one request, step by step.

A reply is a sequence of steps, played in order once the request has arrived. The end of the
sequence finishes the answer properly and closes the connection.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Head:
    """The status line and the headers. A chunked body tells a cut from an end, as providers do;
    one that is not chunked lasts until the connection closes."""

    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": "text/event-stream; charset=utf-8"}
    )
    chunked: bool = True


@dataclass(frozen=True, slots=True)
class Body:
    """Some of the body, in one write, or in writes of `size` bytes each."""

    data: bytes
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes outside of any framing: half a status line, a broken chunk."""

    data: bytes
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Wait until `server.gate(name).open()`. A gate stays open once opened."""

    name: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drip:
    """One byte of the body at a time for ever, or as long as the client stays."""

    data: bytes
    every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing more, and stay connected for as long as the client does."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Read nothing more, and hang. As the first step: not even the body of the request."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection without finishing the answer."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection."""


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
"""Called with the head of a request, before its body has been read."""
