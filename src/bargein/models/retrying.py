"""A model made of endpoints: attempts, waits, retries, falls back, and reports each retry.

Written with anyio, so that the same code runs in the simulation. Cancelling the request's token
ends whatever is under way (a read, a delay, the moment between two attempts) and raises
`Cancelled`; nothing is attempted afterwards. An attempt's error counts only if that token is not
cancelled, because a cancel is not an error.
"""

import random as random_module
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

import anyio
import msgspec

from bargein.cancel import Cancelled, Token
from bargein.contracts.model import (
    EndPart,
    ModelRequest,
    Part,
    RetryingPart,
    Usage,
    UsagePart,
)
from bargein.models.costs import Price
from bargein.models.endpoint import Attempt, Endpoint
from bargein.models.errors import ModelError
from bargein.models.retry import Again, GiveUp, RetryPolicy, decide


class RetryingModel:
    """A `Model`. Asks the endpoints in order. Tests may replace `sleep` and `random`."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        if not endpoints:
            raise ValueError("a model needs at least one endpoint")
        self.endpoints = tuple(endpoints)
        self.policy = policy or RetryPolicy()
        self._sleep = sleep
        self._random = random

    @property
    def name(self) -> str:
        return ",".join(endpoint.name for endpoint in self.endpoints)

    @property
    def context_tokens(self) -> int | None:
        """The smallest known size: what fits there fits wherever the request ends up."""
        known = [e.context_tokens for e in self.endpoints if e.context_tokens is not None]
        return min(known, default=None)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The names of endpoints without a known price."""
        return tuple(e.name for e in self.endpoints if e.price is None)

    def open(self, request: ModelRequest, token: Token) -> "RetryingStream":
        return RetryingStream(self, request, token)

    async def aclose(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class RetryingStream:
    """An open answer: a context manager and an iterator, for one task."""

    def __init__(self, model: RetryingModel, request: ModelRequest, token: Token) -> None:
        self._model = model
        self._request = request
        self._token = token
        self._attempt: Attempt | None = None
        self._ready: deque[Part] = deque()
        self._ended = False
        self._endpoint = 0
        self._attempts = 0
        self._failures = 0
        self._tried: list[str] = []
        self._delay_s = 0.0
        self._opened_at = token.clock.now()
        self._spent = Usage()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        self._ready.clear()
        await self._close_attempt()

    @property
    def usage(self) -> Usage:
        """The cost of all attempts so far."""
        if self._attempt is None:
            return self._spent
        return _sum(self._spent, self._priced(self._attempt.usage))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Part:
        if self._token.cancelled:
            raise Cancelled(self._token)
        if not self._ready:
            if self._ended:
                raise StopAsyncIteration
            await self._fill()
        return self._ready.popleft()

    async def _fill(self) -> None:
        if self._delay_s:
            with self._token.scope():
                await self._model._sleep(self._delay_s)
            self._token.check()
            self._delay_s = 0.0
        if self._attempt is None:
            self._attempts += 1
            endpoint = self._model.endpoints[self._endpoint]
            self._attempt = endpoint.attempt(self._request, self._token)
        try:
            parts = await self._attempt.read()
        except ModelError as error:
            failure = error
        else:
            self._token.check()
            if self._attempts > 1 or self._price is not None:
                parts = [self._in_all(p) if isinstance(p, UsagePart) else p for p in parts]
            self._ready.extend(parts)
            if isinstance(parts[-1], EndPart):
                self._ended = True
                await self._close_attempt()
            return
        # Outside the handler, so that no later error has this one as its context.
        self._token.check()
        await self._close_attempt()
        self._token.check()
        self._ready.append(self._after(failure))

    def _in_all(self, part: UsagePart) -> UsagePart:
        return UsagePart(_sum(self._spent, self._priced(part.usage)))

    async def _close_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            try:
                await attempt.aclose()
            finally:
                self._spent = _sum(self._spent, self._priced(attempt.usage))

    @property
    def _price(self) -> Price | None:
        return self._model.endpoints[self._endpoint].price

    def _priced(self, usage: Usage) -> Usage:
        price = self._price
        if price is None or not _is_used(usage):
            return usage
        return msgspec.structs.replace(usage, cost=price.of(usage))

    def _after(self, error: ModelError) -> RetryingPart:
        """Decides what follows a failure: returns the part that reports it, or raises the error."""
        endpoints = self._model.endpoints
        self._failures += 1
        step = decide(
            self._model.policy,
            error,
            failures=self._failures,
            elapsed_s=self._token.clock.now() - self._opened_at,
            has_next=self._endpoint + 1 < len(endpoints),
            random=self._model._random,
        )
        if isinstance(step, GiveUp):
            self._ended = True
            error.tried = tuple(self._tried)
            raise error
        cause = str(error)
        self._tried.append(cause)
        if isinstance(step, Again):
            self._delay_s = step.delay_s
        else:
            self._endpoint += 1
            self._failures = 0
        return RetryingPart(
            attempt=self._attempts + 1,
            delay_s=self._delay_s,
            cause=cause,
            model=endpoints[self._endpoint].name,
        )


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_input_tokens=one.cached_input_tokens + other.cached_input_tokens,
        estimated=one.estimated or other.estimated,
        cost=_cost(one, other),
    )


def _is_used(usage: Usage) -> bool:
    return bool(usage.input_tokens or usage.output_tokens)


def _cost(*usages: Usage) -> float | None:
    """Returns the total cost if each cost is known. Unused requests cost nothing."""
    costs = [usage.cost for usage in usages if _is_used(usage)]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if costs and len(known) == len(costs) else None
