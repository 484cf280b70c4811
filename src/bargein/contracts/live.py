"""What is happening right now, for whoever watches. Not kept: the events of the log say what
came of it."""

import msgspec


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    turn: str
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning_delta"):
    turn: str
    text: str


class AnswerVoid(msgspec.Struct, frozen=True, tag="answer_void"):
    """What the model had said of this answer is void: it is asked again."""

    turn: str
    cause: str
    delay_s: float
    model: str


class CallOutput(msgspec.Struct, frozen=True, tag="call_output"):
    turn: str
    call_id: str
    text: str


class StepBegan(msgspec.Struct, frozen=True, tag="step_began"):
    turn: str
    kind: str
    name: str
    call_id: str = ""


class StepOver(msgspec.Struct, frozen=True, tag="step_over"):
    turn: str
    kind: str
    name: str
    status: str
    call_id: str = ""
    summary: str = ""


class Stopping(msgspec.Struct, frozen=True, tag="stopping"):
    """A stop landed. What it stopped is told when all has settled."""

    turn: str


Live = TextDelta | ReasoningDelta | AnswerVoid | CallOutput | StepBegan | StepOver | Stopping
