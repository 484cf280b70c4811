"""A model that makes titles beside everything else, at its own pace, and sometimes not at all.

It does not know whose title it makes. The words in the request tell: no two messages are alike.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bargein.cancel import Token
from bargein.contracts.model import (
    EndPart,
    ModelRequest,
    Part,
    StopReason,
    Text,
    TextPart,
    Usage,
    UserMessage,
)
from bargein.models.errors import ModelError
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.testing.simulation.moves import Move, next_part
from bargein.testing.simulation.plan import Moment
from bargein.testing.simulation.record import Work

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life

TITLE_MODEL = "titles"


def title_model(life: "Life") -> RetryingModel:
    policy = RetryPolicy(attempts_max=2, total_s=1000.0)
    return RetryingModel([TitleEndpoint(life)], policy=policy, random=lambda: 0.5)


class TitleEndpoint:
    name = TITLE_MODEL
    price = None
    context_tokens = None

    def __init__(self, life: "Life") -> None:
        self._life = life

    def attempt(self, request: ModelRequest, token: Token) -> "TitleAttempt":
        return TitleAttempt(self._life, request, token)

    async def aclose(self) -> None:
        """Does nothing: nothing is held between requests."""


class TitleAttempt:
    def __init__(self, life: "Life", request: ModelRequest, token: Token) -> None:
        self._life = life
        self._token = token
        self._work = Work(life.number, _session_of(life, request), "", token, TITLE_MODEL)
        self._moves = _moves(life)
        self.usage = Usage(10, 1)
        if not life.dead:
            life.note("a title is asked for", self._work.session)
            life.record.title_begins(self._work)
            life.world.happens_somewhere(Moment.TITLES)

    async def read(self) -> Sequence[Part]:
        return [await next_part(self._life, self._moves, self._token)]

    async def aclose(self) -> None:
        if self._work.open and not self._life.dead:
            self._life.record.title_ends(self._work)


def _session_of(life: "Life", request: ModelRequest) -> str:
    (message,) = request.messages
    assert isinstance(message, UserMessage)
    words = "".join(part.text for part in message.content if isinstance(part, Text))
    found = (each.session for each in life.record.sendings if each.words in words)
    return next(found, "")


def _moves(life: "Life") -> Iterator[Move]:
    rng = life.world.random("title", life.number, len(life.record.titlings))
    yield rng.choice((0.0, 0.1, 1.0, 1.0, 30.0))
    kind = rng.random()
    if kind < 0.2:
        yield ModelError("simulated: no titles today", retryable=kind < 0.1)
    if kind < 0.8:
        yield TextPart("A simulated title")
        yield rng.choice((0.0, 0.3))
    yield EndPart(StopReason.END)
