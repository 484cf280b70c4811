"""What a turn, a session or a sub-agent may use, and what it has used. Plain data.

A step is one model request or one tool call. Tokens are what was read and what was written, cached
or not. Cost is in US dollars, by the prices of the models that were asked; of a model whose price
is not known no cost is guessed, so that the sum is then not known either.
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
    """Whose budget it is. A sub-agent is a session: its budget is that of its turn."""

    TURN = "turn"
    SESSION = "session"


class Purpose(StrEnum):
    """What a model was asked for."""

    ANSWER = "answer"
    SUMMARY = "summary"
    TITLE = "title"
    CHILD = "child"
    """A sub-agent: all that it has asked, told when it is over."""


class Budget(Value, frozen=True):
    """None is without a bound. `time_s` ends what is in flight when it is over; the others are
    looked at between two steps, so that nothing is cut, and the last step may go beyond."""

    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    time_s: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: float | None = getattr(self, name)
            # Written so that `nan`, which compares false with everything, is refused too.
            if value is not None and not value > 0:
                raise ValueError(f"a budget of {value} {name} is none; give more than 0, or None")


class Spent(Value, frozen=True):
    """`estimated`: some of the tokens are our own count, because the provider had not told.
    `priced` is the cost of the requests whose price is known, `unpriced` how many others there
    were. `time_s` is that of turns alone."""

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
        """None if the price of a model that was asked is not known."""
        return None if self.unpriced else self.priced

    def with_request(self, usage: Usage) -> "Spent":
        """One more request to a model, which was a step. One that never reached anybody has cost
        nothing, whatever the price."""
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

    def with_call(self) -> "Spent":
        return msgspec.structs.replace(self, steps=self.steps + 1)

    def with_time(self, seconds: float) -> "Spent":
        return msgspec.structs.replace(self, time_s=self.time_s + seconds)

    def since(self, before: "Spent") -> "Spent":
        """What was spent after `before`, which is an earlier state of the same account."""
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
