"""The commands that a session takes and the effects that follow: input and output of `decide`.

A command that aims at a turn says whether its cancel `landed`, that is whether it decided the
turn's cell. `abort.land` cancels at the moment of the request, before the command is posted, so a
stop never waits behind other commands.
"""

from bargein.cancel import Cause
from bargein.contracts.event import Event, TurnOutcome
from bargein.contracts.message import Disposition, Message
from bargein.contracts.model import Image, Text, ToolCall
from bargein.contracts.permission import Grant, GrantScope, PermissionMode, Standing
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, StoppedStep
from bargein.contracts.tool import CallResult, OpenQuestion
from bargein.contracts.value import Value


class Send(Value, frozen=True, tag=True):
    """`target` is the turn that was running when the message was accepted, if any."""

    message: Message
    target: str | None = None
    landed: bool = False


class Stop(Value, frozen=True, tag=True):
    target: str | None
    landed: bool
    by: str
    reason: str


class Boundary(Value, frozen=True, tag=True):
    """The turn is between two steps: it takes its steers, and waits while paused."""

    turn: str


class Settled(Value, frozen=True, tag=True):
    """The turn and everything it started are over. `events` are the last events of the turn; they
    repair its transcript. `effects` are the steps that ended before a stop. `effects` and
    `note_if_hidden` are used if the turn is hidden from the model. `has_files`: its calls may have
    changed files that can be put back."""

    turn: str
    outcome: TurnOutcome
    events: tuple[Event, ...] = ()
    error: str = ""
    receipt: Receipt | None = None
    note: str = ""
    effects: tuple[StoppedStep, ...] = ()
    note_if_hidden: str = ""
    has_files: bool = False

    @property
    def stopped_by(self) -> Cause | None:
        """The original cause of the stop; None if the turn was not stopped."""
        reason = self.receipt.reason if self.receipt is not None else None
        return reason.root.cause if reason is not None else None


class RolledBack(Value, frozen=True, tag=True):
    """The files of a turn that was rolled back are as they were, as far as that was possible.
    `events` tell it, and `note` tells the model."""

    turn: str
    events: tuple[Event, ...]
    note: str


class Pause(Value, frozen=True, tag=True):
    turn: str | None = None


class Resume(Value, frozen=True, tag=True):
    pass


class Continue(Value, frozen=True, tag=True):
    """Continue with the held messages."""


class Compact(Value, frozen=True, tag=True):
    """Summarise the older part of the conversation, in a turn of its own."""

    by: str


class CallToUndo(Value, frozen=True):
    """A call of the turn `of` with its result, and the call that undoes it."""

    of: str
    call: ToolCall
    result: CallResult
    undo: ToolCall


class UndoCalls(Value, frozen=True, tag=True):
    """Undo these calls, one after the other, in a turn of its own."""

    calls: tuple[CallToUndo, ...]
    by: str


class GatherOver(Value, frozen=True, tag=True):
    group: str


class Edit(Value, frozen=True, tag=True):
    message: str
    content: tuple[Text | Image, ...]
    by: str


class Move(Value, frozen=True, tag=True):
    """Put a queued message in front of another one, or last."""

    message: str
    before: str | None
    by: str


class Withdraw(Value, frozen=True, tag=True):
    message: str
    by: str


class Hide(Value, frozen=True, tag=True):
    """Take back the last turn that the model can see. `turns` is the number of turns when it was
    chosen. `note` tells the model what the turn did, because that is not undone."""

    turn: str
    turns: int
    by: str
    note: str = ""


class Wake(Value, frozen=True, tag=True):
    """The session has come back into memory: continue with the waiting messages."""


class Detached(Value, frozen=True, tag=True):
    """A call moved to the background. The model reads `result` in place of the call's own."""

    turn: str
    call: str
    result: CallResult


class BackgroundOver(Value, frozen=True, tag=True):
    """A call in the background is over. `message` tells the model; None if it already knows.
    `begins_turn` is False if somebody stopped the call or a restart lost it: then the message waits
    for the user's next message."""

    call: str
    result: CallResult
    message: Message | None
    begins_turn: bool = True


class ChildBegan(Value, frozen=True, tag=True):
    """A sub-agent is about to start. Durable before it does."""

    turn: str
    call: str
    child: str
    task: str
    detached: bool = False


class ChildOver(Value, frozen=True, tag=True):
    """A sub-agent is over. `message` reports a detached one, which no call waits for. `lost`: the
    program ended while it was at work."""

    child: str
    outcome: TurnOutcome
    summary: str
    message: Message | None = None
    lost: bool = False


class Ask(Value, frozen=True, tag=True):
    asked: OpenQuestion


class AnswerQuestion(Value, frozen=True, tag=True):
    question: str
    text: str
    by: str
    standing: Standing = Standing.OWNER


class SetMode(Value, frozen=True, tag=True):
    mode: PermissionMode
    by: str


class SetPlace(Value, frozen=True, tag=True):
    place: SessionPlace
    by: str


class AddGrant(Value, frozen=True, tag=True):
    """Somebody approved more than one call. A grant for the project is only logged here."""

    grant: Grant
    scope: GrantScope
    by: str
    at: float


class RevokeGrant(Value, frozen=True, tag=True):
    """`grant` is its id. One of the project is gone already, and only told."""

    grant: str
    by: str
    scope: GrantScope = GrantScope.SESSION


class CloseQuestion(Value, frozen=True, tag=True):
    """No call waits for the answer any more, or it was given elsewhere. `shut_down`: the wait ended
    because the program ends, and nobody had stopped the call before."""

    question: str
    answer: str | None = None
    by: str = ""
    shut_down: bool = False


class Dismiss(Value, frozen=True, tag=True):
    """Close a question that a restart has left open."""

    question: str
    by: str


class Drain(Value, frozen=True, tag=True):
    """The program is about to end: running work may finish, and nothing starts after it."""


class StopBefore(Value, frozen=True):
    """What had stopped the running turn before a `Close` or an `End` did: a stop whose command has
    not come yet, or a budget."""

    turn: str
    cause: Cause
    by: str


class Close(Value, frozen=True, tag=True):
    """The program ends: settle, start nothing more, keep waiting messages for the next start."""

    stopped: StopBefore | None = None


class End(Value, frozen=True, tag=True):
    """The session ends for good."""

    by: str
    stopped: StopBefore | None = None


class Passivate(Value, frozen=True, tag=True):
    """Leave memory, if the session has nothing to do."""


Command = (
    Send
    | Stop
    | Boundary
    | Settled
    | RolledBack
    | Pause
    | Resume
    | Continue
    | Compact
    | UndoCalls
    | GatherOver
    | Edit
    | Move
    | Withdraw
    | Hide
    | Wake
    | Detached
    | BackgroundOver
    | ChildBegan
    | ChildOver
    | Ask
    | AnswerQuestion
    | SetMode
    | SetPlace
    | AddGrant
    | RevokeGrant
    | CloseQuestion
    | Dismiss
    | Drain
    | Close
    | End
    | Passivate
)


class Log(Value, frozen=True, tag=True):
    """Write these events together. Every later effect waits until they are durable. `lingers`: the
    write may wait a moment, so that events that follow soon share its commit."""

    events: tuple[Event, ...]
    lingers: bool = False


class CutModel(Value, frozen=True, tag=True):
    """End the model request in flight at once, keeping its text, so that the model reads a
    steer."""

    turn: str


class Accept(Value, frozen=True, tag=True):
    message: str
    disposition: Disposition
    turn: str | None


class StartTurn(Value, frozen=True, tag=True):
    """Start a turn. A turn without messages undoes the calls in `undo`, or without any only
    compresses the conversation."""

    turn: str
    messages: tuple[Message, ...]
    undo: tuple[CallToUndo, ...] = ()


class RestoreFiles(Value, frozen=True, tag=True):
    """Put back the files of a turn that was rolled back. `RolledBack` follows, whatever happens."""

    turn: str


class GiveSteers(Value, frozen=True, tag=True):
    turn: str
    messages: tuple[Message, ...]


class Announce(Value, frozen=True, tag=True):
    """The end of the turn is durable: give it to the waiters for its result or receipt."""

    turn: str
    outcome: TurnOutcome
    error: str
    receipt: Receipt | None


class Gather(Value, frozen=True, tag=True):
    """Wait a moment for the rest of an album."""

    group: str


class Refuse(Value, frozen=True, tag=True):
    """The command was not carried out. `why` is for people, `status` for programs."""

    status: str
    why: str


class Done(Value, frozen=True, tag=True):
    """The command was carried out."""


class GiveAnswer(Value, frozen=True, tag=True):
    """Give the answer to the call that asked."""

    question: str
    text: str
    by: str


class StopBackground(Value, frozen=True, tag=True):
    """Stop the calls in the background, and everything that lives as long as the session."""


class Leave(Value, frozen=True, tag=True):
    """The actor ends. Later requests get a new one, made from the store."""


Effect = (
    Log
    | CutModel
    | Accept
    | StartTurn
    | RestoreFiles
    | GiveSteers
    | Announce
    | Gather
    | Refuse
    | Done
    | GiveAnswer
    | StopBackground
    | Leave
)
