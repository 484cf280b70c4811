"""What a reopened session shows of its past. Pure.

It shows the user's own words, not what was added for the model, and each call by what it did and
how it ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bargein.cli.receipts import in_words, worded
from bargein.contracts.event import TurnOutcome
from bargein.contracts.model import Text, ToolCall
from bargein.contracts.tool import CallStatus
from bargein.view import (
    AnswerEnded,
    BackgroundClosed,
    Change,
    MessageTaken,
    Picture,
    ShownAnswer,
    ShownCall,
    ShownTurn,
    TurnClosed,
    TurnTakenBack,
    beside,
)


@dataclass(frozen=True, slots=True)
class UserSpoke:
    words: str


@dataclass(frozen=True, slots=True)
class Answered:
    words: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call and its outcome; `status` is None if it has not ended."""

    name: str
    title: str
    status: CallStatus | None = None
    summary: str = ""
    unsuccessful: bool = False

    def __str__(self) -> str:
        title = beside(self.name, self.title)
        return f"{self.name}  {title}" if title else self.name


@dataclass(frozen=True, slots=True)
class Noted:
    style: str
    words: str


Piece = UserSpoke | Answered | Called | Noted


def said_before(picture: Picture, *, turns: int) -> list[Piece]:
    """Returns the last `turns` turns and what came between them."""
    return [piece for item in picture.last_items(turns) for piece in _pieces(item, picture)]


def _pieces(item: Change, picture: Picture) -> Iterator[Piece]:
    match item:
        case MessageTaken(message=message) if not message.is_news:
            yield UserSpoke(message.text)
        case AnswerEnded(answer=answer):
            yield from _answer(answer, picture)
        case BackgroundClosed(call=call):
            yield Noted("note", background_over(call))
        case TurnClosed(turn=turn):
            yield from _end(turn)
        case TurnTakenBack():
            yield Noted("dim", "(taken back)")
        case _:
            pass


def _answer(answer: ShownAnswer, picture: Picture) -> Iterator[Piece]:
    for part in answer.message.content if answer.message is not None else ():
        if isinstance(part, Text):
            yield Answered(part.text)
        elif isinstance(part, ToolCall):
            yield called(picture.calls[part.id])


def called(call: ShownCall) -> Called:
    """Returns a call as the model saw it: a background call as moved to the background."""
    result = call.result
    if result is None:
        return Called(call.name, call.title)
    return Called(call.name, call.title, result.status, result.summary, result.unsuccessful)


def _end(turn: ShownTurn) -> Iterator[Piece]:
    if turn.receipt is not None:
        yield Noted("warn", in_words(turn.receipt))
    if turn.outcome is TurnOutcome.FAILED:
        yield Noted("bad", f"failed: {turn.error}")


def call_over(call: ShownCall) -> str:
    """Says how a call ended. A call that never began is named by its title."""
    if call.began_at is not None:
        return f"{call.name}: {call.summary or worded(call.status or '')}"
    return f"{call}: {outcome_in_words(call.title, call.status or '', call.summary)}"


def background_over(call: ShownCall) -> str:
    """Says how a background call ended."""
    outcome = outcome_in_words(call.title, call.status or "", call.summary)
    return f"{call} in the background: {outcome}"


def outcome_in_words(title: str, status: str, summary: str) -> str:
    """Returns the outcome of a call without repeating its title."""
    return " ".join(summary.removeprefix(title).split()) or worded(status)
