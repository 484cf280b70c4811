"""What one event changed in a picture, typed. Each change names the part it is about, as it is now.

Nothing is reported twice: whether the end of a call, or the words of an answer, came live, from the
log or from both, a surface sees one `CallClosed` and each word in one `WordsAdded`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from bargein.contracts.budget import Purpose
from bargein.contracts.event import Compressed
from bargein.contracts.model import Image, Text, Usage
from bargein.contracts.tool import CallResult
from bargein.view.shown import (
    ShownAnswer,
    ShownCall,
    ShownChild,
    ShownMessage,
    ShownQuestion,
    ShownStep,
    ShownTurn,
)

if TYPE_CHECKING:
    from bargein.view.picture import Picture


class _Change(msgspec.Struct, frozen=True, eq=False, gc=False):
    """No change refers to another one: the garbage collector need not look at them."""


# The inbox


class MessageArrived(_Change, frozen=True):
    """It was accepted and waits; if a turn takes it at once, `MessageTaken` follows."""

    message: ShownMessage


class MessageTaken(_Change, frozen=True):
    message: ShownMessage


class MessageTakenBack(_Change, frozen=True):
    """It was withdrawn before a turn took it."""

    message: ShownMessage


class InboxChanged(_Change, frozen=True):
    """A message was edited or moved, or the inbox was held or released."""

    held: bool


# Turns and their steps


class TurnOpened(_Change, frozen=True):
    turn: ShownTurn


class ModelTold(_Change, frozen=True):
    """What the model is shown as the user's words: taken messages and what was added to them."""

    turn: str
    content: tuple[Text | Image, ...]


class TurnStopping(_Change, frozen=True):
    turn: ShownTurn


class TurnClosed(_Change, frozen=True):
    turn: ShownTurn


class TurnTakenBack(_Change, frozen=True):
    """The model does not see this turn any more, which had settled before."""

    turn: ShownTurn


class StepOpened(_Change, frozen=True):
    """A request to a model, or a compression, began (live only)."""

    step: ShownStep


class StepClosed(_Change, frozen=True):
    step: ShownStep


# Answers


class WordsAdded(_Change, frozen=True):
    """`late`: the log brought words that were not streamed to this reader."""

    answer: ShownAnswer
    text: str
    late: bool = False


class ReasoningAdded(_Change, frozen=True):
    answer: ShownAnswer
    text: str


class AnswerReplaced(_Change, frozen=True):
    """All that was shown of it is void; what stands in its place is told as `WordsAdded`."""

    answer: ShownAnswer


class AnswerVoided(_Change, frozen=True):
    """The model failed and is asked again, after `delay_s`. `answer` is what it had said."""

    turn: str
    answer: ShownAnswer | None
    cause: str
    delay_s: float
    model: str


class AnswerEnded(_Change, frozen=True):
    """The log has it; or its turn has ended and the log never will (`said` is False)."""

    answer: ShownAnswer


# Calls


class CallRequested(_Change, frozen=True):
    call: ShownCall


class CallOpened(_Change, frozen=True):
    call: ShownCall


class OutputAdded(_Change, frozen=True):
    call: ShownCall
    text: str


class CallClosed(_Change, frozen=True):
    """It is over. Its result may only come with `CallResulted`."""

    call: ShownCall


class CallResulted(_Change, frozen=True):
    """The log has what the model is told of it."""

    call: ShownCall
    result: CallResult


class CallMoved(_Change, frozen=True):
    """It goes on in the background."""

    call: ShownCall


class BackgroundClosed(_Change, frozen=True):
    """A call that went on in the background is over."""

    call: ShownCall
    result: CallResult


# Questions, sub-agents, the session itself


class QuestionOpened(_Change, frozen=True):
    question: ShownQuestion


class QuestionSettled(_Change, frozen=True):
    question: ShownQuestion


class ChildOpened(_Change, frozen=True):
    child: ShownChild


class ChildClosed(_Change, frozen=True):
    child: ShownChild


class Shortened(_Change, frozen=True):
    """From now on the model is shown a summary in place of what was said before."""

    compression: Compressed


class UsageAdded(_Change, frozen=True):
    """A request to a model is over. `turn` is empty if it belonged to none."""

    turn: str
    model: str
    usage: Usage
    purpose: Purpose


class Titled(_Change, frozen=True):
    title: str
    by: str


class SessionClosed(_Change, frozen=True):
    pass


Change = (
    MessageArrived
    | MessageTaken
    | MessageTakenBack
    | InboxChanged
    | TurnOpened
    | ModelTold
    | TurnStopping
    | TurnClosed
    | TurnTakenBack
    | StepOpened
    | StepClosed
    | WordsAdded
    | ReasoningAdded
    | AnswerReplaced
    | AnswerVoided
    | AnswerEnded
    | CallRequested
    | CallOpened
    | OutputAdded
    | CallClosed
    | CallResulted
    | CallMoved
    | BackgroundClosed
    | QuestionOpened
    | QuestionSettled
    | ChildOpened
    | ChildClosed
    | Shortened
    | UsageAdded
    | Titled
    | SessionClosed
)

Changes = tuple[Change, ...]

Rules = dict[type, Callable[["Picture", Any], Changes]]
"""What an event does to a picture, by its type."""

ITEMS = (
    MessageTaken,
    MessageTakenBack,
    ModelTold,
    AnswerEnded,
    CallRequested,
    CallResulted,
    BackgroundClosed,
    QuestionOpened,
    TurnClosed,
    TurnTakenBack,
    Shortened,
)
"""The changes that a conversation consists of: `Picture.items` keeps them, in order."""
