"""What goes out without the bytes of files: an attachment or an image by what it is and its size.

A file of a message is asked for by the message and its number (`get_attachment`). Sent along each
time, the same bytes would go to every reader of a session, and again whenever one comes back.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from bargein.contracts.event import (
    BackgroundEnded,
    CallEnded,
    HistoryImported,
    MessageAccepted,
    MessageEdited,
    Recorded,
    UserSaid,
)
from bargein.contracts.message import Message
from bargein.contracts.model import Image, ModelMessage, ToolMessage, UserMessage
from bargein.session.broadcast import Watched

T = TypeVar("T", bound=msgspec.Struct)

_replace: Any = msgspec.structs.replace


class AttachmentRef(msgspec.Struct, frozen=True):
    """`number` counts the attachments of a message from 0. `size` is in bytes."""

    name: str
    media_type: str
    number: int
    size: int


class ImageRef(msgspec.Struct, frozen=True, tag="image"):
    media_type: str
    size: int


def message_ref(message: Message) -> Message:
    """Encoded as a `MessageRef`."""
    attachments = tuple(
        AttachmentRef(each.name, each.media_type, number, len(each.data))
        for number, each in enumerate(message.attachments)
    )
    content = _content(message.content)
    if not attachments and content is message.content:
        return message
    made: Message = _replace(message, attachments=attachments, content=content)
    return made


def event_ref(shown: Watched) -> Watched:
    """The same event, if there is no file in it."""
    if not isinstance(shown, Recorded):
        return shown
    event: Any = shown.event
    match event:
        case MessageAccepted(message=message):
            light = message_ref(message)
            if light is not message:
                return Recorded(shown.seq, shown.at, _replace(event, message=light))
        case UserSaid(content=content) | MessageEdited(content=content):
            return _with(shown, event, "content", content, _content(content))
        case CallEnded(result=result) | BackgroundEnded(result=result):
            light_content = _content(result.content)
            if light_content is not result.content:
                changed = _replace(result, content=light_content)
                return Recorded(shown.seq, shown.at, _replace(event, result=changed))
        case HistoryImported(messages=messages):
            return _with(shown, event, "messages", messages, messages_ref(messages))
    return shown


def _with(shown: Recorded, event: Any, name: str, before: object, after: object) -> Recorded:
    if after is before:
        return shown
    return Recorded(shown.seq, shown.at, _replace(event, **{name: after}))


def messages_ref(messages: tuple[ModelMessage, ...]) -> tuple[ModelMessage, ...]:
    light = tuple(map(_model_message, messages))
    same = all(one is other for one, other in zip(light, messages, strict=True))
    return messages if same else light


def _model_message(message: ModelMessage) -> ModelMessage:
    made: Any = message
    if isinstance(message, UserMessage):
        content = _content(message.content)
        if content is not message.content:
            made = _replace(message, content=content)
    elif isinstance(message, ToolMessage) and any(_has_image(e.content) for e in message.results):
        results = tuple(_replace(each, content=_content(each.content)) for each in message.results)
        made = _replace(message, results=results)
    return made  # type: ignore[no-any-return]


def _content(parts: Any) -> Any:
    if not _has_image(parts):
        return parts
    return tuple(
        ImageRef(each.media_type, len(each.data)) if isinstance(each, Image) else each
        for each in parts
    )


def _has_image(parts: Iterable[object]) -> bool:
    return any(isinstance(each, Image) for each in parts)
