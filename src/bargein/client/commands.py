"""A command to the server, until it is answered; and what becomes of it if the answer is lost."""

import asyncio
import secrets
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from bargein.client.wire import ReplyFrame
from bargein.errors import BargeinError


class Resend(Enum):
    """What becomes of a command whose answer was lost."""

    READ = "read"
    """Changes nothing: asked again, unless nobody waits for it any more."""
    SAME = "same"
    """Asked again. Done twice, it has the same effect as done once."""
    AIMED = "aimed"
    """Asked again; its body names the start of the server that it was first asked of."""
    NEVER = "never"
    """Asked again only of the same start of the server; of a later start it is `Unanswered`."""


class FirstCommand(msgspec.Struct, frozen=True):
    """A command that a client sends first on every new connection. Sent twice, it has the same
    effect as sent once."""

    do: str
    params: Mapping[str, str]
    body: Mapping[str, Any]


class AskedCommand:
    """A command that has not been answered. `start` names the start of the server that it is for:
    for an aimed command the last that the client knew when it was asked, for all others the first
    to which it was sent."""

    def __init__(
        self,
        name: str,
        do: str,
        params: Mapping[str, str],
        query: Mapping[str, str],
        body: Mapping[str, Any],
        again: Resend,
        answer: "asyncio.Future[ReplyFrame | BargeinError]",
        *,
        start: str | None = None,
    ) -> None:
        self.name = name
        self.do = do
        self.params = params
        self.query = query
        self.body = body
        self.again = again
        self.key = secrets.token_urlsafe(16) if again is not Resend.READ else None
        self.start = start
        self.answer = answer

    def frame(self, start: str) -> str:
        self.start = self.start or start
        body = dict(self.body)
        if self.again is Resend.AIMED:
            body["start"] = self.start
        made: dict[str, Any] = {"id": self.name, "do": self.do}
        made |= {"params": self.params} if self.params else {}
        made |= {"query": self.query} if self.query else {}
        made |= {"body": body} if body else {}
        made |= {"key": self.key} if self.key is not None else {}
        return msgspec.json.encode(made).decode()

    def end(self, outcome: ReplyFrame | BargeinError) -> None:
        if not self.answer.done():
            self.answer.set_result(outcome)
