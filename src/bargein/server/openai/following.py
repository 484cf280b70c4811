"""One message of a client, followed from its hand-over until the turn that took it has settled.

Also where a client that goes away is felt: its message is taken back, or its turn is stopped.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
from starlette.types import Receive

from bargein.cancel import Cause
from bargein.contracts.event import (
    AssistantSaid,
    MessagesTaken,
    MessageWithdrawn,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import AnswerSoFar, AnswerVoid, StepBegan, TextDelta
from bargein.contracts.model import Text, Usage
from bargein.contracts.receipt import StepKind
from bargein.server.access import Principal
from bargein.server.gateway import Reader
from bargein.server.problems import Code, Problem
from bargein.session.broadcast import Watched
from bargein.session.session import Session, TooLate

PARAGRAPH = "\n\n"
"""Between what the model says before and after it used its tools."""

OnText = Callable[[str], Awaitable[None]]


class Followed:
    """What has been seen of one message. `text` is all that was said for it."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.turn: str | None = None
        self.text = ""
        self.usage = Usage()
        self.settled: TurnSettled | None = None
        self.withdrawn = False
        self._step_begins_at = 0

    def add(self, shown: Watched) -> str:
        """What is new to be told to the client."""
        if isinstance(shown, Recorded):
            return self._add_event(shown)
        if getattr(shown, "turn", None) != self.turn or self.turn is None:
            return ""
        match shown:
            case StepBegan(kind=StepKind.MODEL):
                self._step_begins_at = len(self.text)
            case TextDelta(text=text):
                return self._say(text)
            case AnswerSoFar(text=text):
                return self._say(text[len(self._of_step) :])
            case AnswerVoid() if self._of_step:
                raise Problem(
                    Code.UNAVAILABLE,
                    f"the model failed in the middle of its answer ({shown.cause}); ask again",
                )
        return ""

    def _add_event(self, recorded: Recorded) -> str:
        match recorded.event:
            case TurnStarted() | MessagesTaken() as taken if self.message in taken.messages:
                self.turn = taken.turn
            case MessageWithdrawn(message=message) if message == self.message:
                self.withdrawn = True
            case AssistantSaid() as said if said.turn == self.turn:
                used = said.usage
                self.usage = Usage(
                    self.usage.input_tokens + used.input_tokens,
                    self.usage.output_tokens + used.output_tokens,
                    self.usage.cached_input_tokens + used.cached_input_tokens,
                    self.usage.estimated or used.estimated,
                )
                return self._say_rest(said)
            case TurnSettled() as settled if settled.turn == self.turn:
                self.settled = settled
        return ""

    @property
    def over(self) -> bool:
        return self.settled is not None or self.withdrawn

    @property
    def outcome(self) -> TurnOutcome | None:
        return self.settled.outcome if self.settled is not None else None

    @property
    def _of_step(self) -> str:
        return self.text[self._step_begins_at :].removeprefix(PARAGRAPH)

    def _say(self, text: str) -> str:
        if text and self.text and len(self.text) == self._step_begins_at:
            text = PARAGRAPH + text
        self.text += text
        return text

    def _say_rest(self, said: AssistantSaid) -> str:
        """What is in the log and was never seen as it came, as after a reconnect."""
        words = "".join(part.text for part in said.message.content if isinstance(part, Text))
        rest = self._say(words[len(self._of_step) :]) if words.startswith(self._of_step) else ""
        self._step_begins_at = len(self.text)
        return rest


async def follow(session: Session, message: str, after: int, on_text: OnText) -> Followed:
    """Watch until the message's turn has settled; `after` is a place in the log before it."""
    followed = Followed(message)
    async with aclosing(session.watch(after=after)) as events:
        async for shown in events:
            text = followed.add(shown)
            if text:
                await on_text(text)
            if followed.over:
                return followed
    raise Problem(Code.UNAVAILABLE, f"session {session.id} ended before {message} was answered")


class Listener(Reader):
    """One client that waits: until it has its answer, goes away, or is cut off."""

    def __init__(self, principal: Principal, root: str) -> None:
        super().__init__(principal, root)
        self.answered = False
        self.gone = False

    async def hear(self, receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work for as long as it listens."""
        failure: Exception | None = None
        with self.scope:
            async with anyio.create_task_group() as group:

                async def listen() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    self.gone = True
                    group.cancel_scope.cancel()

                group.start_soon(listen)
                try:
                    await work()
                    self.answered = True
                except Exception as error:  # boundary: raised again below, outside of the group
                    failure = error
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def take_back(session: Session, message: str, by: str, cause: Cause) -> bool:
    """Nobody waits for this message any more: withdraw it, which is True, or stop the turn that
    took it."""
    try:
        await session.withdraw(message, by=by)
        return True
    except TooLate:
        turn = await turn_of(session, message)
        if turn is not None:
            await session.interrupt(expected_turn=turn, by=by, cause=cause)
        return False


async def turn_of(session: Session, message: str) -> str | None:
    for recorded in await session.events():
        event = recorded.event
        if isinstance(event, TurnStarted | MessagesTaken) and message in event.messages:
            return event.turn
    return None
