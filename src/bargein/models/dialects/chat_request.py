"""A request in the words of OpenAI Chat Completions, and where its imitators differ.

Chat Completions has no place for some things: an image in a tool's result follows as a message of
the user, a failed result says so in its text, and reasoning is left out unless the host is one
that demands it back.
"""

import base64
from dataclasses import dataclass

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
from bargein.models.dialects.schema import (
    LIKE_OPENAI,
    OPENAI,
    Json,
    Provider,
    enforced_schema,
    object_schema,
)


@dataclass(frozen=True, slots=True)
class Quirks:
    """How one host differs from the others."""

    output_limit: str = "max_tokens"
    asks_for_usage: bool = True
    wants_reasoning_back: bool = False
    takes_schemas: bool = True
    schemas: Provider = LIKE_OPENAI


_OF_HOST = {
    "api.openai.com": Quirks(output_limit="max_completion_tokens", schemas=OPENAI),
    "api.mistral.ai": Quirks(asks_for_usage=False),
    "api.deepseek.com": Quirks(wants_reasoning_back=True, takes_schemas=False),
}


def quirks_of(host: str) -> Quirks:
    return _OF_HOST.get(host.partition(":")[0].lower(), Quirks())


def encode_chat(model: str, request: ModelRequest, quirks: Quirks) -> bytes:
    body: Json = {"model": model, "messages": _messages(request, quirks), "stream": True}
    if quirks.asks_for_usage:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if request.output_tokens_max is not None:
        body[quirks.output_limit] = request.output_tokens_max
    if request.temperature is not None:
        body["temperature"] = request.temperature
    asked = object_schema(request.response_schema) if request.response_schema else None
    if asked is not None:
        body["response_format"] = _format(asked, quirks)
    return encode(body)


def _format(asked: Json, quirks: Quirks) -> Json:
    """Some hosts know no schemas: they are asked for an object, and the words of the request say
    which."""
    if not quirks.takes_schemas:
        return {"type": "json_object"}
    enforced = enforced_schema(asked, quirks.schemas)
    named: Json = {"name": "answer", "schema": enforced or asked}
    if enforced is not None:
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}


def _messages(request: ModelRequest, quirks: Quirks) -> list[Json]:
    messages: list[Json] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    for message in request.messages:
        messages.extend(_message(message, quirks))
    return messages


def _message(message: ModelMessage, quirks: Quirks) -> list[Json]:
    match message:
        case UserMessage(content=content):
            return [{"role": "user", "content": _content(content)}] if content else []
        case AssistantMessage():
            said = _assistant(message, quirks)
            return [said] if said is not None else []
        case ToolMessage(results=results):
            said_back: list[Json] = [
                {"role": "tool", "tool_call_id": r.call_id, "content": result_text(r)}
                for r in results
            ]
            images = [(r.call_id, i) for r in results for i in r.content if isinstance(i, Image)]
            if images:
                said_back.append({"role": "user", "content": _result_images(images)})
            return said_back


def _content(content: tuple[Text | Image, ...]) -> str | list[Json]:
    if len(content) == 1 and isinstance(content[0], Text):
        return content[0].text
    return [_piece(piece) for piece in content]


def _piece(piece: Text | Image) -> Json:
    if isinstance(piece, Text):
        return {"type": "text", "text": piece.text}
    return {"type": "image_url", "image_url": {"url": data_url(piece)}}


def _result_images(images: list[tuple[str, Image]]) -> list[Json]:
    pieces: list[Json] = []
    for call_id, image in images:
        pieces.append(_piece(Text(f"Image from the result of {call_id}:")))
        pieces.append(_piece(image))
    return pieces


def _assistant(message: AssistantMessage, quirks: Quirks) -> Json | None:
    text = "".join(p.text for p in message.content if isinstance(p, Text))
    calls = [p for p in message.content if isinstance(p, ToolCall)]
    if not text and not calls:
        return None
    said: Json = {"role": "assistant", "content": text or None}
    if calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    thought = "".join(p.text for p in message.content if isinstance(p, Reasoning))
    if quirks.wants_reasoning_back and thought:
        said["reasoning_content"] = thought
    return said


def result_text(result: ToolResult) -> str:
    """The text of a result for a dialect that cannot say otherwise that it is an error."""
    text = "\n".join(p.text for p in result.content if isinstance(p, Text))
    if not text and any(isinstance(p, Image) for p in result.content):
        text = "(an image, shown next)"
    if result.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"
    return text


def data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode('ascii')}"
