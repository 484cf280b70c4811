"""The commands that a session takes and the effects that follow: both ends of `decide`.

A command that aims at a turn says whether its cancel `landed`, that is whether it decided the
turn's cell. `abort.land` cancels at the moment of the request, before the command is posted, so
that a stop never waits behind other commands.
"""

from bargein.cancel import Cause
from bargein.contracts.event import Event, TurnOutcome
from bargein.contracts.message import Disposition, Message
from bargein.contracts.model import Image, Text
from bargein.contracts.permission import Grant, GrantScope, PermissionMode, Standing
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
    """The turn is between two steps: it takes what steers it, and waits while paused."""

    turn: str


class Settled(Value, frozen=True, tag=True):
    """The turn and all it started are over. `events` are the last ones of the turn: the repair
    of its transcript. `effects` are the steps that were over before a stop; they and
    `note_if_hidden` are used if the turn is hidden from the model."""

    turn: str
    outcome: TurnOutcome
    events: tuple[Event, ...] = ()
    error: str = ""
    receipt: Receipt | None = None
    note: str = ""
    effects: tuple[StoppedStep, ...] = ()
    note_if_hidden: str = ""

    @property
    def stopped_by(self) -> Cause | None:
        """The first cause of the stop; None if the turn ended otherwise."""
        reason = self.receipt.reason if self.receipt is not None else None
        return reason.root.cause if reason is not None else None


class Pause(Value, frozen=True, tag=True):
    turn: str | None = None


class Resume(Value, frozen=True, tag=True):
    pass


class Continue(Value, frozen=True, tag=True):
    """Go on with what is held."""


class Compact(Value, frozen=True, tag=True):
    """Summarise the older part of the conversation, in a turn of its own."""

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
    """Take back the last turn that the model can see. `turns` is how many there were when it was
    chosen; `note` tells the model what the turn did, which is not undone."""

    turn: str
    turns: int
    by: str
    note: str = ""


class Wake(Value, frozen=True, tag=True):
    """The session has come back into memory: go on with what waits."""


class Detached(Value, frozen=True, tag=True):
    """`result` is what the model reads in place of the call's own."""

    turn: str
    call: str
    result: CallResult


class BackgroundOver(Value, frozen=True, tag=True):
    """`message` tells the model; None if it knows. `begins_turn` is False if somebody stopped the
    call, or a restart lost it: then the message waits for the user's next word."""

    call: str
    result: CallResult
    message: Message | None
    begins_turn: bool = True


class ChildBegan(Value, frozen=True, tag=True):
    """A sub-agent is about to begin. Durable before it does."""

    turn: str
    call: str
    child: str
    task: str
    detached: bool = False


class ChildOver(Value, frozen=True, tag=True):
    """`message` is the news of a sub-agent that nobody waits for. `lost`: the program ended while
    it was at work."""

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


class AddGrant(Value, frozen=True, tag=True):
    """An approval was given for longer than one call. One for the project is only told."""

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
    """Nobody waits for the answer any more, or it was given elsewhere. `shut_down`: because the
    program ends, and nobody had stopped it before."""

    question: str
    answer: str | None = None
    by: str = ""
    shut_down: bool = False


class Dismiss(Value, frozen=True, tag=True):
    """Close a question that a restart has left open."""

    question: str
    by: str


class Drain(Value, frozen=True, tag=True):
    """The program is about to end: what runs may go on, and nothing begins after it."""


class Close(Value, frozen=True, tag=True):
    """The program ends: settle, start nothing more, keep what waits for the next start."""


class End(Value, frozen=True, tag=True):
    """The session ends for good."""

    by: str


class Passivate(Value, frozen=True, tag=True):
    """Leave memory, if there is nothing to do."""


Command = (
    Send
    | Stop
    | Boundary
    | Settled
    | Pause
    | Resume
    | Continue
    | Compact
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
    """Write these together. Every effect after this one waits until they are durable. `lingers`:
    that may take a moment longer, so that what is about to come is written with them."""

    events: tuple[Event, ...]
    lingers: bool = False


class CutModel(Value, frozen=True, tag=True):
    """End the model request in flight, keeping its text, so that a steer is heard. At once."""

    turn: str


class Accept(Value, frozen=True, tag=True):
    message: str
    disposition: Disposition
    turn: str | None


class StartTurn(Value, frozen=True, tag=True):
    """One without messages compresses the conversation, and does nothing else."""

    turn: str
    messages: tuple[Message, ...]


class GiveSteers(Value, frozen=True, tag=True):
    turn: str
    messages: tuple[Message, ...]


class Announce(Value, frozen=True, tag=True):
    """The end of the turn is durable: give it to whoever waits for its result or receipt."""

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
    """Hand the answer to whoever asked."""

    question: str
    text: str
    by: str


class StopBackground(Value, frozen=True, tag=True):
    """Stop what was moved to the background, and what lives as long as the session."""


class Leave(Value, frozen=True, tag=True):
    """The actor ends. What comes later finds another one, made from the store."""


Effect = (
    Log
    | CutModel
    | Accept
    | StartTurn
    | GiveSteers
    | Announce
    | Gather
    | Refuse
    | Done
    | GiveAnswer
    | StopBackground
    | Leave
)
