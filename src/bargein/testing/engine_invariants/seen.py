"""The contents of a session's log so far, for the rules to look at."""

from dataclasses import dataclass, field
from typing import NoReturn

from bargein.contracts.event import (
    AssistantSaid,
    BudgetUsedUp,
    ChildEnded,
    ChildStarted,
    Compressed,
    InterruptLanded,
    MessageAccepted,
    Recorded,
    SessionTitled,
    TurnSettled,
)
from bargein.contracts.message import Message
from bargein.contracts.model import Image, Text, ToolCall
from bargein.testing.invariants import LawBroken

Content = tuple[Text | Image, ...]


@dataclass(slots=True)
class SeenTurn:
    """The contents of the log for one turn. `compacts`: it takes no message and only compresses."""

    id: str
    compacts: bool = False
    messages: list[str] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    questions: set[str] = field(default_factory=set)
    landed: list[InterruptLanded] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    rolled_back: bool = False
    said: list[AssistantSaid] = field(default_factory=list)
    checkpoints: str = ""
    used_up: BudgetUsedUp | None = None
    settled: TurnSettled | None = None

    @property
    def open_calls(self) -> set[str]:
        return set(self.calls) - self.ended


class SeenLog:
    """`note_owed`: whether the model must be told of the previous turn; None: it may be. `owed`:
    words that were taken and must be said next. `must_hold`: the next event must hold the inbox."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.log: list[Recorded] = []
        self.messages: dict[str, Message] = {}
        self.dispositions: dict[str, MessageAccepted] = {}
        self.waiting: list[str] = []
        self.taken: dict[str, str] = {}
        self.said_at: dict[str, int] = {}
        self.compressions: list[Compressed] = []
        self.withdrawn: set[str] = set()
        self.turns: dict[str, SeenTurn] = {}
        self.turn: SeenTurn | None = None
        self.held = False
        self.ended = False
        self.background: set[str] = set()
        self.detached: set[str] = set()
        self.questions: dict[str, str] = {}
        self.asked: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        self.late_answers: set[str] = set()
        """Messages that carry the answer to a question that a restart had left open."""
        self.agent_state = b""
        self.is_child = False
        self.titles: list[SessionTitled] = []
        self.children: dict[str, ChildStarted] = {}
        self.children_ended: dict[str, ChildEnded] = {}
        self.note_owed: bool | None = False
        self.owed: tuple[str, Content] | None = None
        self.must_hold = False

    @property
    def running_children(self) -> list[str]:
        return [child for child in self.children if child not in self.children_ended]

    def may_be_summarised(self, message: str) -> bool:
        """Whether the model may see a summary in place of a taken message."""
        before = self.compressions[-1].before if self.compressions else 0
        last = max(self.said_at.values(), default=0)
        said_at = self.said_at.get(message, last)
        return said_at < before and said_at != last

    def forget_compressions(self, turn: str) -> None:
        """Forgets the compressions of a turn that was taken back."""
        self.compressions = [each for each in self.compressions if each.turn != turn]

    def open(self, law: int, turn: str, what: str) -> SeenTurn:
        if self.turn is None or self.turn.id != turn:
            now = self.turn.id if self.turn is not None else "no turn"
            self.broken(law, f"{turn} {what}, but {now} is in flight")
        return self.turn

    def talking(self, law: int, turn: str, what: str) -> SeenTurn:
        """Returns the open turn, which must not be one that only compresses."""
        found = self.open(law, turn, what)
        if found.compacts:
            self.broken(law, f"{turn} {what}, and was only to compress")
        return found

    def broken(self, law: int, words: str) -> NoReturn:
        raise LawBroken(law, f"{self.session}: {words}")
