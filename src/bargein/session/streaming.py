"""One message and its turn as a stream of events, for `Session.stream`.

The stream begins with the event by which a turn takes the message and ends with the `TurnSettled`
of that turn. Events of other turns, before and beside it, are not in it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, Self

from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    ChildEnded,
    ChildStarted,
    MessageWithdrawn,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TurnSettled,
)
from bargein.contracts.live import TurnEvent
from bargein.contracts.message import Disposition
from bargein.contracts.output_type import T
from bargein.errors import UserError
from bargein.session.results import TAKES, TurnResult
from bargein.session.sending import Sent
from bargein.session.watching import OpenWatcher, follow

if TYPE_CHECKING:
    from bargein.session.engine import SessionEngine


class TurnStream(Generic[T]):
    """The events of a turn, for `async for`, and then its result. `aclose()` ends the reading, and
    stops nothing."""

    def __init__(self, events: AsyncGenerator[TurnEvent, None], accepted: list[Sent[T]]) -> None:
        """`events` puts what became of the message into `accepted`. It is no method of this class:
        it would refer back to it, and be closed late."""
        self._events = events
        self._sent = accepted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TurnEvent:
        return await self._events.__anext__()

    async def aclose(self) -> None:
        await self._events.aclose()

    @property
    def sent(self) -> Sent[T] | None:
        """The message, once it has been accepted."""
        return self._sent[0] if self._sent else None

    async def result(self) -> TurnResult[T]:
        """Waits for the end of the turn, as `Sent.result` does."""
        if not self._sent:
            raise UserError(
                "the message has not been sent yet; read the stream first, with `async for`"
            )
        return await self._sent[0].result()


async def stream_turn(
    engine: "SessionEngine",
    session_id: str,
    send: Callable[[], Awaitable[Sent[Any]]],
    accepted: list[Sent[Any]],
) -> AsyncGenerator[TurnEvent, None]:
    """Sends a message and yields the events of the turn that takes it. Keeps in `accepted` what
    became of the message."""
    # Opened before the message is sent: the first words of the answer can come at any moment.
    opened = OpenWatcher.of(await engine.actor(session_id))
    try:
        sent = await send()
        accepted.append(sent)
        if sent.disposition is Disposition.DUPLICATE:
            # Its turn began earlier, so the log has the beginning.
            batches = follow(engine, session_id, 0)
        else:
            batches = follow(engine, session_id, None, opened)
        events = EventsOfTurn(sent.message)
        async with aclosing(batches):
            async for batch in batches:
                for shown in batch:
                    event = shown.event if isinstance(shown, Recorded) else shown
                    if events.include(event):
                        yield event
                if events.are_over:
                    break
    finally:
        opened.watcher.close()
    # Raises if the turn failed or the message was withdrawn.
    await sent.result()


class EventsOfTurn:
    """Decides which events belong to the turn that takes `message`. Pure."""

    def __init__(self, message: str) -> None:
        self.are_over = False
        self._message = message
        self._turn: str | None = None
        self._begun: set[str] = set()
        """Ids of questions, sub-agents and detached calls of the turn: the events that end them
        carry no turn."""

    def include(self, event: TurnEvent) -> bool:
        """Returns whether the event belongs to the turn. Call it with every event, in order."""
        if self.are_over:
            return False
        if self._turn is None:
            if isinstance(event, TAKES) and self._message in event.messages:
                self._turn = event.turn
                return True
            if isinstance(event, MessageWithdrawn) and event.message == self._message:
                self.are_over = True
            return False
        match event:
            case (
                QuestionClosed(id=ended) | ChildEnded(child=ended) | BackgroundEnded(call_id=ended)
            ):
                return ended in self._begun
            case _ if getattr(event, "turn", None) != self._turn:
                return False
            case QuestionAsked(id=begun) | ChildStarted(child=begun) | CallDetached(call_id=begun):
                self._begun.add(begun)
            case TurnSettled():
                self.are_over = True
        return True
