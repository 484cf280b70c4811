"""Letters between owners that share a store, and what a letter asks for."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from bargein.cancel import Cause
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.value import Value


class Letter(Value, frozen=True):
    """The same key from the same sender is the same letter. `answers` is the key of the letter
    that this one answers."""

    sender: str
    key: str
    body: bytes
    answers: str = ""


class StopAsked(Value, frozen=True):
    """A stop for a session of the recipient's. It is aimed when it is asked for: at
    `expected_turn`, or, if no turn was running, at the first one that began after `seq`."""

    session: str
    scope: Scope
    target: str
    expected_turn: str | None
    seq: int
    by: str
    cause: Cause


class StopAnswered(Value, frozen=True):
    """`receipt` is None if the recipient does not have the session; `error` says if it failed."""

    receipt: Receipt | None = None
    error: str = ""


class Mail(Protocol):
    """What holds: a letter is durable when `post` returns, and is received at least once by an
    owner that lives and reads its mail."""

    async def post(self, recipient: str, letter: Letter) -> None: ...

    def open(self, receive: Callable[[Letter], Awaitable[object]]) -> None:
        """Begin to read. A letter is removed when `receive` returns; it must not take long."""
        ...
