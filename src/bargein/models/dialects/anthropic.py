"""Anthropic Messages: numbered blocks that start, grow and stop.

`input_tokens` is changed to mean the same as everywhere else: all tokens read, from the cache or
not. Signatures of reasoning are marked as this dialect's, so that no other provider gets them.
"""

import msgspec

from bargein.contracts.model import ModelRequest, Part, ReasoningPart, StopReason, Usage
from bargein.models.dialects import Decoder
from bargein.models.dialects.answer import AnswerDecoder
from bargein.models.dialects.anthropic_request import (
    REDACTED_MARK,
    THINKING_MARK,
    encode_anthropic,
)
from bargein.models.dialects.faults import ErrorObject, fault_of
from bargein.models.dialects.json import decode
from bargein.models.errors import Secret

VERSION = "2023-06-01"


class AnthropicDialect:
    name = "anthropic"
    path = "/v1/messages"
    url_variable = "ANTHROPIC_BASE_URL"
    key_variable = "ANTHROPIC_API_KEY"

    def headers(self, key: Secret | None) -> dict[str, str]:
        headers = {"anthropic-version": VERSION}
        if key:
            headers["x-api-key"] = key.reveal()
        return headers

    def encode(self, model: str, request: ModelRequest) -> bytes:
        return encode_anthropic(model, request)

    def decoder(self) -> Decoder:
        return AnthropicDecoder()


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


_events = msgspec.json.Decoder(_Event, strict=False)

_STOPS = {
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.END,
    "tool_use": StopReason.TOOL_CALLS,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "refusal": StopReason.REFUSED,
}


class AnthropicDecoder(AnswerDecoder):
    """One per answer."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = _Usage()
        self._call_of_block: dict[int, int] = {}

    def feed(self, data: bytes, out: list[Part]) -> None:
        if data.startswith(b"[DONE]"):
            self.done = True
            return
        event = decode(_events, data)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._delta(event.index, event.delta, out)
            case "content_block_start" if event.content_block is not None:
                self._start(event.index, event.content_block, out)
            case "message_start" if event.message is not None and event.message.usage is not None:
                self._take_usage(event.message.usage)
            case "message_delta":
                if event.delta is not None and event.delta.stop_reason:
                    self.stop = _STOPS.get(event.delta.stop_reason, StopReason.OTHER)
                    self.finished = True
                if event.usage is not None:
                    self._take_usage(event.usage)
            case "message_stop":
                self.finished = self.done = True
            case _:
                if event.error:
                    raise fault_of(event.error)

    def _delta(self, index: int, delta: _Delta, out: list[Part]) -> None:
        if delta.text:
            self.text(delta.text, out)
        elif delta.partial_json:
            # The other blocks belong to tools that the provider runs itself.
            number = self._call_of_block.get(index)
            if number is not None:
                self.continue_call(number, delta.partial_json, out)
        elif delta.thinking:
            self.thought(delta.thinking, out)
        elif delta.signature:
            out.append(ReasoningPart("", THINKING_MARK + delta.signature))

    def _start(self, index: int, block: _Block, out: list[Part]) -> None:
        match block.type:
            case "tool_use":
                arguments = msgspec.json.encode(block.input).decode() if block.input else ""
                call_id = block.id or f"call_{len(self.call_ids)}"
                number = self.begin_call(call_id, block.name or "", arguments, out)
                self._call_of_block[index] = number
            case "text" if block.text:
                self.text(block.text, out)
            case "thinking" if block.thinking:
                self.thought(block.thinking, out)
            case "redacted_thinking" if block.data:
                out.append(ReasoningPart("", REDACTED_MARK + block.data))
            case _:
                pass

    def _take_usage(self, usage: _Usage) -> None:
        # Later counts replace earlier ones, field by field; a missing field keeps its value.
        kept = self._counts
        for name in usage.__struct_fields__:
            value = getattr(usage, name)
            if value is not None:
                setattr(kept, name, value)
        cached = kept.cache_read_input_tokens or 0
        written = kept.cache_creation_input_tokens or 0
        self.usage = Usage(
            input_tokens=(kept.input_tokens or 0) + cached + written,
            output_tokens=kept.output_tokens or 0,
            cached_input_tokens=cached,
        )
