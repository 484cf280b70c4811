"""Turns a session into a Markdown page."""

from collections.abc import Iterable, Iterator

from bargein.cli.receipts import in_words
from bargein.contracts.event import Recorded
from bargein.contracts.model import Text, ToolCall
from bargein.view import (
    AnswerEnded,
    CallResulted,
    Change,
    ModelTold,
    Picture,
    ShownAnswer,
    TurnClosed,
)


def as_markdown(events: Iterable[Recorded]) -> str:
    """Returns what was said and done, in order; stops with their receipts."""
    picture = Picture.of(events)
    own = {
        part.text
        for message in picture.messages.values()
        if not message.is_news
        for part in message.message.content
        if isinstance(part, Text)
    }
    return "\n\n".join(part for item in picture.items for part in _parts(item, own)) + "\n"


def _parts(item: Change, own: set[str]) -> Iterator[str]:
    match item:
        case ModelTold(content=content):
            yield from (_quoted(part.text, own) for part in content if isinstance(part, Text))
        case AnswerEnded(answer=answer):
            yield from _answer(answer)
        case CallResulted(call=call, result=result):
            output = "\n".join(p.text for p in result.content if isinstance(p, Text))
            yield f"*{call.id}: {result.status}*\n\n```\n{output}\n```"
        case TurnClosed(turn=turn) if turn.receipt is not None:
            yield f"*{in_words(turn.receipt)}*"
        case _:
            pass


def _answer(answer: ShownAnswer) -> Iterator[str]:
    for part in answer.message.content if answer.message is not None else ():
        if isinstance(part, Text):
            yield part.text + (" *(cut off)*" if answer.partial else "")
            if answer.heard is not None:
                yield f"*(the user heard the first {answer.heard} characters of this)*"
        elif isinstance(part, ToolCall):
            yield f"`{part.name}({part.arguments})`"


def _quoted(text: str, own: set[str]) -> str:
    """Quotes the user's words; words added for the model stand apart in italics."""
    if text not in own:
        return f"*{text}*"
    return "\n".join(f"> {line}" for line in text.split("\n"))
