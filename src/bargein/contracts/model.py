"""What a model is asked and what it answers. Plain data and one Protocol; no I/O.

A model is one method: `open(request, token)` gives an async context manager whose value streams
parts. Contract of every implementation:

- Leaving the block, or a cancel of `token`, ends the request at once: its connection is closed
  before `open` is left, and nothing of the request outlives it.
- A cancel of `token` comes out of the iteration as `Cancelled` carrying that token. It is never
  retried, never falls back and never becomes an error or a `Retrying` part.
- A fault of the world is retried within the model's own budget, shown as `Retrying` parts, and
  at the end raised as `ModelError`. After a part with content has been yielded the attempt is not
  silently repeated: a `Retrying` part tells the reader to drop what that attempt had said.
- `stream.usage` may be read at any time, also after a cancel; it is marked as estimated while the
  provider has not said.
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
    """The provider says that the request is longer than the model can read."""


class Text(Value, frozen=True, tag="text"):
    text: str


class Image(Value, frozen=True, tag="image"):
    """Bytes of an image, with their type; encoded as base64 in JSON."""

    media_type: str
    data: bytes


class Reasoning(Value, frozen=True, tag="reasoning"):
    """What the model thought. `signature` is the provider's opaque proof; without it the part
    is never sent back to a provider that demands one."""

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
    """Results of the calls of the assistant message before it, one each."""

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
    """`input_tokens` has the cached ones in it. `cost` is in US dollars; None if the price of the
    model is not known."""

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
    """A piece of reasoning; `signature` comes with the last piece, if at all."""

    text: str
    signature: str | None = None


class CallPart(Value, frozen=True, tag="call"):
    """A piece of a tool call. Pieces with the same `index` belong together; the first one has
    `id` and `name`. A call is complete only when `EndPart` has come."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class UsagePart(Value, frozen=True, tag="usage"):
    usage: Usage


class RetryingPart(Value, frozen=True, tag="retrying"):
    """The attempt failed and another follows after `delay_s`. What the failed attempt has said
    is void: the reader drops it. `model` is the one that will be asked, which differs from the
    failed one when falling back."""

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
        """As the user writes it, for example `openai:gpt-5`."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """How much the model can read, if known."""
        ...

    def open(
        self, request: ModelRequest, token: Token
    ) -> AbstractAsyncContextManager[ModelStream]: ...

    async def aclose(self) -> None:
        """Release what the model holds between requests. Bounded; may be called twice."""
        ...
