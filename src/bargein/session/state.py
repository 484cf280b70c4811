"""What a session is doing, as one value. Changed by `decide` alone."""

from enum import StrEnum

from bargein.contracts.message import Message
from bargein.contracts.permission import KeptGrant, PermissionMode
from bargein.contracts.tool import OpenQuestion
from bargein.contracts.value import Value


class Phase(StrEnum):
    IDLE = "idle"
    """No turn. Messages wait only if they are held, or if an album is gathering."""
    RUNNING = "running"
    PAUSED = "paused"
    """A turn is in flight and waits at its next step boundary."""
    STOPPING = "stopping"
    """The turn was cancelled and has not settled yet."""
    ENDED = "ended"


_ENDED = Phase.ENDED


class Lane(StrEnum):
    """Where a message waits."""

    STEER = "steer"
    """For the running turn, at its next boundary; if that never comes, for the next turn."""
    NEXT = "next"
    """For the next turn, together with the others of this lane, before the queue."""
    QUEUE = "queue"
    """For a turn of its own."""


class Waiting(Value, frozen=True):
    message: Message
    lane: Lane


class Child(Value, frozen=True):
    """A sub-agent that is running, as its parent remembers it. Its words are in the log."""

    id: str
    call: str
    detached: bool = False


class Pending(Value, frozen=True):
    """A question that can be answered. `live`: somebody waits for the answer; else it is of a turn
    that a restart has ended, and the answer begins a turn."""

    asked: OpenQuestion
    live: bool = True


class SessionState(Value, frozen=True, omit_defaults=True):
    """`held`: what waits stays until the user continues or sends something. `closing`: no next
    turn begins, because the program or the session is about to end. `boundary`: the turn waits
    at one. `background`: ids of the calls that were moved there and are still running. `note`:
    what the model has to be told of the last stop, at the start of the next turn. `child`: this is
    a sub-agent, which has one turn and ends with it. `taken_back`: the turn that was last.
    `unasked`: how many turns in a row the background has begun, without a word of the user's.
    `permission`: the permission mode that somebody has set; None is the engine's. `grants`: what
    runs unasked because an approval said so for this session."""

    phase: Phase = Phase.IDLE
    turn: str | None = None
    turn_groups: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    held: bool = False
    gathering: str | None = None
    hide_turn: bool = False
    boundary: bool = False
    closing: bool = False
    ending: bool = False
    background: tuple[str, ...] = ()
    note: str = ""
    turns: int = 0
    messages: int = 0
    children: tuple[Child, ...] = ()
    questions: tuple[Pending, ...] = ()
    child: bool = False
    taken_back: str = ""
    unasked: int = 0
    permission: PermissionMode | None = None
    grants: tuple[KeptGrant, ...] = ()

    @property
    def busy(self) -> bool:
        return self.turn is not None

    @property
    def unfinished(self) -> bool:
        """Whether there is something to go on with after a restart."""
        if not (self.turn or self.waiting or self.background or self.children):
            return False
        return self.phase is not _ENDED

    def lane(self, lane: Lane) -> tuple[Message, ...]:
        return tuple(each.message for each in self.waiting if each.lane is lane)

    def question(self, question: str) -> Pending | None:
        return next((each for each in self.questions if each.asked.id == question), None)
