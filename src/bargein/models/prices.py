"""The prices of well-known models, in US dollars per million tokens, as their providers list them.

A price is known only for a name that is listed exactly, with or without a date suffix, and only at
the provider's own address: elsewhere the same name may cost something else. Unknown prices are not
guessed. `BARGEIN_PRICE` or `ModelSettings.price` sets a price for any model.

Tokens written to a provider's cache count as ordinary input.
"""

import re
from dataclasses import dataclass

from bargein.contracts.model import Usage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Per million tokens. `cached` is for input from the provider's cache; None: as `input`."""

    input: float
    output: float
    cached: float | None = None

    def of(self, usage: Usage) -> float:
        cached = self.input if self.cached is None else self.cached
        fresh_tokens = usage.input_tokens - usage.cached_input_tokens
        dollars = fresh_tokens * self.input + usage.cached_input_tokens * cached
        return (dollars + usage.output_tokens * self.output) / _MILLION


FREE = Price(0.0, 0.0)

_PRICES = {
    "gpt-5": Price(1.25, 10.0, 0.125),
    "gpt-5-mini": Price(0.25, 2.0, 0.025),
    "gpt-5-nano": Price(0.05, 0.40, 0.005),
    "gpt-4.1": Price(2.0, 8.0, 0.50),
    "gpt-4.1-mini": Price(0.40, 1.60, 0.10),
    "gpt-4.1-nano": Price(0.10, 0.40, 0.025),
    "gpt-4o": Price(2.50, 10.0, 1.25),
    "gpt-4o-mini": Price(0.15, 0.60, 0.075),
    "o3": Price(2.0, 8.0, 0.50),
    "o4-mini": Price(1.10, 4.40, 0.275),
    "claude-opus-4-1": Price(15.0, 75.0, 1.50),
    "claude-opus-4-5": Price(5.0, 25.0, 0.50),
    "claude-sonnet-4": Price(3.0, 15.0, 0.30),
    "claude-sonnet-4-5": Price(3.0, 15.0, 0.30),
    "claude-haiku-4-5": Price(1.0, 5.0, 0.10),
}
_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


def price_of(model: str) -> Price | None:
    """Looks a price up by the model's own name, for requests straight to its provider."""
    name = model.lower()
    return _PRICES.get(name) or _PRICES.get(_DATE.sub("", name))
