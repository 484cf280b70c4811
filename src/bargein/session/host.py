"""What a turn is given by the session it belongs to, and how a command is answered: when it is
durable, or with the error that kept it from being so."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol

from bargein.cancel import CancelSource, Clock, TaskOwner, Token
from bargein.contracts.event import Event
from bargein.contracts.live import Live
from bargein.contracts.tool import CallResult, ChildReport, ChildTask, Question
from bargein.session.commands import Accept, Command, Done, GiveSteers, Refuse
from bargein.session.hooks import Hooks
from bargein.session.journal import Ticket
from bargein.session.limits import Limits
from bargein.session.logbook import Logbook
from bargein.session.slot import Slot

if TYPE_CHECKING:
    from bargein.session.calls import Call

Answered = Accept | Done | Refuse | GiveSteers


class Reply(Slot[Answered]):
    __slots__ = ()


class Host(Protocol):
    session_id: str
    limits: Limits
    clock: Clock
    owner: TaskOwner
    hooks: Hooks | None
    depth: int
    lifetime: CancelSource
    logbook: Logbook
    background: "dict[str, Call]"

    def log(self, *events: Event) -> Ticket:
        """Append to the session's log, in order. Never waits; the ticket does."""
        ...

    def post(self, command: Command) -> Reply: ...

    def emit(self, live: Live) -> None: ...

    def spawn(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        """Start a task that belongs to the engine. It must not raise."""
        ...

    async def ask(self, turn: str, call_id: str, question: Question, token: Token) -> str: ...

    async def delegate(
        self,
        call: "Call",
        turn_id: str,
        tasks: Sequence[ChildTask],
        token: Token,
        *,
        detached: bool,
    ) -> tuple[ChildReport, ...]: ...

    async def end_children(self, call: "Call", result: CallResult) -> CallResult:
        """A call is over: so are its sub-agents, when this comes back."""
        ...
