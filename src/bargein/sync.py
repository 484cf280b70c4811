"""The engine for programs without an event loop: the same engine, stops and speed.

    from bargein.sync import Engine

    with Engine(Agent("openai:gpt-5-mini")) as engine:
        session = engine.session("alice")
        for event in session.stream("Count to a million"):
            print(event)
        receipt = session.interrupt()            # from this thread or any other
        print(session.send("Only to ten").result())

A separate thread runs the event loop; every method here is one call into it. A stop does not wait
for that call: it cancels the turn in the calling thread. Ctrl-C while a thread waits for a result
or a stream stops that turn and then raises KeyboardInterrupt as usual.

`Session` has the methods of `bargein.Session` with the same parameters; a test compares the two.
"""

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from bargein.cancel import Cause
from bargein.contracts.budget import Spent
from bargein.contracts.checkpoint import FilesUndone
from bargein.contracts.choice import choose
from bargein.contracts.event import Recorded
from bargein.contracts.live import ChildView, TurnEvent
from bargein.contracts.message import Attachment, Disposition, HeardSoFar, Mode, QuestionPolicy
from bargein.contracts.model import ModelMessage
from bargein.contracts.output_type import T
from bargein.contracts.permission import GrantScope, KeptGrant, May, PermissionMode, Standing
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import OpenQuestion
from bargein.runtime import engine as runtime_engine
from bargein.runtime.agent import Agent
from bargein.session import session as async_session
from bargein.session.broadcast import Watched
from bargein.session.results import TurnResult
from bargein.session.rewinding import Rewind
from bargein.session.sending import SendOptions
from bargein.session.session import Content, InboxItem
from bargein.session.side_question import SideAnswer
from bargein.session.state import SessionState
from bargein.session.streaming import TurnStream as AsyncTurnStream
from bargein.session.turn import AgentFunction
from bargein.session.undo import Undone
from bargein.session.undoing_calls import CallsBeingUndone

U = TypeVar("U")

U_co = TypeVar("U_co", covariant=True)


class _Events(Protocol[U_co]):
    """What comes one by one in the engine's loop: an async generator, or a `TurnStream`."""

    def __anext__(self) -> Coroutine[Any, Any, U_co]: ...

    def aclose(self) -> Coroutine[Any, Any, None]: ...


class Engine(Generic[T]):
    """Takes the arguments of `bargein.Engine`."""

    def __init__(self, agent: Agent[T] | AgentFunction, **options: Any) -> None:
        self._inner = runtime_engine.Engine(agent, **options)
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

    def session(self, session_id: str) -> "Session[T]":
        inner = self.call(self._inner.session, session_id)
        return Session(self, inner)

    def call(self, function: Callable[..., Coroutine[Any, Any, U]], *args: Any, **kwargs: Any) -> U:
        """Run a coroutine function in the engine's loop and wait for its result."""
        return self.start(function, *args, **kwargs).result()

    def start(
        self, function: Callable[..., Coroutine[Any, Any, U]], *args: Any, **kwargs: Any
    ) -> Future[U]:
        """Start a coroutine function in the engine's loop."""
        if self._portal is None:
            raise RuntimeError("the engine is not open; use `with Engine(...) as engine:`")
        return self._portal.start_task_soon(partial(function, *args, **kwargs))


class Session(Generic[T]):
    """`bargein.Session` without `await`: the same methods. Any thread may call them."""

    def __init__(self, engine: Engine[Any], inner: async_session.Session[T]) -> None:
        self.id = inner.id
        self._engine = engine
        self._inner = inner

    # Messages

    @overload
    def send(self, content: Content, **options: Unpack[SendOptions]) -> "Sent[T]": ...

    @overload
    def send(
        self, content: Content, *, output: type[U], **options: Unpack[SendOptions]
    ) -> "Sent[U]": ...

    @overload
    def send(
        self, content: Content, *, output: object, **options: Unpack[SendOptions]
    ) -> "Sent[Any]": ...

    def send(
        self,
        content: Content,
        *,
        mode: Mode | str = Mode.STEER,
        sender: str = "user",
        client_id: str | None = None,
        expected_turn: str | None = None,
        attachments: Sequence[Attachment] = (),
        group: str | None = None,
        output: object = None,
        questions: QuestionPolicy | None = None,
        heard: HeardSoFar | None = None,
    ) -> "Sent[Any]":
        sent = self._engine.call(
            self._inner.send,
            content,
            mode=mode,
            sender=sender,
            client_id=client_id,
            expected_turn=expected_turn,
            attachments=attachments,
            group=group,
            output=output,
            questions=questions,
            heard=heard,
        )
        return Sent(self, sent)

    @overload
    def stream(self, content: Content, **options: Unpack[SendOptions]) -> "TurnStream[T]": ...

    @overload
    def stream(
        self, content: Content, *, output: type[U], **options: Unpack[SendOptions]
    ) -> "TurnStream[U]": ...

    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[SendOptions]
    ) -> "TurnStream[Any]": ...

    def stream(
        self,
        content: Content,
        *,
        mode: Mode | str = Mode.STEER,
        sender: str = "user",
        client_id: str | None = None,
        expected_turn: str | None = None,
        attachments: Sequence[Attachment] = (),
        group: str | None = None,
        output: object = None,
        questions: QuestionPolicy | None = None,
        heard: HeardSoFar | None = None,
    ) -> "TurnStream[Any]":
        """Send a message and yield the events of its turn. Ctrl-C while this thread waits for an
        event stops the turn; leaving the loop stops nothing."""
        events = self._inner.stream(
            content,
            mode=mode,
            sender=sender,
            client_id=client_id,
            expected_turn=expected_turn,
            attachments=attachments,
            group=group,
            output=output,
            questions=questions,
            heard=heard,
        )
        return TurnStream(self, events)

    def _events_of(self, events: AsyncTurnStream[Any]) -> Generator[TurnEvent, None, None]:
        try:
            with closing(self._iterate(events)) as coming:
                yield from coming
        except KeyboardInterrupt:
            # KeyboardInterrupt gets here only while this thread waits for an event.
            self._stop_turn_of(events)
            raise

    def result(self, message: str) -> TurnResult[T]:
        return self._engine.call(self._inner.result, message)

    # Interrupts

    def interrupt(
        self,
        *,
        scope: Scope | str = Scope.TURN,
        target: str | None = None,
        expected_turn: str | None = None,
        by: str = "user",
        cause: Cause = Cause.USER_STOP,
        heard: HeardSoFar | None = None,
    ) -> Receipt:
        """Stop at once, in this thread, and return the receipt when everything has settled."""
        if choose(Scope, scope) is Scope.TURN:
            stop = self._inner.interrupt_now(
                expected_turn=expected_turn or target, by=by, cause=cause, heard=heard
            )
            return self._engine.call(stop.receipt)
        return self._engine.call(
            self._inner.interrupt,
            scope=scope,
            target=target,
            expected_turn=expected_turn,
            by=by,
            cause=cause,
            heard=heard,
        )

    def interrupt_now(
        self,
        *,
        expected_turn: str | None = None,
        by: str = "user",
        cause: Cause = Cause.USER_STOP,
        heard: HeardSoFar | None = None,
    ) -> bool:
        """Stop the running turn without waiting, for example in a signal handler. Returns True if a
        turn is being stopped."""
        stop = self._inner.interrupt_now(
            expected_turn=expected_turn, by=by, cause=cause, heard=heard
        )
        return stop.landed

    def side_question(self, question: str, *, question_id: str | None = None) -> SideAnswer:
        """Ask the model something beside the running turn, without touching it."""
        return self._engine.call(self._inner.side_question, question, question_id=question_id)

    def pause(self) -> None:
        self._engine.call(self._inner.pause)

    def resume(self) -> None:
        self._engine.call(self._inner.resume)

    def detach(self, call_id: str) -> None:
        self._engine.call(self._inner.detach, call_id)

    # Questions and sub-agents

    def questions(self) -> tuple[OpenQuestion, ...]:
        return self._engine.call(self._inner.questions)

    def answer(
        self,
        question: str,
        text: str,
        *,
        by: str = "user",
        standing: Standing = Standing.OWNER,
    ) -> "Sent[T] | None":
        sent = self._engine.call(self._inner.answer, question, text, by=by, standing=standing)
        return Sent(self, sent) if sent is not None else None

    def mode(self) -> PermissionMode:
        return self._engine.call(self._inner.mode)

    def set_mode(
        self,
        mode: PermissionMode | str,
        *,
        by: str = "user",
        standing: Standing = Standing.OWNER,
    ) -> PermissionMode:
        return self._engine.call(self._inner.set_mode, mode, by=by, standing=standing)

    def may(self, standing: Standing = Standing.OWNER) -> May:
        return self._engine.call(self._inner.may, standing)

    def grants(self, scope: GrantScope | str = GrantScope.SESSION) -> tuple[KeptGrant, ...]:
        return self._engine.call(self._inner.grants, scope)

    def revoke(
        self,
        grant: str,
        *,
        scope: GrantScope | str = GrantScope.SESSION,
        by: str = "user",
        standing: Standing = Standing.OWNER,
    ) -> None:
        self._engine.call(self._inner.revoke, grant, scope=scope, by=by, standing=standing)

    def dismiss(self, question: str, *, by: str = "user") -> None:
        self._engine.call(self._inner.dismiss, question, by=by)

    def children(self) -> tuple[ChildView, ...]:
        return self._engine.call(self._inner.children)

    # The inbox

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

    # The conversation

    def undo(
        self, *, files: bool | None = None, overrule: Sequence[str] = (), by: str = "user"
    ) -> Undone:
        return self._engine.call(self._inner.undo, files=files, overrule=overrule, by=by)

    def preview_undo(self, turn: str | None = None, *, overrule: Sequence[str] = ()) -> Undone:
        return self._engine.call(self._inner.preview_undo, turn, overrule=overrule)

    def rewind(
        self,
        turn: str,
        what: Rewind | str | None = None,
        *,
        overrule: Sequence[str] = (),
        by: str = "user",
    ) -> Undone:
        return self._engine.call(self._inner.rewind, turn, what, overrule=overrule, by=by)

    def redo(self, *, by: str = "user") -> FilesUndone:
        return self._engine.call(self._inner.redo, by=by)

    def undo_calls(
        self, calls: Sequence[str] | None = None, *, by: str = "user"
    ) -> CallsBeingUndone:
        return self._engine.call(self._inner.undo_calls, calls, by=by)

    def diff(self, turn: str | None = None) -> str:
        return self._engine.call(self._inner.diff, turn)

    def staged(self) -> StagedFiles | None:
        return self._engine.call(self._inner.staged)

    def set_staged(self, on: bool = True, *, by: str = "user") -> None:
        self._engine.call(self._inner.set_staged, on, by=by)

    def accept_staged(
        self, paths: Sequence[str] = (), *, overrule: Sequence[str] = (), by: str = "user"
    ) -> StagedFiles:
        return self._engine.call(self._inner.accept_staged, paths, overrule=overrule, by=by)

    def undo_accept(self, *, by: str = "user") -> StagedFiles:
        return self._engine.call(self._inner.undo_accept, by=by)

    def discard_staged(self, paths: Sequence[str] = (), *, by: str = "user") -> StagedFiles:
        return self._engine.call(self._inner.discard_staged, paths, by=by)

    def compact(self, *, by: str = "user") -> TurnResult:
        return self._engine.call(self._inner.compact, by=by)

    def rename(self, title: str, *, by: str = "user") -> None:
        self._engine.call(self._inner.rename, title, by=by)

    def fork(self, turn: str | None = None, *, by: str = "user") -> str:
        return self._engine.call(self._inner.fork, turn, by=by)

    def place(self) -> SessionPlace | None:
        return self._engine.call(self._inner.place)

    def set_place(
        self, place: SessionPlace, *, environment: Mapping[str, str] | None = None, by: str = "user"
    ) -> None:
        self._engine.call(self._inner.set_place, place, environment=environment, by=by)

    def begin_with(
        self, history: Sequence[ModelMessage], *, instructions: str = "", by: str = "user"
    ) -> None:
        self._engine.call(self._inner.begin_with, history, instructions=instructions, by=by)

    def end(self, *, by: str = "user") -> None:
        self._engine.call(self._inner.end, by=by)

    def settled(self) -> None:
        self._engine.call(self._inner.settled)

    # Looking

    def state(self) -> SessionState:
        return self._engine.call(self._inner.state)

    def usage(self) -> Spent:
        return self._engine.call(self._inner.usage)

    def position(self) -> int:
        return self._engine.call(self._inner.position)

    def events(self, *, after: int = 0) -> list[Recorded]:
        return self._engine.call(self._inner.events, after=after)

    def log(self) -> Iterator[Recorded]:
        return self._iterate(self._inner.log())

    def transcript(self) -> tuple[ModelMessage, ...]:
        return self._engine.call(self._inner.transcript)

    def watch(self, *, after: int | None = None) -> Iterator[Watched]:
        """Yield events as they happen. Blocks, so use it in a separate thread. Ends with the
        session or the engine."""
        return self._iterate(self._inner.watch(after=after))

    # Waiting

    def _iterate(self, events: _Events[U]) -> Generator[U, None, None]:
        """Yield what an async generator yields, until it ends or the engine is closed."""
        try:
            while self._engine.is_open:
                yield self._next(events)
        except (StopAsyncIteration, CancelledError):
            return
        except RuntimeError:
            # The engine may have been closed just before the call.
            if self._engine.is_open:
                raise
        except GeneratorExit:
            self._close(events)
            raise

    def _next(self, events: _Events[U]) -> U:
        coming = self._engine.start(events.__anext__)
        try:
            return coming.result()
        except KeyboardInterrupt:
            # This also ends the generator, which is waiting for its next event.
            coming.cancel()
            raise

    def _close(self, events: _Events[U]) -> None:
        try:
            self._engine.call(events.aclose)
        except (RuntimeError, CancelledError):
            # The engine has closed the generator.
            if self._engine.is_open:
                raise

    def _wait_for(self, sent: async_session.Sent[U] | AsyncTurnStream[U]) -> TurnResult[U]:
        try:
            return self._engine.call(sent.result)
        except KeyboardInterrupt:
            self._stop_turn_of(sent)
            raise

    def _stop_turn_of(self, sent: async_session.Sent[Any] | AsyncTurnStream[Any]) -> None:
        """Stop the turn that has the message, or for a steer the one that is to take it. A message
        that only waits has none, and nothing is stopped."""
        turn = self._engine.call(self._turn_of, sent)
        if turn is not None:
            self.interrupt(expected_turn=turn)

    async def _turn_of(self, sent: async_session.Sent[Any] | AsyncTurnStream[Any]) -> str | None:
        accepted = sent.sent if isinstance(sent, AsyncTurnStream) else sent
        if accepted is None:
            return None
        actor = self._inner._engine.actor_in_memory(self.id)
        taken = actor.results.turn_of(accepted.message) if actor is not None else None
        return taken or accepted.turn


class TurnStream(Generic[T]):
    """The events of a turn, for a loop, and then its result. `close()` ends the reading, and stops
    nothing."""

    def __init__(self, session: Session[Any], inner: AsyncTurnStream[T]) -> None:
        self._session = session
        self._inner = inner
        self._events = session._events_of(inner)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TurnEvent:
        return next(self._events)

    def close(self) -> None:
        self._events.close()

    def result(self) -> TurnResult[T]:
        """Waits for the end of the turn, as `Sent.result` does."""
        return self._session._wait_for(self._inner)


class Sent(Generic[T]):
    """An accepted message. `result()` waits for the turn that takes it."""

    def __init__(self, session: Session[Any], inner: async_session.Sent[T]) -> None:
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

    def result(self) -> TurnResult[T]:
        """Wait for the result. Ctrl-C meanwhile stops the turn and raises KeyboardInterrupt. If no
        turn has taken the message yet, nothing is stopped."""
        return self._session._wait_for(self._inner)
