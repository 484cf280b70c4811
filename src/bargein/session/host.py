"""The interface of a session to its turns."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol

from bargein.cancel import CancelSource, Clock, TaskOwner, Token
from bargein.contracts.event import Event
from bargein.contracts.live import Live
from bargein.contracts.tool import CallResult, ChildReport, ChildTask, Question
from bargein.session.commands import Command
from bargein.session.files import SessionFiles
from bargein.session.hooks import Hooks
from bargein.session.limits import Limits
from bargein.session.logbook import Logbook
from bargein.session.reply import Reply
from bargein.session.results import Results

if TYPE_CHECKING:
    from bargein.session.calls import ActiveCall
    from bargein.session.permits import SessionPermits


class TurnHost(Protocol):
    session_id: str
    limits: Limits
    clock: Clock
    owner: TaskOwner
    hooks: Hooks | None
    lifetime: CancelSource
    logbook: Logbook
    results: Results
    files: SessionFiles
    background: "dict[str, ActiveCall]"
    stopped_beside: "tuple[ActiveCall, ...]"
    """In a sub-agent: the background calls that were stopped with it, for the receipt."""

    @property
    def permits(self) -> "SessionPermits": ...

    @property
    def depth(self) -> int:
        """The number of sessions above this one."""
        ...

    @property
    def newest_steer(self) -> str | None:
        """The last message that waits to join the turn, if there is one."""
        ...

    def log(self, *events: Event) -> None:
        """Append to the session's log, in order: durable before any later event."""
        ...

    def write(self, *events: Event) -> Reply:
        """Append to the log. The reply is answered when the events are durable."""
        ...

    def post(self, command: Command) -> Reply: ...

    def emit(self, live: Live) -> None: ...

    def spawn(self, function: Callable[[], Coroutine[object, object, None]]) -> None:
        """Start a task that belongs to the engine. It must not raise."""
        ...

    async def ask(self, turn: str, call_id: str, question: Question, token: Token) -> str: ...

    async def delegate(
        self,
        call: "ActiveCall",
        turn_id: str,
        tasks: Sequence[ChildTask],
        token: Token,
        *,
        detached: bool,
    ) -> tuple[ChildReport, ...]: ...

    async def end_children(self, call: "ActiveCall", result: CallResult) -> CallResult:
        """End the sub-agents of a call that is over. They are over when this returns."""
        ...
