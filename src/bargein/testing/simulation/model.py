"""The models of a simulated world: one that answers, and one that makes titles beside it.

The first streams at its own pace, stalls, fails and calls tools, as the seed decides. Each request
is checked when it arrives. The second works at its own pace too, and sometimes makes no title. It
does not know whose title it makes; the words in the request tell, because no two messages are
alike. Only attempts are simulated: retries use the real `RetryingModel`.
"""

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bargein.cancel import Token
from bargein.contracts.model import (
    CallPart,
    EndPart,
    ModelRequest,
    Part,
    ReasoningPart,
    StopReason,
    TextPart,
    Usage,
)
from bargein.models.errors import ModelError
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.session.compress import INSTRUCTIONS as SUMMARY_INSTRUCTIONS
from bargein.session.turn import Turn
from bargein.testing.simulation.plan import Moment
from bargein.testing.simulation.record import Work

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life

from typing import TYPE_CHECKING

import anyio.lowlevel

from bargein.cancel import Cancelled

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life

from typing import TYPE_CHECKING

from bargein.contracts.model import (
    Text,
    UserMessage,
)

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life

SHORT_SIGHTED = 0.3
CONTEXT_TOKENS = 120
POLICY = RetryPolicy(attempts_max=2, total_s=1000.0)
ASKS_WITH_CALLS_MAX = 2
TITLE_MODEL = "titles"

Move = float | Part | ModelError
"""A pause, a part of the answer, or a failure."""


def simulated_model(life: "Life", turn: Turn) -> RetryingModel:
    """Returns the model for one turn."""
    endpoint = SimulatedEndpoint(life, turn)
    return RetryingModel([endpoint], policy=POLICY, random=lambda: 0.5)


class SimulatedEndpoint:
    """In some sessions its context is so small that they are soon compressed."""

    name = "simulated"
    price = None

    def __init__(self, life: "Life", turn: Turn) -> None:
        short = life.world.chance("context", turn.session) < SHORT_SIGHTED
        self.context_tokens = CONTEXT_TOKENS if short else None
        self.life = life
        self.turn = turn
        self.attempts = 0
        self.failures = 0

    def attempt(self, request: ModelRequest, token: Token) -> "SimulatedAttempt":
        self.attempts += 1
        return SimulatedAttempt(self, request, token, self.attempts)

    async def aclose(self) -> None:
        """Does nothing: nothing is held between requests."""


class SimulatedAttempt:
    def __init__(
        self, endpoint: SimulatedEndpoint, request: ModelRequest, token: Token, number: int
    ) -> None:
        life, turn = endpoint.life, endpoint.turn
        self._life = life
        self._endpoint = endpoint
        self._token = token
        self._work = Work(life.number, turn.session, turn.id, token, "simulated")
        self._moves = _moves(life, turn, number)
        self._closed = False
        self._summarises = request.system == SUMMARY_INSTRUCTIONS
        self.usage = Usage(10, 1)
        if not life.dead:
            life.note("the model is asked by", turn.session, turn.id)
            life.record.attempt_begins(self._work)
            if not self._summarises:
                life.world.check_request(life, turn.session, request)
            life.world.happens(Moment.ASKED, turn.session)
            root, _, below = turn.session.partition("/")
            if below:
                life.world.happens(Moment.BELOW, root)

    async def read(self) -> Sequence[Part]:
        try:
            part = await next_part(self._life, self._moves, self._token)
        except ModelError as error:
            self._note_failure(error)
            raise
        if isinstance(part, EndPart):
            self._endpoint.failures = 0
        if isinstance(part, TextPart) and not self._summarises:
            self._work.said.append(part.text)
            self._life.world.happens(Moment.SAID, self._work.session)
        return [part]

    def _note_failure(self, error: ModelError) -> None:
        work = self._work
        self._life.note("the model fails for", work.session, work.turn)
        self._endpoint.failures += 1
        # The words of a failed attempt are void.
        work.said.clear()
        if not error.retryable or self._endpoint.failures >= POLICY.attempts_max:
            self._life.record.failing.add((work.session, work.turn))

    async def aclose(self) -> None:
        if not self._closed and not self._life.dead:
            self._closed = True
            self._life.record.ends(self._work)


def _moves(life: "Life", turn: Turn, number: int) -> Iterator[Move]:
    rng = life.world.random("model", turn.session, turn.id, number)
    temper = life.world.plan.temper
    fails_at = rng.randrange(4) if rng.random() < temper.fails else None
    stalls_at = rng.randrange(4) if rng.random() < temper.stalls else None
    for place in range(rng.choice((1, 2, 3))):
        if temper.pace_s:
            yield rng.random() * temper.pace_s
        if place == stalls_at:
            yield rng.choice((5.0, 60.0))
        if place == fails_at:
            yield _failure(rng)
        if place == 0 and rng.random() < 0.1:
            yield ReasoningPart("hm", rng.choice((None, "signed")))
        if rng.random() < 0.9:
            yield TextPart(f"{turn.id}.{number}.{place} ")
    calls = 0
    if number <= ASKS_WITH_CALLS_MAX and rng.random() < temper.calls:
        calls = rng.choice((1, 2, 2, 3))
    for call in range(calls):
        # As some providers do, it reuses its ids.
        yield CallPart(call, f"call_{call}", rng.choice(temper.tools))
        yield CallPart(call, arguments="{}")
    if stalls_at == 3:
        yield rng.choice((5.0, 60.0))
    if fails_at == 3:
        yield _failure(rng)
    yield EndPart(StopReason.TOOL_CALLS if calls else StopReason.END)


def _failure(rng: random.Random) -> ModelError:
    return ModelError("simulated: the connection broke", retryable=rng.random() < 0.7)


async def next_part(life: "Life", moves: Iterator[Move], token: Token) -> Part:
    """Returns the next part, after the pauses before it, unless it is cancelled or fails first."""
    for move in moves:
        with token.scope():
            if isinstance(move, float):
                await life.sleep(move)
            else:
                await anyio.lowlevel.checkpoint()
        if token.cancelled:
            raise Cancelled(token)
        if isinstance(move, ModelError):
            raise move
        if not isinstance(move, float):
            return move
    raise AssertionError("an answer was read after its end")


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
        self._moves = _title_moves(life)
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


def _title_moves(life: "Life") -> Iterator[Move]:
    rng = life.world.random("title", life.number, len(life.record.titlings))
    yield rng.choice((0.0, 0.1, 1.0, 1.0, 30.0))
    kind = rng.random()
    if kind < 0.2:
        yield ModelError("simulated: no titles today", retryable=kind < 0.1)
    if kind < 0.8:
        yield TextPart("A simulated title")
        yield rng.choice((0.0, 0.3))
    yield EndPart(StopReason.END)
