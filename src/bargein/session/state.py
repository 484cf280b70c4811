"""The state of a session as one value. Only `decide` changes it."""

from enum import StrEnum

from bargein.contracts.message import Message
from bargein.contracts.permission import KeptGrant, PermissionMode
from bargein.contracts.place import SessionPlace
from bargein.contracts.tool import OpenQuestion
from bargein.contracts.value import Value


class Phase(StrEnum):
    IDLE = "idle"
    """There is no turn. Messages wait only if they are held, or while an album is gathered."""
    RUNNING = "running"
    PAUSED = "paused"
    """A turn is in flight and waits at its next step boundary."""
    STOPPING = "stopping"
    """The turn was cancelled and has not settled yet."""
    ENDED = "ended"


_ENDED = Phase.ENDED


class Lane(StrEnum):
    """Which turn a message waits for."""

    STEER = "steer"
    """The running turn, at its next boundary; if there is none, the next turn."""
    NEXT = "next"
    """The next turn, together with the others of this lane, before the queue."""
    QUEUE = "queue"
    """A turn of its own."""


class WaitingMessage(Value, frozen=True):
    message: Message
    lane: Lane


class Child(Value, frozen=True):
    """A running sub-agent, as its parent remembers it. Its task is in the log."""

    id: str
    call: str
    detached: bool = False


class Pending(Value, frozen=True):
    """A question that can be answered. `live`: a call waits for the answer. Otherwise a restart has
    ended its turn, and the answer starts a new one."""

    asked: OpenQuestion
    live: bool = True


class SessionState(Value, frozen=True, omit_defaults=True):
    """The whole state. Fields that need explaining:

    - `held`: the waiting messages stay until the user continues or sends a message.
    - `closing`: no further turn starts, because the program or the session is about to end.
    - `boundary`: the turn waits at a step boundary.
    - `background`: ids of the calls that run in the background.
    - `note`: what the model reads about the last stop, at the start of the next turn.
    - `child`: this is a sub-agent, which has one turn and ends with it.
    - `taken_back`: the turn that the user took back last.
    - `unasked`: how many turns in a row background messages started, without one of the user's.
    - `permission`: the permission mode that somebody set; None uses the engine's.
    - `place`: the folder and the model that somebody chose; None uses the engine's.
    - `machine`: where its files and commands are, if machines share the sessions and not the files.
    - `restoring`: the turn that was rolled back and whose files are being put back. No turn starts
      meanwhile.
    - `grants`: the calls that approvals allow for the rest of this session.
    """

    phase: Phase = Phase.IDLE
    turn: str | None = None
    turn_groups: tuple[str, ...] = ()
    waiting: tuple[WaitingMessage, ...] = ()
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
    place: SessionPlace | None = None
    machine: str = ""
    restoring: str = ""

    @property
    def busy(self) -> bool:
        return self.turn is not None

    @property
    def unfinished(self) -> bool:
        """Whether the session has something to continue after a restart."""
        runs = self.turn or self.restoring or self.background or self.children
        if not (runs or self.waiting):
            return False
        return self.phase is not _ENDED

    def lane(self, lane: Lane) -> tuple[Message, ...]:
        return tuple(each.message for each in self.waiting if each.lane is lane)

    def question(self, question: str) -> Pending | None:
        return next((each for each in self.questions if each.asked.id == question), None)
