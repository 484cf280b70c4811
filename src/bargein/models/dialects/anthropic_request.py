"""A request in the words of Anthropic Messages.

Messages alternate between two roles, so neighbours of one role are joined; results of tools come
first in their message. Only reasoning that this dialect signed is sent back. Two marks ask for the
prompt cache, after the fixed part and after the last message, which halves the price of a loop.
A schema for the answer is sent where it is taken: newer models take closed schemas, without limits.
Elsewhere the words of the request ask for it.
"""

import base64
import re

import msgspec

from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.models.dialects.json import encode
from bargein.models.dialects.schema import ANTHROPIC, Json, enforced_schema, object_schema

THINKING_MARK = "anthropic:"
REDACTED_MARK = "anthropic-redacted:"
OUTPUT_TOKENS_DEFAULT = 8192

_CACHE: Json = {"type": "ephemeral"}
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def encode_anthropic(model: str, request: ModelRequest) -> bytes:
    body: Json = {
        "model": model,
        "max_tokens": request.output_tokens_max or OUTPUT_TOKENS_DEFAULT,
        "messages": _messages(request.messages),
        "stream": True,
    }
    if request.tools:
        tools: list[Json] = [
            {"name": t.name, "description": t.description, "input_schema": t.parameters}
            for t in request.tools
        ]
        if not request.system:
            tools[-1]["cache_control"] = _CACHE
        body["tools"] = tools
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE}]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    schema = _schema(model, request.response_schema) if request.response_schema else None
    if schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return encode(body)


_BEFORE_SCHEMAS = re.compile(r"claude-(instant|2|3|(sonnet|opus)-4(-0|-2025|@|$))")


def _schema(model: str, schema: msgspec.Raw) -> Json | None:
    """Returns the schema as the provider takes it; None if it takes none like this from this model.
    One that it does not take would fail the request."""
    asked = object_schema(schema)
    if asked is None or _BEFORE_SCHEMAS.search(model) is not None:
        return None
    return enforced_schema(asked, ANTHROPIC)


def _messages(messages: tuple[ModelMessage, ...]) -> list[Json]:
    joined: list[tuple[str, list[Json]]] = []
    for message in messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if joined and joined[-1][0] == role:
            joined[-1][1].extend(blocks)
        else:
            joined.append((role, blocks))
    if joined and joined[-1][1][-1]["type"] in ("text", "image", "tool_result"):
        joined[-1][1][-1]["cache_control"] = _CACHE
    return [{"role": role, "content": blocks} for role, blocks in joined]


def _blocks(message: ModelMessage) -> list[Json]:
    match message:
        case UserMessage(content=content):
            return _content(content)
        case AssistantMessage(content=content):
            return [block for piece in content if (block := _said(piece)) is not None]
        case ToolMessage(results=results):
            return [_result(result) for result in results]


def _content(content: tuple[Text | Image, ...]) -> list[Json]:
    blocks: list[Json] = []
    for piece in content:
        if isinstance(piece, Image):
            data = base64.b64encode(piece.data).decode("ascii")
            source = {"type": "base64", "media_type": piece.media_type, "data": data}
            blocks.append({"type": "image", "source": source})
        elif piece.text.strip():
            blocks.append({"type": "text", "text": piece.text})
    return blocks


def _said(piece: Text | Reasoning | ToolCall) -> Json | None:
    match piece:
        case Text(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case ToolCall():
            return {
                "type": "tool_use",
                "id": _id(piece.id),
                "name": piece.name,
                "input": _input(piece.arguments),
            }
        case Reasoning(text=text, signature=signature):
            if signature is None:
                return None
            if signature.startswith(REDACTED_MARK):
                data = signature.removeprefix(REDACTED_MARK)
                return {"type": "redacted_thinking", "data": data}
            if signature.startswith(THINKING_MARK):
                proof = signature.removeprefix(THINKING_MARK)
                return {"type": "thinking", "thinking": text, "signature": proof}
            return None


def _result(result: ToolResult) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": _id(result.call_id)}
    content = _content(result.content)
    if content:
        block["content"] = content
    if result.is_error:
        block["is_error"] = True
    return block


def _id(call_id: str) -> str:
    """The id in the only characters that are accepted; calls made elsewhere may have others."""
    return _NOT_IN_ID.sub("_", call_id)


def _input(arguments: str) -> msgspec.Raw | Json:
    """The arguments as an object, which is all that is accepted; the model sees what it wrote."""
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return msgspec.Raw(arguments.encode("utf-8", "replace"))
    except (msgspec.DecodeError, UnicodeError):
        pass
    return {"arguments_that_were_not_a_json_object": arguments}
