"""Requests to a model and its answers. Plain data and one Protocol; no I/O.

A model has one method: `open(request, token)` returns an async context manager whose value streams
parts. Every implementation keeps this contract:

- Leaving the block, or a cancel of `token`, ends the request at once: its connection is closed
  before `open` is left, and nothing of the request outlives it.
- A cancel of `token` comes out of the iteration as `Cancelled` carrying that token. The model does
  not retry it, does not fall back, and does not turn it into an error or a `RetryingPart`.
- The model retries faults of the network or the provider within its own budget and yields a
  `RetryingPart` for each. When the budget is used up it raises `ModelError`. Once an attempt has
  yielded content it is never repeated silently: the `RetryingPart` tells the reader to drop the
  content of that attempt.
- `stream.usage` may be read at any time, also after a cancel. It is marked as estimated until the
  provider reports the figures.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

import msgspec

from bargein.cancel import Token
from bargein.contracts.value import Value
from bargein.errors import WorldError


class ContextExceeded(WorldError):
    """The provider reports that the request is longer than the model's context."""


class Text(Value, frozen=True, tag="text"):
    text: str


class Image(Value, frozen=True, tag="image"):
    """An image's bytes and media type; in JSON the bytes are base64."""

    media_type: str
    data: bytes


class Reasoning(Value, frozen=True, tag="reasoning"):
    """The model's reasoning. `signature` is the provider's opaque proof. A provider that demands
    one is never sent the part without it."""

    text: str
    signature: str | None = None


class ToolCall(Value, frozen=True, tag="tool_call"):
    """A complete call. `arguments` is the JSON text as the model wrote it, valid or not."""

    id: str
    name: str
    arguments: str


class ToolResult(Value, frozen=True, tag="tool_result"):
    call_id: str
    content: tuple[Text | Image, ...]
    is_error: bool = False


class UserMessage(Value, frozen=True, tag="user"):
    content: tuple[Text | Image, ...]


class AssistantMessage(Value, frozen=True, tag="assistant"):
    content: tuple[Text | Reasoning | ToolCall, ...]


class ToolMessage(Value, frozen=True, tag="tool"):
    """The results of the calls in the assistant message before it, one for each call."""

    results: tuple[ToolResult, ...]


ModelMessage = UserMessage | AssistantMessage | ToolMessage


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool as the model sees it; `parameters` is the JSON text of a JSON Schema object."""

    name: str
    description: str
    parameters: msgspec.Raw


class ModelRequest(msgspec.Struct, frozen=True):
    messages: tuple[ModelMessage, ...]
    system: str = ""
    tools: tuple[ToolSchema, ...] = ()
    output_tokens_max: int | None = None
    temperature: float | None = None
    response_schema: msgspec.Raw | None = None


class Usage(Value, frozen=True):
    """`input_tokens` includes the cached ones. `cost` is in US dollars, or None if the model's
    price is not known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    estimated: bool = False
    cost: float | None = None


class StopReason(StrEnum):
    """Why the provider stopped generating."""

    END = "end"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    REFUSED = "refused"
    OTHER = "other"


class TextPart(Value, frozen=True, tag="text"):
    text: str


class ReasoningPart(Value, frozen=True, tag="reasoning"):
    """A piece of reasoning. If there is a `signature`, the last piece has it."""

    text: str
    signature: str | None = None


class CallPart(Value, frozen=True, tag="call"):
    """A piece of a tool call. Pieces with the same `index` belong together; the first has `id` and
    `name`. A call is complete only once `EndPart` has arrived."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class UsagePart(Value, frozen=True, tag="usage"):
    usage: Usage


class RetryingPart(Value, frozen=True, tag="retrying"):
    """The attempt failed and another follows after `delay_s`. The reader drops everything the
    failed attempt yielded. `model` is the model that is asked next; it differs from the one that
    failed when falling back."""

    attempt: int
    delay_s: float
    cause: str
    model: str


class EndPart(Value, frozen=True, tag="end"):
    stop: StopReason


Part = TextPart | ReasoningPart | CallPart | UsagePart | RetryingPart | EndPart


class ModelStream(Protocol):
    """The open answer of a model."""

    @property
    def usage(self) -> Usage: ...

    def __aiter__(self) -> AsyncIterator[Part]: ...


class Model(Protocol):
    @property
    def name(self) -> str:
        """The name as the user writes it, for example `openai:gpt-5`."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """The size of the model's context, if known."""
        ...

    def open(
        self, request: ModelRequest, token: Token
    ) -> AbstractAsyncContextManager[ModelStream]: ...

    async def aclose(self) -> None:
        """Release what the model keeps between requests, such as connections. Bounded; may be
        called twice."""
        ...
