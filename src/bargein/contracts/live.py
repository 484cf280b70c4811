"""Views of work in progress, for watchers of a session. Nothing here is stored: the events of the
log record how the work ended."""

from enum import StrEnum

import msgspec

from bargein.contracts.event import Event, TurnOutcome
from bargein.contracts.value import Value


class TextDelta(Value, frozen=True, tag="text_delta"):
    turn: str
    text: str


class ReasoningDelta(Value, frozen=True, tag="reasoning_delta"):
    turn: str
    text: str


class AnswerVoid(Value, frozen=True, tag="answer_void"):
    """The answer so far is void: the model is asked again."""

    turn: str
    cause: str
    delay_s: float
    model: str


class CallOutput(Value, frozen=True, tag="call_output"):
    turn: str
    call_id: str
    text: str


class StepBegan(Value, frozen=True, tag="step_began"):
    """`title` describes a call in one line."""

    turn: str
    kind: str
    name: str
    call_id: str = ""
    title: str = ""


class StepOver(Value, frozen=True, tag="step_over"):
    """`unsuccessful` is copied from the call's result."""

    turn: str
    kind: str
    name: str
    status: str
    call_id: str = ""
    summary: str = ""
    unsuccessful: bool = False


class Stopping(Value, frozen=True, tag="stopping"):
    """A stop landed. Its receipt follows when everything has settled."""

    turn: str


class Paused(Value, frozen=True, tag="paused"):
    """Somebody has paused the turn, or with `paused` false has let it go on. A watcher that joins
    later finds it in the session's state."""

    turn: str
    paused: bool


class AnswerSoFar(Value, frozen=True, tag="answer_so_far"):
    """The whole text so far of the streaming answer, for a watcher that joins in the middle of it.
    It replaces the text that the watcher had; deltas continue from here."""

    turn: str
    text: str
    reasoning: str = ""


class OutputSoFar(Value, frozen=True, tag="output_so_far"):
    """The end of a running call's output so far, for a watcher that joins. `skipped` characters
    came before it and are not sent again."""

    turn: str
    call_id: str
    text: str
    skipped: int = 0


class Notice(Value, frozen=True, tag="notice"):
    """Something that its user should know, such as the progress of loading a model on this machine,
    or that the session moved to another. `turn` is empty if it may be none's."""

    turn: str
    text: str


Live = (
    TextDelta
    | ReasoningDelta
    | AnswerVoid
    | CallOutput
    | StepBegan
    | StepOver
    | Stopping
    | Paused
    | AnswerSoFar
    | OutputSoFar
    | Notice
)

TurnEvent = Event | Live
"""What `Session.stream` yields."""


class ChildState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"


class ChildView(msgspec.Struct, frozen=True):
    """A sub-agent as a watcher of its parent sees it. `id` is the sub-agent's own session, to
    watch, steer or stop it. `outcome` and `summary` are set once it has ended."""

    id: str
    task: str
    state: ChildState
    detached: bool = False
    call_id: str = ""
    outcome: TurnOutcome | None = None
    summary: str = ""
