"""Work that goes on right now, for readers of a session. Not stored: the events of the log say what
came of it."""

from bargein.contracts.event import Event
from bargein.contracts.value import Value


class TextDelta(Value, frozen=True, tag="text_delta"):
    turn: str
    text: str


class ReasoningDelta(Value, frozen=True, tag="reasoning_delta"):
    turn: str
    text: str


class AnswerVoid(Value, frozen=True, tag="answer_void"):
    """What the model had said of this answer is void: it is asked again."""

    turn: str
    cause: str
    delay_s: float
    model: str


class CallOutput(Value, frozen=True, tag="call_output"):
    turn: str
    call_id: str
    text: str


class StepBegan(Value, frozen=True, tag="step_began"):
    """`title` says in a line what a call is about."""

    turn: str
    kind: str
    name: str
    call_id: str = ""
    title: str = ""


class StepOver(Value, frozen=True, tag="step_over"):
    """`unsuccessful` is that of the call's result."""

    turn: str
    kind: str
    name: str
    status: str
    call_id: str = ""
    summary: str = ""
    unsuccessful: bool = False


class Stopping(Value, frozen=True, tag="stopping"):
    """A stop landed. What it stopped is told when all has settled."""

    turn: str


class AnswerSoFar(Value, frozen=True, tag="answer_so_far"):
    """All that has been said of the answer that is streaming, told to one who begins to watch in
    the middle of it. It takes the place of what that watcher had of it; deltas go on from here."""

    turn: str
    text: str
    reasoning: str = ""


class OutputSoFar(Value, frozen=True, tag="output_so_far"):
    """The same for a call that is running: the end of its output. `skipped` characters came
    before and are not told again."""

    turn: str
    call_id: str
    text: str
    skipped: int = 0


Live = (
    TextDelta
    | ReasoningDelta
    | AnswerVoid
    | CallOutput
    | StepBegan
    | StepOver
    | Stopping
    | AnswerSoFar
    | OutputSoFar
)

TurnEvent = Event | Live
"""What `Session.stream` yields."""
