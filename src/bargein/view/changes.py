"""The typed changes that events make to a picture. Each refers to the changed part as it is now.

Nothing is reported twice. The end of a call or the words of an answer may come live, from the log
or from both: a surface gets one `CallClosed`, and each word in one `WordsAdded`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from bargein.contracts.budget import Purpose
from bargein.contracts.event import BudgetLow, Compressed, FilesRolledBack
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
    """No change refers to another, so the garbage collector can skip them."""


# The inbox


class MessageArrived(_Change, frozen=True):
    """The session accepted the message, and it waits. If a turn takes it at once, `MessageTaken`
    follows."""

    message: ShownMessage


class MessageTaken(_Change, frozen=True):
    message: ShownMessage


class MessageTakenBack(_Change, frozen=True):
    """The message was withdrawn before a turn took it."""

    message: ShownMessage


class InboxChanged(_Change, frozen=True):
    """A message was edited or moved, or the inbox was held or released."""

    held: bool


# Turns and their steps


class TurnOpened(_Change, frozen=True):
    turn: ShownTurn


class ModelTold(_Change, frozen=True):
    """The user's words as the model sees them: taken messages with everything added to them."""

    turn: str
    content: tuple[Text | Image, ...]


class TurnStopping(_Change, frozen=True):
    turn: ShownTurn


class TurnClosed(_Change, frozen=True):
    turn: ShownTurn


class TurnTakenBack(_Change, frozen=True):
    """The model no longer sees this turn, which had already settled."""

    turn: ShownTurn


class FilesCameBack(_Change, frozen=True):
    """A message rolled a turn back, and its files were put back as far as that was possible."""

    told: FilesRolledBack


class StepOpened(_Change, frozen=True):
    """A model request or a compression began (live only)."""

    step: ShownStep


class StepClosed(_Change, frozen=True):
    step: ShownStep


# Answers


class WordsAdded(_Change, frozen=True):
    """`late`: the words come from the log and were not streamed to this reader."""

    answer: ShownAnswer
    text: str
    late: bool = False


class ReasoningAdded(_Change, frozen=True):
    answer: ShownAnswer
    text: str


class AnswerReplaced(_Change, frozen=True):
    """All text shown of this answer is void; `WordsAdded` brings the text that replaces it."""

    answer: ShownAnswer


class AnswerVoided(_Change, frozen=True):
    """The model failed and is asked again after `delay_s`. `answer` is the text so far, now
    void."""

    turn: str
    answer: ShownAnswer | None
    cause: str
    delay_s: float
    model: str


class AnswerEnded(_Change, frozen=True):
    """The log has the answer; or the turn has ended and the log never will (`said` is False)."""

    answer: ShownAnswer


class AnswerCutShort(_Change, frozen=True):
    """The user heard only a part of what the turn said: see `heard` of its answers. The model sees
    no more of it."""

    turn: ShownTurn
    by: str


# Calls


class CallRequested(_Change, frozen=True):
    call: ShownCall


class CallOpened(_Change, frozen=True):
    call: ShownCall


class OutputAdded(_Change, frozen=True):
    call: ShownCall
    text: str


class CallClosed(_Change, frozen=True):
    """The call is over. Its result may come later, with `CallResulted`."""

    call: ShownCall


class CallResulted(_Change, frozen=True):
    """The log has the result that the model reads."""

    call: ShownCall
    result: CallResult


class CallMoved(_Change, frozen=True):
    """The call goes on in the background."""

    call: ShownCall


class BackgroundClosed(_Change, frozen=True):
    """A call in the background is over."""

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
    """From now on the model sees a summary in place of the earlier conversation."""

    compression: Compressed


class UsageAdded(_Change, frozen=True):
    """A model request is over. `turn` is empty if it belonged to no turn."""

    turn: str
    model: str
    usage: Usage
    purpose: Purpose


class BudgetWarned(_Change, frozen=True):
    """Most of a budget is used."""

    low: BudgetLow


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
    | FilesCameBack
    | StepOpened
    | StepClosed
    | WordsAdded
    | ReasoningAdded
    | AnswerReplaced
    | AnswerVoided
    | AnswerEnded
    | AnswerCutShort
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
    | BudgetWarned
    | Titled
    | SessionClosed
)

Changes = tuple[Change, ...]

Rules = dict[type, Callable[["Picture", Any], Changes]]
"""For each type of event, the function that applies it to a picture."""

ITEMS = (
    MessageTaken,
    MessageTakenBack,
    ModelTold,
    AnswerEnded,
    AnswerCutShort,
    CallRequested,
    CallResulted,
    BackgroundClosed,
    QuestionOpened,
    TurnClosed,
    TurnTakenBack,
    FilesCameBack,
    Shortened,
)
"""The changes that make up a conversation: `Picture.items` keeps them, in order."""
