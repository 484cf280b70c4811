"""Adapts a request to what a local model can use.

A model that was not trained for tools gets none, because it would only imitate the syntax. Tool
calls and results of another model, already in the conversation, become text. Images that it cannot
see become a remark.
"""

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
from bargein.models.local.handshake import Facts

RESULT_CHARS_MAX = 2000


def fit(request: ModelRequest, facts: Facts) -> tuple[ModelRequest, tuple[str, ...]]:
    """Returns the request for this model, and words for what was left out."""
    left_out = []
    messages = request.messages
    if not facts.sees_images and any(map(_has_image, messages)):
        messages = tuple(_without_images(message) for message in messages)
        left_out.append("images")
    if not facts.reads_tools:
        messages = tuple(_as_text(message) for message in messages)
        if request.tools:
            request = msgspec.structs.replace(request, tools=())
            left_out.append("tools")
    return msgspec.structs.replace(request, messages=messages), tuple(left_out)


def _has_image(message: ModelMessage) -> bool:
    match message:
        case UserMessage(content=content):
            return any(isinstance(piece, Image) for piece in content)
        case ToolMessage(results=results):
            return any(isinstance(piece, Image) for result in results for piece in result.content)
        case AssistantMessage():
            return False


def _without_images(message: ModelMessage) -> ModelMessage:
    match message:
        case UserMessage(content=content):
            return UserMessage(_seen(content))
        case ToolMessage(results=results):
            return ToolMessage(
                tuple(
                    msgspec.structs.replace(result, content=_seen(result.content))
                    for result in results
                )
            )
        case AssistantMessage():
            return message


def _seen(content: tuple[Text | Image, ...]) -> tuple[Text | Image, ...]:
    if not any(isinstance(piece, Image) for piece in content):
        return content
    texts = [
        piece.text if isinstance(piece, Text) else "(an image, which you cannot see)"
        for piece in content
    ]
    return (Text("\n".join(texts)),)


def _as_text(message: ModelMessage) -> ModelMessage:
    match message:
        case AssistantMessage(content=content):
            return AssistantMessage(tuple(_said(piece) for piece in content))
        case ToolMessage(results=results):
            return UserMessage(tuple(piece for result in results for piece in _told(result)))
        case UserMessage():
            return message


def _said(piece: Text | Reasoning | ToolCall) -> Text | Reasoning:
    if isinstance(piece, ToolCall):
        return Text(f"\n(used {piece.name} with {piece.arguments[:RESULT_CHARS_MAX]})")
    return piece


def _told(result: ToolResult) -> tuple[Text | Image, ...]:
    texts = "\n".join(piece.text for piece in result.content if isinstance(piece, Text))
    images = tuple(piece for piece in result.content if isinstance(piece, Image))
    kind = "It failed" if result.is_error else "It gave"
    return (Text(f"({kind}: {texts[:RESULT_CHARS_MAX]})"), *images)
