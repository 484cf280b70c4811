"""Budgets of turns, sessions and sub-agents, and what they have used. Plain data.

A step is one model request or one tool call. Tokens are input plus output, cached or not. Cost is
in US dollars, by the prices of the models that were asked. If the price of one of them is not
known, the total is not known either: nothing is guessed.
"""

from enum import StrEnum

import msgspec

from bargein.contracts.model import Usage
from bargein.contracts.value import Value

__all__ = [
    "Budget",
    "BudgetKind",
    "BudgetScope",
    "Purpose",
    "Spent",
]


class BudgetKind(StrEnum):
    STEPS = "steps"
    TOKENS = "tokens"
    COST = "cost"
    TIME = "time"


class BudgetScope(StrEnum):
    """Whose budget it is. A sub-agent is a session with one turn; its budget is that turn's."""

    TURN = "turn"
    SESSION = "session"


class Purpose(StrEnum):
    """Why a model was asked."""

    ANSWER = "answer"
    SUMMARY = "summary"
    TITLE = "title"
    SIDE = "side"
    """A side question."""
    CHILD = "child"
    """All requests of a sub-agent, reported when it has ended."""


class Budget(Value, frozen=True):
    """None means no bound. When `time_s` is over, work in flight is stopped. The others are checked
    between two steps: no step is cut off, and the last one may exceed the budget."""

    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    time_s: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: float | None = getattr(self, name)
            # Not `value <= 0`: `nan` compares false with everything and must be refused too.
            if value is not None and not value > 0:
                raise ValueError(
                    f"the budget {name}={value} allows nothing; give more than 0, or None for no "
                    "bound"
                )


class Spent(Value, frozen=True):
    """`estimated`: some token counts are our own, because the provider did not report them.
    `priced` is the cost of the requests whose price is known; `unpriced` counts the others.
    `time_s` is the time spent in turns."""

    steps: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    priced: float = 0.0
    unpriced: int = 0
    time_s: float = 0.0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cost(self) -> float | None:
        """The total cost, or None if a model's price is not known."""
        return None if self.unpriced else self.priced

    def with_request(self, usage: Usage) -> "Spent":
        """Add a model request, which is one step. A request without tokens never reached the
        provider and costs nothing, even if the price is not known."""
        used = bool(usage.input_tokens or usage.output_tokens)
        return msgspec.structs.replace(
            self,
            steps=self.steps + 1,
            requests=self.requests + 1,
            input_tokens=self.input_tokens + usage.input_tokens,
            output_tokens=self.output_tokens + usage.output_tokens,
            cached_input_tokens=self.cached_input_tokens + usage.cached_input_tokens,
            priced=self.priced + (usage.cost or 0.0),
            unpriced=self.unpriced + (used and usage.cost is None),
            estimated=self.estimated or usage.estimated,
        )

    @property
    def usage(self) -> Usage:
        """The same as the usage of one request."""
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.estimated,
            self.cost,
        )

    def with_call(self) -> "Spent":
        return msgspec.structs.replace(self, steps=self.steps + 1)

    def with_time(self, seconds: float) -> "Spent":
        return msgspec.structs.replace(self, time_s=self.time_s + seconds)

    def plus(self, other: "Spent") -> "Spent":
        return Spent(
            steps=self.steps + other.steps,
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            priced=self.priced + other.priced,
            unpriced=self.unpriced + other.unpriced,
            time_s=self.time_s + other.time_s,
            estimated=self.estimated or other.estimated,
        )

    def since(self, before: "Spent") -> "Spent":
        """Return what was spent after `before`, an earlier state of the same account."""
        return Spent(
            steps=self.steps - before.steps,
            requests=self.requests - before.requests,
            input_tokens=self.input_tokens - before.input_tokens,
            output_tokens=self.output_tokens - before.output_tokens,
            cached_input_tokens=self.cached_input_tokens - before.cached_input_tokens,
            priced=self.priced - before.priced,
            unpriced=self.unpriced - before.unpriced,
            time_s=self.time_s - before.time_s,
            estimated=self.estimated,
        )
