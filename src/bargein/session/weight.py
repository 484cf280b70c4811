"""How many bytes of people's words and files something holds. Near enough for a bound: text counts
a byte a character."""

from collections.abc import Iterable

from bargein.contracts.event import HistoryImported, MessageAccepted
from bargein.contracts.message import Message
from bargein.contracts.model import AssistantMessage, Image, Text, UserMessage
from bargein.session.state import Waiting

MESSAGE_BYTES = 512
"""What a message takes beside its words."""


def weight_of(message: Message) -> int:
    files = sum(len(each.data) for each in message.attachments) if message.attachments else 0
    return MESSAGE_BYTES + _content(message.content) + files


def weight_of_event(event: MessageAccepted | HistoryImported) -> int:
    if isinstance(event, MessageAccepted):
        return weight_of(event.message)
    said = [each for each in event.messages if isinstance(each, UserMessage | AssistantMessage)]
    return sum(MESSAGE_BYTES + _content(each.content) for each in said)


def weight_of_waiting(waiting: tuple[Waiting, ...]) -> int:
    return sum(weight_of(each.message) for each in waiting)


def _content(parts: Iterable[object]) -> int:
    size = 0
    for part in parts:
        if isinstance(part, Text):
            size += len(part.text)
        elif isinstance(part, Image):
            size += len(part.data)
    return size
