"""A session as a page to read."""

from collections.abc import Iterable

from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    MessageAccepted,
    MessageEdited,
    Recorded,
    TurnSettled,
    UserSaid,
)
from bargein.contracts.model import Image, Text, ToolCall


def as_markdown(events: Iterable[Recorded]) -> str:
    """What was said and done, in order; stops with their receipts."""
    from bargein.cli.receipts import in_words

    parts: list[str] = []
    own: set[str] = set()
    for recorded in events:
        match recorded.event:
            case MessageAccepted(message=message) if message.sender != "background":
                own |= _texts(message.content)
            case MessageEdited(content=content):
                own |= _texts(content)
            case UserSaid(content=content):
                parts += [_said(part.text, own) for part in content if isinstance(part, Text)]
            case AssistantSaid(message=message, partial=partial):
                for part in message.content:
                    if isinstance(part, Text):
                        parts.append(part.text + (" *(cut off)*" if partial else ""))
                    elif isinstance(part, ToolCall):
                        parts.append(f"`{part.name}({part.arguments})`")
            case CallEnded(call_id=call_id, result=result):
                output = "\n".join(p.text for p in result.content if isinstance(p, Text))
                parts.append(f"*{call_id}: {result.status}*\n\n```\n{output}\n```")
            case TurnSettled(receipt=receipt) if receipt is not None:
                parts.append(f"*{in_words(receipt)}*")
            case _:
                pass
    return "\n\n".join(parts) + "\n"


def _texts(content: tuple[Text | Image, ...]) -> set[str]:
    return {part.text for part in content if isinstance(part, Text)}


def _said(text: str, own: set[str]) -> str:
    """What the user wrote is a quotation; what the model was told besides stands apart from it."""
    if text not in own:
        return f"*{text}*"
    return "\n".join(f"> {line}" for line in text.split("\n"))
