"""Letters between owners that share a store, and the stops that letters ask for."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from bargein.cancel import Cause
from bargein.contracts.message import HeardSoFar
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.value import Value
from bargein.errors import WorldError


class Letter(Value, frozen=True):
    """The same key from the same sender is the same letter. `answers` is the key of the letter
    that this one answers."""

    sender: str
    key: str
    body: bytes
    answers: str = ""


class StopAsked(Value, frozen=True):
    """Asks the recipient for a stop in a session that it owns. The sender has aimed it: at
    `expected_turn`, or, if no turn was running, at the first turn that began after `seq`."""

    session: str
    scope: Scope
    target: str
    expected_turn: str | None
    seq: int
    by: str
    cause: Cause
    heard: HeardSoFar | None = None


class StopAnswered(Value, frozen=True):
    """`receipt` is None if the recipient does not have the session; `error` says if it failed."""

    receipt: Receipt | None = None
    error: str = ""


class RoadBlocked(WorldError):
    """A node cannot be reached over HTTP now. It may or may not have got the request."""

    def __init__(self, why: str) -> None:
        super().__init__(why, retryable=True)


class Road(Protocol):
    """The way to other nodes that needs no database."""

    async def ask(self, address: str, key: str, body: bytes) -> bytes:
        """Asks the node at this address and returns its answer. The same key is the same request.
        Raises `RoadBlocked` if there is no answer."""
        ...


class Mail(Protocol):
    """An owner that lives and reads its mail receives each letter at least once, unless the
    database crashes a moment after `post`. So a sender that needs an answer posts again until it
    has one."""

    async def post(self, recipient: str, letter: Letter) -> None: ...

    def open(self, receive: Callable[[Letter], Awaitable[object]]) -> None:
        """Begin to read. A letter is removed when `receive` returns; it must not take long."""
        ...
