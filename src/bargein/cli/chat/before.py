"""What a session that is opened again shows of what was said and done in it. Pure.

The user's words are those they wrote, not what the model was told with them; a call is told by what
it did and what came of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bargein.cli.chat.doings import RunningCall, title_of
from bargein.cli.receipts import in_words, worded
from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    CallEnded,
    CallStarted,
    Event,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    Recorded,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import Image, Text, ToolCall
from bargein.contracts.tool import CallStatus


@dataclass(frozen=True, slots=True)
class UserSpoke:
    words: str


@dataclass(frozen=True, slots=True)
class Answered:
    words: str


@dataclass(frozen=True, slots=True)
class Called:
    """`status` is None of a call whose end is not known yet. `summary` is what came of it."""

    name: str
    title: str
    status: CallStatus | None = None
    summary: str = ""
    unsuccessful: bool = False

    def __str__(self) -> str:
        return str(RunningCall(self.name, self.title, 0.0))


@dataclass(frozen=True, slots=True)
class Noted:
    style: str
    words: str


Piece = UserSpoke | Answered | Called | Noted


def said_before(log: Iterable[Recorded], *, turns: int) -> list[Piece]:
    """The last so many turns, and what came between them."""
    return Before(log).last(turns)


class Before:
    """A log, read. `background` are the calls that were moved there and have not ended."""

    def __init__(self, log: Iterable[Recorded]) -> None:
        self.background: dict[str, Called] = {}
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._messages: dict[str, str] = {}
        self._calls: dict[str, Called] = {}
        self._places: dict[str, int] = {}
        for recorded in log:
            self._read(recorded.event)

    def last(self, turns: int) -> list[Piece]:
        starts = self._starts
        return self._pieces[starts[-turns] if len(starts) > turns else 0 :]

    def _read(self, event: Event) -> None:
        match event:
            case MessageAccepted(message=message) if message.sender != "background":
                self._messages[message.id] = message.text
            case MessageEdited(message=edited, content=content):
                self._messages[edited] = _text(content)
            case TurnStarted(messages=taken):
                self._starts.append(len(self._pieces))
                self._taken(taken)
            case MessagesTaken(messages=taken):
                self._taken(taken)
            case AssistantSaid(message=message):
                for part in message.content:
                    if isinstance(part, Text):
                        self._pieces.append(Answered(part.text))
                    elif isinstance(part, ToolCall):
                        self._places[part.id] = len(self._pieces)
                        self._pieces.append(Called(part.name, title_of(part)))
                        self._calls[part.id] = Called(part.name, title_of(part))
            case TurnSettled() as settled:
                self._settled(settled)
            case TurnHidden():
                self._pieces.append(Noted("dim", "(taken back)"))
            case _:
                self._read_call(event)

    def _read_call(self, event: Event) -> None:
        match event:
            case CallStarted(call=call, title=title) if title and call.id in self._calls:
                self._know(call.id, replace(self._calls[call.id], title=title))
            case CallEnded(call_id=call_id, result=result) if call_id in self._calls:
                known = replace(
                    self._calls[call_id],
                    status=result.status,
                    summary=result.summary,
                    unsuccessful=result.unsuccessful,
                )
                self._know(call_id, known)
            case CallDetached(call_id=call_id):
                self.background[call_id] = self._calls.get(call_id, Called("call", ""))
            case BackgroundEnded(call_id=call_id) as over:
                words = background_over(self.background.pop(call_id, None), over)
                self._pieces.append(Noted("note", words))
            case _:
                pass

    def _know(self, call_id: str, call: Called) -> None:
        self._calls[call_id] = self._pieces[self._places[call_id]] = call

    def _taken(self, taken: tuple[str, ...]) -> None:
        words = [self._messages.pop(each) for each in taken if each in self._messages]
        self._pieces += [UserSpoke(each) for each in words]

    def _settled(self, settled: TurnSettled) -> None:
        if settled.receipt is not None:
            self._pieces.append(Noted("warn", in_words(settled.receipt)))
        if settled.outcome is TurnOutcome.FAILED:
            self._pieces.append(Noted("bad", f"failed: {settled.error}"))


def background_over(call: Called | RunningCall | None, over: BackgroundEnded) -> str:
    """That a call in the background is over, and how."""
    title = call.title if call is not None else ""
    told = outcome_in_words(title, over.result.status, over.result.summary)
    return f"{call or over.call_id} in the background: {told}"


def outcome_in_words(title: str, status: str, summary: str) -> str:
    """What came of a call, without the words that say what it is."""
    return " ".join(summary.removeprefix(title).split()) or worded(status)


def _text(content: tuple[Text | Image, ...]) -> str:
    return "\n".join(part.text for part in content if isinstance(part, Text))
