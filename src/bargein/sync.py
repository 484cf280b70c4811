"""The engine for programs without an event loop: the same engine, the same stop, the same speed.

    from bargein.sync import Engine

    with Engine(Agent(model="openai:gpt-5-mini")) as engine:
        session = engine.session("alice")
        sent = session.send("Count to a million")
        receipt = session.interrupt()            # from this thread or any other
        print(session.send("Only to ten").result())

A loop in a thread of its own does the work; every method here is one call into it. A stop does not
wait for that call: the turn is cancelled in the thread that asks. Ctrl-C while a result is waited
for stops that turn, and then is the KeyboardInterrupt that it always is.
"""

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from bargein.cancel import Cause, Reason
from bargein.contracts.budget import Spent
from bargein.contracts.choice import choose
from bargein.contracts.event import Recorded
from bargein.contracts.message import Disposition
from bargein.contracts.model import ModelMessage
from bargein.contracts.receipt import Receipt, Scope
from bargein.runtime import engine as engine_module
from bargein.runtime.agent import Agent
from bargein.session import session as session_module
from bargein.session.actor import Landing
from bargein.session.broadcast import Watched
from bargein.session.results import TurnResult
from bargein.session.session import Content, InboxItem
from bargein.session.state import SessionState
from bargein.session.turn import AgentFunction

T = TypeVar("T")


class Engine:
    """Takes what `bargein.Engine` takes."""

    def __init__(self, agent: Agent | AgentFunction, **options: Any) -> None:
        self._inner = engine_module.Engine(agent, **options)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        options = {"use_uvloop": find_spec("uvloop") is not None}
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", options))
            stack.enter_context(portal.wrap_async_context_manager(self._inner))
            self._portal = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, trace)

    @property
    def is_open(self) -> bool:
        return self._portal is not None

    def session(self, session_id: str) -> "Session":
        inner = self.call(self._inner.session, session_id)
        return Session(self, inner)

    def land(
        self, session_id: str, reason: Reason, expected_turn: str | None = None
    ) -> Landing | None:
        """Cancel the running turn of a session now, in this thread or signal handler."""
        return self._inner.land(session_id, reason, expected_turn)

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        return self.start(function, *args, **kwargs).result()

    def start(
        self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
    ) -> Future[T]:
        if self._portal is None:
            raise RuntimeError("the engine is not open; use `with Engine(...) as engine:`")
        return self._portal.start_task_soon(partial(function, *args, **kwargs))


class Session:
    """See `bargein.session.session.Session`: the same methods, without `await`."""

    def __init__(self, engine: Engine, inner: session_module.Session) -> None:
        self.id = inner.id
        self._engine = engine
        self._inner = inner

    def send(self, content: Content, **options: Any) -> "Sent":
        return Sent(self, self._engine.call(self._inner.send, content, **options))

    def interrupt(
        self,
        *,
        scope: Scope | str = Scope.TURN,
        target: str | None = None,
        expected_turn: str | None = None,
        by: str = "user",
        cause: Cause = Cause.USER_STOP,
    ) -> Receipt:
        """Stop what is named: at once, in this thread. Back when it has settled."""
        landing = None
        if choose(Scope, scope) is Scope.TURN:
            landing = self._engine.land(self.id, Reason(cause, by), expected_turn or target)
        return self._engine.call(
            self._inner.interrupt,
            scope=scope,
            target=target,
            expected_turn=expected_turn,
            by=by,
            cause=cause,
            landing=landing,
        )

    def pause(self) -> None:
        self._engine.call(self._inner.pause)

    def resume(self) -> None:
        self._engine.call(self._inner.resume)

    def detach(self, call_id: str) -> None:
        self._engine.call(self._inner.detach, call_id)

    def answer(self, question: str, text: str, *, by: str = "user") -> None:
        self._engine.call(self._inner.answer, question, text, by=by)

    def inbox(self) -> tuple[InboxItem, ...]:
        return self._engine.call(self._inner.inbox)

    def edit(self, message: str, content: Content, *, by: str = "user") -> None:
        self._engine.call(self._inner.edit, message, content, by=by)

    def move(self, message: str, *, before: str | None = None, by: str = "user") -> None:
        self._engine.call(self._inner.move, message, before=before, by=by)

    def withdraw(self, message: str, *, by: str = "user") -> None:
        self._engine.call(self._inner.withdraw, message, by=by)

    def continue_(self) -> None:
        self._engine.call(self._inner.continue_)

    def compact(self, *, by: str = "user") -> TurnResult:
        return self._engine.call(self._inner.compact, by=by)

    def rename(self, title: str, *, by: str = "user") -> None:
        self._engine.call(self._inner.rename, title, by=by)

    def usage(self) -> Spent:
        return self._engine.call(self._inner.usage)

    def end(self, *, by: str = "user") -> None:
        self._engine.call(self._inner.end, by=by)

    def state(self) -> SessionState:
        return self._engine.call(self._inner.state)

    def events(self, *, after: int = 0) -> list[Recorded]:
        return self._engine.call(self._inner.events, after=after)

    def transcript(self) -> tuple[ModelMessage, ...]:
        return self._engine.call(self._inner.transcript)

    def watch(self, *, after: int | None = None) -> Iterator[Watched]:
        """Events as they happen; for a thread of its own. Ends with the session or the engine."""
        events = self._inner.watch(after=after)
        try:
            while self._engine.is_open:
                yield self._engine.call(events.__anext__)
        except (StopAsyncIteration, CancelledError):
            return
        except RuntimeError:
            # The engine was closed between the look and the call.
            if self._engine.is_open:
                raise
        finally:
            try:
                self._engine.call(events.aclose)
            except (RuntimeError, CancelledError):
                # It was closed with the engine.
                if self._engine.is_open:
                    raise

    def wait_for(self, sent: session_module.Sent) -> TurnResult:
        """The result of a message. Ctrl-C here stops its turn, and is raised as always."""
        try:
            return self._engine.start(sent.result).result()
        except KeyboardInterrupt:
            self.interrupt()
            raise


class Sent:
    def __init__(self, session: Session, inner: session_module.Sent) -> None:
        self._session = session
        self._inner = inner

    @property
    def message(self) -> str:
        return self._inner.message

    @property
    def disposition(self) -> Disposition:
        return self._inner.disposition

    @property
    def turn(self) -> str | None:
        return self._inner.turn

    def result(self) -> TurnResult:
        return self._session.wait_for(self._inner)
