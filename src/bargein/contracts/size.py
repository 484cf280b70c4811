"""Roughly how large an event is, without encoding it: the bytes of its words, files and results.

Text counts one byte for each character. Events that are always small count nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

from bargein.contracts.event import (
    AgentEvent,
    AgentState,
    AssistantSaid,
    BackgroundEnded,
    CallEnded,
    CallStarted,
    CallsUndoing,
    ChildStarted,
    Compressed,
    Event,
    HistoryImported,
    MessageAccepted,
    MessageEdited,
    TextCheckpoint,
    UserSaid,
)
from bargein.contracts.message import Message
from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    Reasoning,
    Text,
    ToolCall,
    UserMessage,
)

ContentPart = Text | Reasoning | Image | ToolCall


def size_of_event(event: Event) -> int:
    count = _COUNTED.get(type(event))
    return count(event) if count is not None else 0


def size_of_content(parts: Iterable[ContentPart]) -> int:
    size = 0
    for part in parts:
        if isinstance(part, Text | Reasoning):
            size += len(part.text)
        elif isinstance(part, Image):
            size += len(part.data)
        else:
            size += len(part.arguments)
    return size


def _size_of_message(message: Message) -> int:
    return size_of_content(message.content) + sum(len(each.data) for each in message.attachments)


def _size_of_spoken(message: ModelMessage) -> int:
    if isinstance(message, UserMessage | AssistantMessage):
        return size_of_content(message.content)
    return sum(size_of_content(result.content) for result in message.results)


_COUNTED: dict[type, Callable[[Any], int]] = {
    MessageAccepted: lambda event: _size_of_message(event.message),
    MessageEdited: lambda event: size_of_content(event.content),
    UserSaid: lambda event: size_of_content(event.content),
    AssistantSaid: lambda event: size_of_content(event.message.content),
    TextCheckpoint: lambda event: len(event.text),
    CallStarted: lambda event: len(event.call.arguments),
    CallsUndoing: lambda event: sum(len(each.call.arguments) for each in event.calls),
    CallEnded: lambda event: size_of_content(event.result.content),
    BackgroundEnded: lambda event: size_of_content(event.result.content),
    ChildStarted: lambda event: len(event.task),
    HistoryImported: lambda event: sum(map(_size_of_spoken, event.messages)),
    AgentEvent: lambda event: len(event.body),
    AgentState: lambda event: len(event.body),
    Compressed: lambda event: len(event.summary),
}
