"""The parts of a picture: a message, a turn, an answer, a call, a question, a sub-agent.

`Picture` changes them in place as events arrive; all other code only reads them. They refer to each
other by id. Streaming text is collected in pieces (`TextPieces`, `Tail`), so that a delta costs the
same however long the text is.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.budget import Spent
from bargein.contracts.event import BudgetUsedUp, TurnOutcome
from bargein.contracts.message import Disposition, Message
from bargein.contracts.model import AssistantMessage, ToolCall, Usage
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import CallResult, CallStatus, Effect, Question
from bargein.contracts.visible import visible

if TYPE_CHECKING:
    from bargein.view.picture import Picture

OUTPUT_CHARACTERS_MAX = 16_384
"""How much of a call's output is kept, from its end."""
TITLE_CHARACTERS_MAX = 200


class TextPieces:
    """Text that grows at its end."""

    __slots__ = ("_pieces",)

    def __init__(self, text: str = "") -> None:
        self._pieces = [text] if text else []

    def add(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Tail:
    """The end of a text that grows. `skipped` counts the characters before it."""

    __slots__ = ("_kept", "_max", "_pieces", "_skipped")

    def __init__(
        self, text: str = "", skipped: int = 0, *, characters_max: int = OUTPUT_CHARACTERS_MAX
    ) -> None:
        self._max = characters_max
        self._pieces: deque[str] = deque()
        self._kept = 0
        self._skipped = skipped
        self.add(text)

    def add(self, text: str) -> None:
        if not text:
            return
        self._pieces.append(text)
        self._kept += len(text)
        while self._kept - len(self._pieces[0]) >= self._max:
            self._skip(len(self._pieces.popleft()))

    def _skip(self, characters: int) -> None:
        self._kept -= characters
        self._skipped += characters

    def clear(self) -> None:
        self._pieces.clear()
        self._kept = self._skipped = 0

    @property
    def skipped(self) -> int:
        return self._skipped + max(0, self._kept - self._max)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __str__(self) -> str:
        if len(self._pieces) > 1 or self._kept > self._max:
            text = "".join(self._pieces)
            cut = max(0, len(text) - self._max)
            self._skip(cut)
            self._pieces = deque([text[cut:]])
        return self._pieces[0] if self._pieces else ""


class MessageFate(StrEnum):
    WAITING = "waiting"
    TAKEN = "taken"
    WITHDRAWN = "withdrawn"


class WaitsFor(StrEnum):
    """Which turn will take a waiting message, as far as the events show."""

    STEER = "steer"
    """The running turn, at its next boundary."""
    NEXT = "next"
    """The next turn, before the queue."""
    QUEUE = "queue"
    """A turn of its own."""


@dataclass(slots=True, eq=False)
class ShownMessage:
    """A message from a user, or news from the background. `turn` is the turn that took it."""

    message: Message
    disposition: Disposition
    at: float
    waits_for: WaitsFor
    target: str | None = None
    fate: MessageFate = MessageFate.WAITING
    turn: str | None = None
    ended_at: float | None = None
    edited_by: str = ""
    withdrawn_by: str = ""

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def is_news(self) -> bool:
        """Whether the message reports the end of a background call, so is not the user's."""
        return self.message.sender == "background"


@dataclass(slots=True, eq=False)
class ShownAnswer:
    """One answer of the model or of a user-written agent.

    `said`: the log has the answer, and `message` is all of it. Until then `text` and `reasoning`
    grow. `partial`: it was cut off. `heard`: how many code points of `text` the user heard, if not
    all; the model sees no more. Live only: `reasoning` that the log does not keep, and
    `unkept`, the text that was streamed beyond what the log has.
    """

    turn: str
    at: float
    by_model: bool = False
    """Whether the picture saw the model request of this answer begin."""
    done: bool = False
    """Whether the request is over: the next streamed text belongs to another answer."""
    stale: bool = False
    """Whether this reader may have missed deltas of it."""
    said: bool = False
    message: AssistantMessage | None = None
    partial: bool = False
    heard: int | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    unkept: str = ""
    words: TextPieces = field(default_factory=TextPieces)
    thought: TextPieces = field(default_factory=TextPieces)

    @property
    def text(self) -> str:
        return str(self.words)

    @property
    def reasoning(self) -> str:
        return str(self.thought)


@dataclass(slots=True, eq=False)
class ShownStep:
    """A model request or a compression in progress. Calls are steps too: see `ShownCall`."""

    turn: str
    kind: str
    name: str
    began_at: float
    status: str = ""


class TurnState(StrEnum):
    RUNNING = "running"
    STOPPING = "stopping"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class ShownInterrupt:
    """A stop that landed on a turn."""

    at: float
    reason: str
    by: str


@dataclass(slots=True, eq=False)
class ShownTurn:
    """A turn. `answers` are in the log; `saying` are still streaming, oldest first, because an
    answer may begin before the log has the previous one. `steps` are in progress (live only).
    `calls` are the ids of its calls, in order. `hidden`: the model no longer sees this turn."""

    id: str
    began_at: float
    state: TurnState = TurnState.RUNNING
    messages: list[str] = field(default_factory=list)
    answers: list[ShownAnswer] = field(default_factory=list)
    saying: list[ShownAnswer] = field(default_factory=list)
    steps: list[ShownStep] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    interrupts: list[ShownInterrupt] = field(default_factory=list)
    budget: BudgetUsedUp | None = None
    used: Spent = field(default_factory=Spent)
    outcome: TurnOutcome | None = None
    error: str = ""
    receipt: Receipt | None = None
    ended_at: float | None = None
    hidden: bool = False
    is_whole: bool = False
    """Whether the picture saw the turn begin; if not, `began_at` is when it first saw it."""
    heard_ahead: int | None = None
    """How much of the answer that streams now the user heard, if not all."""
    first_item: int = 0
    """The number of the first item of this turn, counted from the picture's beginning."""

    @property
    def text(self) -> str:
        """The last text of the turn in the log: its answer, once it has settled."""
        return next((each.text for each in reversed(self.answers) if each.words), "")


class CallState(StrEnum):
    ASKED = "asked"
    """The model asked for it. The log does not record when a call without an effect begins."""
    RUNNING = "running"
    BACKGROUND = "background"
    OVER = "over"


@dataclass(slots=True, eq=False)
class ShownCall:
    """A call. `title` describes it: the command, the file, the address. `status`, `summary` and
    `unsuccessful` are the latest known. `result` is the result that the model reads;
    `background_result` is the end of a call that moved to the background. `output` is the end of
    its output (live only), kept until the result arrives. `asking`: it waits for an answer."""

    id: str
    turn: str
    name: str
    asked_at: float
    arguments: str = ""
    title: str = ""
    effect: Effect | None = None
    state: CallState = CallState.ASKED
    began_at: float | None = None
    ended_at: float | None = None
    status: CallStatus | None = None
    summary: str = ""
    unsuccessful: bool = False
    result: CallResult | None = None
    background_result: CallResult | None = None
    asking: bool = False
    listed: bool = False
    output: Tail = field(default_factory=Tail)

    @property
    def since(self) -> float:
        return self.asked_at if self.began_at is None else self.began_at

    def __str__(self) -> str:
        title = beside(self.name, self.title)
        return f"{self.name}  {title}" if title else self.name


@dataclass(slots=True, eq=False)
class ShownQuestion:
    """A question or an approval. If `open` is False and `answer` is None, it was closed without an
    answer."""

    id: str
    turn: str
    question: Question
    at: float
    call_id: str = ""
    open: bool = True
    answer: str | None = None
    by: str = ""


@dataclass(slots=True, eq=False)
class ShownChild:
    """A sub-agent, by the id of its session. `below` is that session's own picture, if a reader
    watches it (`Picture.below`)."""

    id: str
    turn: str
    call_id: str
    task: str
    began_at: float
    detached: bool = False
    outcome: TurnOutcome | None = None
    summary: str = ""
    ended_at: float | None = None
    below: "Picture | None" = None

    @property
    def name(self) -> str:
        """The id without the id of the parent session."""
        return self.id.partition("/")[2] or self.id

    @property
    def running(self) -> bool:
        return self.outcome is None


def beside(name: str, title: str) -> str:
    """Remove the tool's name from the beginning of a title that is shown beside the name."""
    return title.removeprefix(f"{name}: ").removeprefix(f"{name} ")


def title_of(call: ToolCall) -> str:
    """Return the first text argument of a call, in one line: the command, the path, the address."""
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    first = next((each for each in arguments.values() if isinstance(each, str)), "")
    shown = visible(first[: 4 * TITLE_CHARACTERS_MAX])
    return " ".join(shown.split())[:TITLE_CHARACTERS_MAX]
