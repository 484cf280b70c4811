"""What requests cost: prices and context sizes of well-known models, and an estimate of tokens.

Prices are in US dollars per million tokens, as the providers list them. A price is known only for a
name that is listed exactly, with or without a date suffix, and only at the provider's own address:
elsewhere the same name may cost something else. Unknown prices are not guessed. `BARGEIN_PRICE` or
`ModelSettings.price` sets a price for any model. Tokens written to a provider's cache count as
ordinary input. A model without a listed context size is unknown, not unlimited.

Until the provider reports the usage, tokens are estimated. Four characters per token is close for
English and code, and too low for most other writing. An image counts as much as providers charge
for one of medium size.
"""

import re
from dataclasses import dataclass

from bargein.contracts.model import (
    Image,
    ModelRequest,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
)

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
LISTED_MODELS = tuple(
    f"{'anthropic' if name.startswith('claude') else 'openai'}:{name}" for name in _PRICES
)
"""The models whose prices are listed, as users name them."""

_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


def price_of(model: str) -> Price | None:
    """Looks a price up by the model's own name, for requests straight to its provider."""
    name = model.lower()
    return _PRICES.get(name) or _PRICES.get(_DATE.sub("", name))


_CONTEXT_TOKENS = (
    ("gpt-5", 272_000),
    ("gpt-4.1", 1_000_000),
    ("gpt-4o", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("claude-", 200_000),
    ("deepseek-", 128_000),
)


def context_tokens_of(model: str) -> int | None:
    """Looks a model up by the beginning of its name; ignores a prefix such as `openai/`."""
    name = model.rpartition("/")[2].lower()
    return next((tokens for start, tokens in _CONTEXT_TOKENS if name.startswith(start)), None)


CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1000


def tokens_of(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def input_chars(request: ModelRequest) -> int:
    """Counts the characters of a request; an image counts as the characters of its tokens."""
    chars = len(request.system)
    for tool in request.tools:
        chars += len(tool.name) + len(tool.description) + len(bytes(tool.parameters))
    for message in request.messages:
        pieces = message.results if isinstance(message, ToolMessage) else message.content
        for piece in pieces:
            if isinstance(piece, ToolResult):
                chars += sum(_chars(inner) for inner in piece.content)
            elif isinstance(piece, Text | Image):
                chars += _chars(piece)
            elif isinstance(piece, ToolCall):
                chars += len(piece.name) + len(piece.arguments)
            else:
                chars += len(piece.text)
    return chars


def _chars(piece: Text | Image) -> int:
    return len(piece.text) if isinstance(piece, Text) else IMAGE_TOKENS * CHARS_PER_TOKEN
