"""The events of a session's append-only log. They are the truth.

Everything else (the inbox, the transcript, the running turn) is computed from them in order. An
event is never changed; a later event may supersede it.
"""

from enum import StrEnum

from bargein.contracts.budget import BudgetKind, BudgetScope, Purpose
from bargein.contracts.checkpoint import FilesUndone, Span
from bargein.contracts.message import Disposition, Message
from bargein.contracts.model import AssistantMessage, Image, ModelMessage, Text, ToolCall, Usage
from bargein.contracts.permission import Grant, GrantScope, PermissionMode
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import CallResult, Effect, Question
from bargein.contracts.value import Value


class TurnOutcome(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    CRASHED = "crashed"


class SessionCreated(Value, frozen=True, tag="session_created"):
    parent: str | None = None


class HistoryImported(Value, frozen=True, tag="history_imported"):
    """A conversation from elsewhere that precedes this session. `instructions` are its system
    prompt, for the whole session."""

    messages: tuple[ModelMessage, ...]
    instructions: str = ""
    by: str = ""


class MessageAccepted(Value, frozen=True, tag="message_accepted"):
    message: Message
    disposition: Disposition
    target: str | None = None


class MessageEdited(Value, frozen=True, tag="message_edited"):
    message: str
    content: tuple[Text | Image, ...]
    by: str


class MessageMoved(Value, frozen=True, tag="message_moved"):
    """The whole order of the inbox after the move."""

    order: tuple[str, ...]
    by: str


class MessageWithdrawn(Value, frozen=True, tag="message_withdrawn"):
    message: str
    by: str


class QueueHeld(Value, frozen=True, tag="queue_held"):
    pass


class QueueReleased(Value, frozen=True, tag="queue_released"):
    pass


class TurnStarted(Value, frozen=True, tag="turn_started"):
    """A turn started and took these messages: they are now in this turn and nowhere else."""

    turn: str
    messages: tuple[str, ...]


class MessagesTaken(Value, frozen=True, tag="messages_taken"):
    """Steers that joined a running turn."""

    turn: str
    messages: tuple[str, ...]


class UserSaid(Value, frozen=True, tag="user_said"):
    """The user's words as the model sees them: the taken messages, enriched."""

    turn: str
    content: tuple[Text | Image, ...]


class AssistantSaid(Value, frozen=True, tag="assistant_said"):
    """The model's answer. `partial`: it was cut off, and its incomplete calls were dropped."""

    turn: str
    message: AssistantMessage
    model: str = ""
    usage: Usage = Usage()
    partial: bool = False


class AnswerHeard(Value, frozen=True, tag="answer_heard"):
    """The user heard or saw only the first `characters` code points of this turn's text so far. The
    rest leaves the model's view, and stays in the log. Calls and their results stay in both.
    `streaming`: an answer was still streaming; the next `AssistantSaid` of the turn is that answer,
    and the count goes on in it. Text that an earlier event of this kind cut off is not counted."""

    turn: str
    characters: int
    by: str
    streaming: bool = False


class TextCheckpoint(Value, frozen=True, tag="text_checkpoint"):
    """The next piece of an answer that is still streaming, so that a crash loses at most a second
    of it. `AssistantSaid` of the same turn makes all checkpoints before it void; so does a
    checkpoint with `void` set."""

    turn: str
    text: str
    void: bool = False


class CallStarted(Value, frozen=True, tag="call_started"):
    """A call is about to run. Written before it runs if it may have an effect."""

    turn: str
    call: ToolCall
    effect: Effect
    title: str = ""


class CallNoted(Value, frozen=True, tag="call_noted"):
    """A running call has stored what it needs to learn its outcome after a crash, such as the id of
    a task that a server runs for it. `note` belongs to the tool."""

    turn: str
    call_id: str
    note: str


class CallEnded(Value, frozen=True, tag="call_ended"):
    turn: str
    call_id: str
    result: CallResult


class CallDetached(Value, frozen=True, tag="call_detached"):
    turn: str
    call_id: str


class BackgroundEnded(Value, frozen=True, tag="background_ended"):
    """A detached call is over. The same commit accepts the message that tells the model, unless the
    model has already seen how the call ended."""

    call_id: str
    result: CallResult


class ChildStarted(Value, frozen=True, tag="child_started"):
    """A call started a sub-agent, as a session of its own with the id `child`."""

    turn: str
    call_id: str
    child: str
    task: str
    detached: bool = False


class ChildEnded(Value, frozen=True, tag="child_ended"):
    """A sub-agent is over; `summary` describes the outcome in a few words."""

    child: str
    outcome: TurnOutcome
    summary: str = ""


class QuestionAsked(Value, frozen=True, tag="question_asked"):
    turn: str
    id: str
    question: Question
    call_id: str = ""


class QuestionClosed(Value, frozen=True, tag="question_closed"):
    """`answer` is None if the question was closed without an answer."""

    id: str
    answer: str | None = None
    by: str = ""


class AgentEvent(Value, frozen=True, tag="agent_event"):
    """An event that a user-written agent added to the log."""

    turn: str
    name: str
    body: bytes


class AgentState(Value, frozen=True, tag="agent_state"):
    """An agent's opaque `turn.state`; the last one counts."""

    turn: str
    body: bytes


UNANSWERED = "unanswered"
"""The reason of an interrupt caused by a question under `QuestionPolicy.ERROR`."""


class InterruptLanded(Value, frozen=True, tag="interrupt_landed"):
    """`reason` is the cause of a stop, the mode of a message, or `UNANSWERED`."""

    turn: str
    reason: str
    by: str


class TurnSettled(Value, frozen=True, tag="turn_settled"):
    """The turn and all it started are over. Exactly one for each `TurnStarted`."""

    turn: str
    outcome: TurnOutcome
    receipt: Receipt | None = None
    error: str = ""
    hidden: bool = False


class TurnHidden(Value, frozen=True, tag="turn_hidden"):
    """The user took back the last turn that the model could see, after it had settled. This undoes
    no effect of the turn."""

    turn: str
    by: str


class UndoingCall(Value, frozen=True):
    """`call` undoes a call of the turn `of`, whose id is `undoes`."""

    of: str
    undoes: str
    call: ToolCall


class CallsUndoing(Value, frozen=True, tag="calls_undoing"):
    """Somebody asked to undo calls. The turn `turn` does it, and nothing else: it makes these calls
    one after the other."""

    turn: str
    calls: tuple[UndoingCall, ...]
    by: str


class FilesChanged(Value, frozen=True, tag="files_changed"):
    """Calls of a turn changed files of the workspace between two snapshots. It may come after the
    end of the turn, which does not wait for snapshots."""

    turn: str
    calls: tuple[str, ...]
    span: Span


class FilesRestored(Value, frozen=True, tag="files_restored"):
    """The files of these turns were put back as they were, as far as nobody else had changed them.
    `redo`: that was taken back itself, and the files are again as the turns left them."""

    turns: tuple[str, ...]
    span: Span
    by: str
    redo: bool = False


class FilesRolledBack(Value, frozen=True, tag="files_rolled_back"):
    """What became of the files of a turn that a message rolled back. The turn of the message begins
    after it. `error` says why no file was put back, if that failed."""

    turn: str
    files: FilesUndone
    by: str
    error: str = ""


class StageAccepted(Value, frozen=True, tag="stage_accepted"):
    """Somebody accepted what was staged: these files of the workspace changed, and those were kept
    as they are. `taken_back`: an acceptance was taken back, and what it changed is staged again."""

    files: StagedFiles
    by: str
    taken_back: bool = False


class StageDiscarded(Value, frozen=True, tag="stage_discarded"):
    """Somebody discarded what was staged: these files, or everything if there are none."""

    files: StagedFiles
    by: str


class ModelUsed(Value, frozen=True, tag="model_used"):
    """The usage of a model request that ended or was stopped. `turn` is empty if the request
    belonged to no turn. All totals are sums of these events. The usage of a sub-agent comes as one
    event whose `model` is the sub-agent's id."""

    turn: str
    model: str
    usage: Usage
    purpose: Purpose = Purpose.ANSWER


class Compressed(Value, frozen=True, tag="compressed"):
    """From now on the model sees `summary` in place of everything before the event number `before`.
    If `keeps` is given, the user's words in the event of that number stay as they were said.
    Nothing leaves the log. `dropped`: there is no summary, and the text of `summary` says so."""

    turn: str
    before: int
    summary: str
    keeps: int | None = None
    dropped: bool = False
    tokens_before: int = 0
    tokens_after: int = 0


class BudgetUsedUp(Value, frozen=True, tag="budget_used_up"):
    """A budget ended the turn. A session's budget starts anew with the user's next message."""

    turn: str
    scope: BudgetScope
    kind: BudgetKind
    limit: float


class BudgetLow(Value, frozen=True, tag="budget_low"):
    """A turn has come to use most of a budget, its own or its session's. It goes on until the
    budget is used up. Once a turn for each budget."""

    turn: str
    scope: BudgetScope
    kind: BudgetKind
    limit: float
    used: float


class SessionTitled(Value, frozen=True, tag="session_titled"):
    """`by` is a user, `model`, or `words` if the title is the first words of the first message."""

    title: str
    by: str


class SessionPlaced(Value, frozen=True, tag="session_placed"):
    """Where the session works from its next turn on; the last one counts."""

    place: SessionPlace
    by: str = ""


class PermissionChanged(Value, frozen=True, tag="permission_changed"):
    """The session's permission mode, valid from its next call on."""

    mode: PermissionMode
    by: str


class Granted(Value, frozen=True, tag="granted"):
    """Somebody approved more than one call. A grant for the project is kept outside of the log;
    this event records who made it."""

    grant: Grant
    scope: GrantScope
    by: str


class GrantRevoked(Value, frozen=True, tag="grant_revoked"):
    """`grant` is the id of the revoked grant. A project's grant applied to other sessions too."""

    grant: str
    by: str
    scope: GrantScope = GrantScope.SESSION


class SessionEnded(Value, frozen=True, tag="session_ended"):
    by: str = ""


Event = (
    SessionCreated
    | HistoryImported
    | MessageAccepted
    | MessageEdited
    | MessageMoved
    | MessageWithdrawn
    | QueueHeld
    | QueueReleased
    | TurnStarted
    | MessagesTaken
    | UserSaid
    | AssistantSaid
    | AnswerHeard
    | TextCheckpoint
    | CallStarted
    | CallNoted
    | CallEnded
    | CallDetached
    | BackgroundEnded
    | ChildStarted
    | ChildEnded
    | QuestionAsked
    | QuestionClosed
    | AgentEvent
    | AgentState
    | InterruptLanded
    | TurnSettled
    | TurnHidden
    | FilesChanged
    | FilesRestored
    | StageAccepted
    | StageDiscarded
    | FilesRolledBack
    | CallsUndoing
    | ModelUsed
    | Compressed
    | BudgetUsedUp
    | BudgetLow
    | SessionTitled
    | SessionPlaced
    | PermissionChanged
    | Granted
    | GrantRevoked
    | SessionEnded
)


class Recorded(Value, frozen=True):
    """An event with its place in the log: `seq` counts from 1 without gaps in each session."""

    seq: int
    at: float
    event: Event
