"""A session as a page to read."""

from collections.abc import Iterable

from bargein.contracts.event import AssistantSaid, CallEnded, Recorded, TurnSettled, UserSaid
from bargein.contracts.model import Text, ToolCall


def as_markdown(events: Iterable[Recorded]) -> str:
    """What was said and done, in order; stops with their receipts."""
    from bargein.cli.receipts import in_words

    parts: list[str] = []
    for recorded in events:
        match recorded.event:
            case UserSaid(content=content):
                words = "\n".join(part.text for part in content if isinstance(part, Text))
                parts.append("\n".join(f"> {line}" for line in words.split("\n")))
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
