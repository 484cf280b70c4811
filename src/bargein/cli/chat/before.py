"""Shows the past of a session that is reopened. Pure.

It shows the user's own words, not what was added for the model, and each call by what it did and
how it ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bargein.cli.chat.edits import StyledLine, edit_lines
from bargein.cli.chat.restored import rollback_in_words
from bargein.cli.receipts import in_words, worded
from bargein.contracts.event import BudgetLow, TurnOutcome
from bargein.contracts.model import AssistantMessage, Text, ToolCall, UserMessage
from bargein.contracts.tool import CallStatus
from bargein.view import (
    AnswerCutShort,
    AnswerEnded,
    BackgroundClosed,
    Change,
    FilesCameBack,
    MessageTaken,
    Picture,
    ShownAnswer,
    ShownCall,
    ShownTurn,
    TurnClosed,
    TurnTakenBack,
    beside,
)

HEARD_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class UserSpoke:
    """`sender` is empty if it is not known."""

    words: str
    sender: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    words: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call and its outcome; `status` is None if it has not ended. `changed` are the lines that an
    edit changed."""

    name: str
    title: str
    status: CallStatus | None = None
    summary: str = ""
    unsuccessful: bool = False
    changed: tuple[StyledLine, ...] = ()

    def __str__(self) -> str:
        title = beside(self.name, self.title)
        return f"{self.name}  {title}" if title else self.name


@dataclass(frozen=True, slots=True)
class Noted:
    style: str
    words: str


Piece = UserSpoke | Answered | Called | Noted


def said_before(picture: Picture, *, turns: int) -> list[Piece]:
    """Returns the last `turns` turns and what came between them; of a session that began with
    another conversation and has fewer, the end of that, too."""
    said = [piece for item in picture.last_items(turns) for piece in _pieces(item, picture)]
    missing = turns - len(picture.turns)
    return [*_imported(picture, missing), *said] if missing > 0 else said


def _imported(picture: Picture, turns: int) -> list[Piece]:
    messages = picture.imported.messages if picture.imported is not None else ()
    pieces: list[Piece] = []
    for message in messages:
        said = [part.text for part in getattr(message, "content", ()) if isinstance(part, Text)]
        if isinstance(message, UserMessage):
            while len(said) > 1 and said[0].startswith("[") and said[0].endswith("]"):
                # The engine told the model this, in front of the user's words.
                pieces.append(Noted("dim", said.pop(0)))
        words = "\n".join(said)
        if words and isinstance(message, UserMessage):
            pieces.append(UserSpoke(words))
        elif words and isinstance(message, AssistantMessage):
            pieces.append(Answered(words))
    begins = [at for at, piece in enumerate(pieces) if isinstance(piece, UserSpoke)]
    return pieces[begins[-turns] :] if len(begins) > turns else pieces


def _pieces(item: Change, picture: Picture) -> Iterator[Piece]:
    match item:
        case MessageTaken(message=message) if not message.is_news:
            yield UserSpoke(message.text, message.message.sender)
        case AnswerEnded(answer=answer):
            yield from _answer(answer, picture)
        case AnswerCutShort(turn=turn):
            yield Noted("dim", heard_in_words(turn))
        case BackgroundClosed(call=call):
            yield Noted("note", background_over(call))
        case TurnClosed(turn=turn):
            yield from _end(turn)
        case TurnTakenBack():
            yield Noted("dim", "(taken back)")
        case FilesCameBack(told=told):
            yield from (Noted(style, words) for style, words in rollback_in_words(told))
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
    changed = tuple(edit_lines(call))
    return Called(
        call.name, call.title, result.status, result.summary, result.unsuccessful, changed
    )


def heard_in_words(turn: ShownTurn) -> str:
    """Says how much of a turn's text the user heard."""
    last = next((each for each in turn.answers if each.heard is not None), None)
    if last is None:
        return "heard in part; the model sees no more of it"
    heard = " ".join(last.text[: last.heard].split())[-HEARD_CHARACTERS:]
    where = f"up to “{heard}”" if heard else "nothing of it"
    return f"heard: {where}; the model sees no more of it"


def budget_in_words(low: BudgetLow) -> str:
    """Says how much of a budget is used."""
    units = {"steps": "steps", "tokens": "tokens", "time": "s"}
    share = f"{low.used / low.limit:.0%}"
    if low.kind == "cost":
        return f"the {low.scope} has used {share} of its ${low.limit:g}"
    return f"the {low.scope} has used {share} of its {low.limit:,.0f} {units[low.kind]}"


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
