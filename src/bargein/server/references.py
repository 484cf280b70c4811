"""Encodes events for readers: files become references, and all readers share the JSON.

A reference has the media type and the size of an attachment or image. A reader that wants the file
fetches it by the message's id and the attachment's number (`get_attachment`). So its
bytes are not sent to every reader of a session, nor again to one that reconnects.
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
_encode = msgspec.json.Encoder().encode


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
    """Returns the message with references for its files; encoded, it is a `MessageRef`."""
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
    """Returns the event with references for its files, or the same event if it has none."""
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


class EncodedEvent:
    """An event as JSON. `text` is decoded when a WebSocket first needs it."""

    __slots__ = ("_text", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._text: str | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = self.content.decode()
        return self._text


class RelayedEvent:
    """An event of a session that another node has, as that node encoded it. `seq` is its place in
    the log, None for what happens between two events of the log."""

    __slots__ = ("encoded", "seq")

    def __init__(self, seq: int | None, content: bytes) -> None:
        self.seq = seq
        self.encoded = EncodedEvent(content)


class EventEncoder:
    """Encodes an event once for all readers of a session.

    Readers ask for the same event one right after the other, so it is enough to keep the last one.
    They share one copy in memory, and a large event takes the loop's time only once.
    """

    def __init__(self) -> None:
        self._last: tuple[Watched, EncodedEvent] | None = None

    def encode(self, shown: Watched | RelayedEvent) -> EncodedEvent:
        if isinstance(shown, RelayedEvent):
            return shown.encoded
        if self._last is None or self._last[0] is not shown:
            self._last = shown, EncodedEvent(_encode(event_ref(shown)))
        return self._last[1]


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
