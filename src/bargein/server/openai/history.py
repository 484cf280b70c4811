"""Converts a client's list of messages into instructions, history and the new message.

It is strict, because a provider would refuse a broken history later, at every request: each tool
call must have exactly one result, right after it, and the last message must be the user's.
"""

import base64
import binascii
import re

import msgspec

from bargein.contracts import model
from bargein.contracts.model import Image, ModelMessage, Text, ToolCall, ToolResult
from bargein.server.openai.shapes import (
    ChatAssistantMessage,
    ChatDeveloperMessage,
    ChatMessage,
    ChatSystemMessage,
    ChatToolMessage,
    ChatUserMessage,
    ImagePiece,
    InputImage,
    InputMessage,
    InputPieces,
    Pieces,
    TextPiece,
)
from bargein.server.problems import Code, Problem

_IMAGE = re.compile(r"image/[A-Za-z0-9.+-]{1,50}")


class Conversation(msgspec.Struct, frozen=True):
    """`said` is the user's new message; `history` is everything before it."""

    instructions: str
    history: tuple[ModelMessage, ...]
    said: tuple[Text | Image, ...]


def of_chat(messages: list[ChatMessage]) -> Conversation:
    instructions: list[str] = []
    history: list[ModelMessage] = []
    calls: dict[str, ToolResult | None] = {}
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if isinstance(message, ChatToolMessage):
            _answer_call(calls, message, where)
            if all(result is not None for result in calls.values()):
                history.append(model.ToolMessage(tuple(filter(None, calls.values()))))
                calls = {}
            continue
        if calls:
            missing = next(call for call, result in calls.items() if result is None)
            raise _wrong(f"{where} comes before the result of the tool call {missing!r}")
        match message:
            case ChatSystemMessage(content=content) | ChatDeveloperMessage(content=content):
                instructions.append(_text(content, where))
            case ChatUserMessage(content=content):
                history.append(model.UserMessage(_pieces(content, where)))
            case ChatAssistantMessage():
                said = _assistant(message, where)
                history += [said] if said.content else []
                calls = {part.id: None for part in said.content if isinstance(part, ToolCall)}
    return _conversation(instructions, history, calls)


def of_response(given: str | list[InputMessage], instructions: str | None) -> Conversation:
    if isinstance(given, str):
        given = [InputMessage(given)]
    system = [instructions] if instructions else []
    history: list[ModelMessage] = []
    for place, message in enumerate(given):
        where = f"input[{place}]"
        content = _input_pieces(message.content, where)
        words = tuple(part for part in content if isinstance(part, Text))
        if message.role == "user":
            history.append(model.UserMessage(content))
        elif message.role == "assistant":
            history.append(model.AssistantMessage(words))
        else:
            system.append("\n".join(part.text for part in words))
    return _conversation(system, history, {})


def _conversation(
    instructions: list[str], history: list[ModelMessage], calls: dict[str, ToolResult | None]
) -> Conversation:
    last = history.pop() if history else None
    if calls or not isinstance(last, model.UserMessage):
        raise _wrong("the last message must be the user's: it is the one that is answered")
    return Conversation("\n\n".join(instructions), tuple(history), last.content)


def _answer_call(calls: dict[str, ToolResult | None], message: ChatToolMessage, where: str) -> None:
    if calls.get(message.tool_call_id, message) is not None:
        raise _wrong(
            f"{where} is the result of {message.tool_call_id!r}, which is not an open tool call of "
            "the assistant's message before it"
        )
    content = _pieces(message.content, where)
    calls[message.tool_call_id] = ToolResult(message.tool_call_id, content)


def _assistant(message: ChatAssistantMessage, where: str) -> model.AssistantMessage:
    words = _text(message.content, where) if message.content else ""
    parts: list[Text | model.Reasoning | ToolCall] = [Text(words)] if words.strip() else []
    for call in message.tool_calls or ():
        if any(isinstance(part, ToolCall) and part.id == call.id for part in parts):
            raise _wrong(f"{where} has two tool calls with the id {call.id!r}")
        parts.append(ToolCall(call.id, call.function.name, call.function.arguments))
    return model.AssistantMessage(tuple(parts))


def _pieces(content: Pieces, where: str) -> tuple[Text | Image, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(
        Text(piece.text) if isinstance(piece, TextPiece) else _image(piece.image_url.url, where)
        for piece in content
    )


def _input_pieces(content: InputPieces, where: str) -> tuple[Text | Image, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(
        _image(piece.image_url, where) if isinstance(piece, InputImage) else Text(piece.text)
        for piece in content
    )


def _text(content: Pieces, where: str) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(piece, ImagePiece) for piece in content):
        raise _wrong(f"{where} has an image; only the user's messages may have one")
    return "\n".join(piece.text for piece in content if isinstance(piece, TextPiece))


def _image(url: str, where: str) -> Image:
    """Decodes an image from its data: address. The server fetches nothing for a client."""
    head, _, body = url.partition(",")
    kind = head.removeprefix("data:").removesuffix(";base64")
    known = _IMAGE.fullmatch(kind) is not None and body
    if not known or not head.startswith("data:") or not head.endswith(";base64"):
        raise _wrong(f"{where} has an image that is not a data:image/...;base64, address")
    try:
        return Image(kind, base64.b64decode(body, validate=True))
    except binascii.Error as error:
        raise _wrong(f"{where} has an image that is not base64: {error}") from error


def _wrong(detail: str) -> Problem:
    return Problem(Code.BAD_REQUEST, detail)
