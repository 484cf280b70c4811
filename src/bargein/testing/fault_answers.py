"""Writes answers as providers do: the events of each dialect for a given sequence of parts.

This is the inverse of the decoders, so a test knows in advance what a client should understand. A
sequence ends in `EndPart`, preceded by `UsagePart` if the provider reports usage.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from bargein.contracts.model import (
    CallPart,
    EndPart,
    Part,
    ReasoningPart,
    StopReason,
    TextPart,
    Usage,
    UsagePart,
)

Json = dict[str, object]
DIALECTS = ("openai", "openai-responses", "anthropic")
HELLO: tuple[Part, ...] = (
    TextPart("Hel"),
    TextPart("lo, "),
    TextPart("wörld"),
    UsagePart(Usage(input_tokens=11, output_tokens=3)),
    EndPart(StopReason.END),
)


def events_of(dialect: str, parts: Sequence[Part] = HELLO) -> list[bytes]:
    """Returns the events of a whole answer, each with its final blank line."""
    return _WRITERS[dialect](parts)


def dialect_of(path: str) -> str:
    """Returns the dialect that belongs to the end of a path."""
    if path.endswith("/responses"):
        return "openai-responses"
    return "anthropic" if path.endswith("/messages") else "openai"


def event(data: Json | str, name: str = "") -> bytes:
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def _usage_in(parts: Iterable[Part]) -> Usage | None:
    return next((part.usage for part in parts if isinstance(part, UsagePart)), None)


def _chat(parts: Sequence[Part]) -> list[bytes]:
    events = [_chat_chunk({"role": "assistant", "content": ""})]
    stops = {
        StopReason.END: "stop",
        StopReason.TOOL_CALLS: "tool_calls",
        StopReason.LENGTH: "length",
        StopReason.REFUSED: "content_filter",
    }
    for part in parts:
        match part:
            case TextPart(text=text):
                events.append(_chat_chunk({"content": text}))
            case ReasoningPart(text=text):
                events.append(_chat_chunk({"reasoning_content": text}))
            case CallPart():
                events.append(_chat_chunk({"tool_calls": [_chat_call(part)]}))
            case EndPart(stop=stop):
                events.append(_chat_chunk({}, stops.get(stop, "other")))
            case _:
                pass
    usage = _usage_in(parts)
    if usage is not None:
        counts: Json = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        }
        events.append(event({"id": "chatcmpl-1", "choices": [], "usage": counts}))
    if isinstance(parts[-1], EndPart):
        events.append(event("[DONE]"))
    return events


def _chat_chunk(delta: Json, finish: str | None = None) -> bytes:
    choice: Json = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    )


def _chat_call(part: CallPart) -> Json:
    if not part.id:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}


def _anthropic(parts: Sequence[Part]) -> list[bytes]:
    usage = _usage_in(parts) or Usage()
    read: Json = {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": 1,
    }
    events = [_named({"type": "message_start", "message": {"role": "assistant", "usage": read}})]
    events.append(_named({"type": "ping"}))
    stops = {
        StopReason.END: "end_turn",
        StopReason.TOOL_CALLS: "tool_use",
        StopReason.LENGTH: "max_tokens",
        StopReason.REFUSED: "refusal",
    }
    blocks = _Blocks()
    for part in parts:
        match part:
            case TextPart(text=text):
                events += blocks.delta("text", {"text": ""}, {"type": "text_delta", "text": text})
            case ReasoningPart(text=text, signature=signature):
                delta: Json = {"type": "thinking_delta", "thinking": text}
                if signature is not None:
                    proof = signature.removeprefix("anthropic:")
                    delta = {"type": "signature_delta", "signature": proof}
                events += blocks.delta("thinking", {"thinking": ""}, delta)
            case CallPart():
                start: Json = {"id": part.id, "name": part.name, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": part.arguments}
                events += blocks.delta(f"tool_use {part.index}", start, delta)
            case EndPart(stop=stop):
                events += blocks.stop()
                told: Json = {"stop_reason": stops.get(stop, "other"), "stop_sequence": None}
                wrote: Json = {"output_tokens": usage.output_tokens}
                events.append(_named({"type": "message_delta", "delta": told, "usage": wrote}))
                events.append(_named({"type": "message_stop"}))
            case _:
                pass
    return events


class _Blocks:
    """Starts and stops the numbered blocks of Anthropic Messages."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""

    def delta(self, kind: str, start: Json, delta: Json) -> list[bytes]:
        events: list[bytes] = []
        if kind != self._kind:
            events += self.stop()
            self._index += 1
            self._kind = kind
            block: Json = {"type": kind.partition(" ")[0], **start}
            events.append(self._event("content_block_start", {"content_block": block}))
        events.append(self._event("content_block_delta", {"delta": delta}))
        return events

    def stop(self) -> list[bytes]:
        if not self._kind:
            return []
        self._kind = ""
        return [self._event("content_block_stop", {})]

    def _event(self, kind: str, fields: Json) -> bytes:
        return _named({"type": kind, "index": self._index, **fields})


def _named(data: Json) -> bytes:
    return event(data, str(data["type"]))


def _responses(parts: Sequence[Part]) -> list[bytes]:
    events = [_named({"type": "response.created", "response": {"status": "in_progress"}})]
    message: Json = {"type": "message", "role": "assistant", "content": []}
    events.append(
        _named({"type": "response.output_item.added", "output_index": 0, "item": message})
    )
    for part in parts:
        match part:
            case TextPart(text=text):
                kind = "response.output_text.delta"
                events.append(_named({"type": kind, "output_index": 0, "delta": text}))
            case ReasoningPart(text=text, signature=None):
                kind = "response.reasoning_summary_text.delta"
                events.append(_named({"type": kind, "output_index": 1, "delta": text}))
            case ReasoningPart(signature=str() as signature):
                item_id, _, cipher = signature.removeprefix("openai-responses:").partition(":")
                item: Json = {"type": "reasoning", "id": item_id, "encrypted_content": cipher}
                kind = "response.output_item.done"
                events.append(_named({"type": kind, "output_index": 1, "item": item}))
            case CallPart():
                events += _responses_call(part)
            case EndPart(stop=stop):
                events.append(_responses_end(stop, _usage_in(parts)))
            case _:
                pass
    return events


def _responses_call(part: CallPart) -> list[bytes]:
    events: list[bytes] = []
    index = part.index + 2
    if part.id:
        item: Json = {"type": "function_call", "id": f"fc_{part.index}", "call_id": part.id}
        item |= {"name": part.name, "arguments": ""}
        kind = "response.output_item.added"
        events.append(_named({"type": kind, "output_index": index, "item": item}))
    if part.arguments:
        kind = "response.function_call_arguments.delta"
        events.append(_named({"type": kind, "output_index": index, "delta": part.arguments}))
    return events


def _responses_end(stop: StopReason, usage: Usage | None) -> bytes:
    reasons = {StopReason.LENGTH: "max_output_tokens", StopReason.REFUSED: "content_filter"}
    response: Json = {"status": "completed", "error": None}
    if usage is not None:
        response["usage"] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        }
    kind = "response.completed"
    if stop in reasons:
        kind = "response.incomplete"
        response |= {"status": "incomplete", "incomplete_details": {"reason": reasons[stop]}}
    return _named({"type": kind, "response": response})


_WRITERS: dict[str, Callable[[Sequence[Part]], list[bytes]]] = {
    "openai": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
}
