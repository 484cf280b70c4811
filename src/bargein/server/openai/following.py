"""One message of a client, followed from its hand-over until the turn that took it has settled.

Also where a client that goes away is felt: its message is taken back, or its turn is stopped.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
from starlette.types import Receive

from bargein.cancel import Cause
from bargein.contracts.event import (
    UNANSWERED,
    AssistantSaid,
    Event,
    InterruptLanded,
    MessageAccepted,
    MessagesTaken,
    MessageWithdrawn,
    QuestionAsked,
    QuestionClosed,
    QueueHeld,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import AnswerSoFar, AnswerVoid, StepBegan, TextDelta
from bargein.contracts.model import Text, Usage
from bargein.contracts.output import Output
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import QuestionKind
from bargein.server.access import Principal
from bargein.server.gateway import Reader
from bargein.server.problems import Code, Problem
from bargein.session.broadcast import Watched
from bargein.session.session import Session, TooLate

PARAGRAPH = "\n\n"
"""Between what the model says before and after it used its tools."""
QUESTION_CHARACTERS_MAX = 500

OnText = Callable[[str], Awaitable[None]]


class Followed:
    """What has been seen of one message. `text` is its answer: all that was said for it or, if its
    message says what the answer must be, what was said last, once that has been checked. `tells`:
    the text is told to the client as it comes."""

    def __init__(self, session: str, message: str, *, tells: bool = False) -> None:
        self.session = session
        self.message = message
        self.accepted: MessageAccepted | None = None
        self.accepted_at = 0.0
        self.turn: str | None = None
        self.usage = Usage()
        self.settled: TurnSettled | None = None
        self.withdrawn = False
        self.unanswered: QuestionAsked | None = None
        """The question that ended the turn."""
        self._tells = tells
        self._asked: dict[str, QuestionAsked] = {}
        self._words = ""
        self._last_words = ""
        self._step_begins_at = 0

    def add(self, shown: Watched) -> str:
        """What is new to be told to the client."""
        words = self._add(shown)
        if self.output is None:
            return words
        return self.text if self.settled is not None else ""

    def _add(self, shown: Watched) -> str:
        if isinstance(shown, Recorded):
            return self._add_event(shown)
        if getattr(shown, "turn", None) != self.turn or self.turn is None:
            return ""
        match shown:
            case StepBegan(kind=StepKind.MODEL):
                self._step_begins_at = len(self._words)
            case TextDelta(text=text):
                return self._say(text)
            case AnswerSoFar(text=text):
                return self._say(text[len(self._of_step) :])
            case AnswerVoid() if self._of_step:
                self._void(shown.cause)
        return ""

    def _add_event(self, recorded: Recorded) -> str:
        match recorded.event:
            case MessageAccepted(message=message) as accepted if message.id == self.message:
                self.accepted, self.accepted_at = accepted, recorded.at
            case TurnStarted() | MessagesTaken() as taken if self.message in taken.messages:
                self.turn = taken.turn
            case MessageWithdrawn(message=withdrawn) if withdrawn == self.message:
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
            case event if getattr(event, "turn", None) == self.turn or self._asked:
                self._add_end(event)
        return ""

    def _add_end(self, event: Event) -> None:
        match event:
            case QuestionAsked() if event.turn == self.turn:
                self._asked[event.id] = event
            case QuestionClosed(answer=str()):
                self._asked.pop(event.id, None)
            case InterruptLanded(reason=reason) if event.turn == self.turn and reason == UNANSWERED:
                self.unanswered = next(iter(self._asked.values()), None)
            case TurnSettled() if event.turn == self.turn:
                self.settled = event

    @property
    def over(self) -> bool:
        return self.settled is not None or self.withdrawn

    @property
    def outcome(self) -> TurnOutcome | None:
        return self.settled.outcome if self.settled is not None else None

    @property
    def output(self) -> Output | None:
        return self.accepted.message.output if self.accepted is not None else None

    @property
    def text(self) -> str:
        if self.output is None:
            return self._words
        return self._last_words if self.outcome is TurnOutcome.COMPLETED else ""

    @property
    def problem(self) -> Problem | None:
        """Why there is no answer, once it is over."""
        if self.unanswered is not None:
            return _unanswered(self.unanswered, self.session)
        if self.outcome in (TurnOutcome.FAILED, TurnOutcome.CRASHED):
            assert self.settled is not None
            words = self.settled.error or "the server ended before the answer did"
            return Problem(Code.UNAVAILABLE, words)
        return None

    @property
    def _of_step(self) -> str:
        return self._words[self._step_begins_at :].removeprefix(PARAGRAPH)

    def _say(self, text: str) -> str:
        if text and self._words and len(self._words) == self._step_begins_at:
            text = PARAGRAPH + text
        self._words += text
        return text

    def _say_rest(self, said: AssistantSaid) -> str:
        """What is in the log and was never seen as it came, as after a reconnect."""
        words = "".join(part.text for part in said.message.content if isinstance(part, Text))
        rest = self._say(words[len(self._of_step) :]) if words.startswith(self._of_step) else ""
        self._step_begins_at = len(self._words)
        self._last_words = words
        return rest

    def _void(self, cause: str) -> None:
        """The model is asked again, and what it had said is void: forgotten, if nobody saw it."""
        if self._tells and self.output is None:
            raise Problem(
                Code.UNAVAILABLE,
                f"the model failed in the middle of its answer ({cause}); ask again",
            )
        self._words = self._words[: self._step_begins_at]


def _unanswered(asked: QuestionAsked, session: str) -> Problem:
    question = asked.question
    kind = "to approve a call" if question.kind is QuestionKind.APPROVAL else "a question"
    words = question.text
    if len(words) > QUESTION_CHARACTERS_MAX:
        words = f"{words[:QUESTION_CHARACTERS_MAX]}..."
    return Problem(
        Code.UNANSWERED,
        f"the agent asked {kind}: {words!r} (question {asked.id} of session {session}). Nobody can "
        "answer over this API, so the turn was stopped and the question closed. To have it "
        'answered, ask again with metadata {"questions": "wait"} in a session that is kept, and '
        f"answer at POST /v1/sessions/{session}/questions/ID/answer or on the page; or have such "
        'calls denied with {"questions": "refuse"}. The operator sets the default with '
        "openai_questions.",
    )


async def follow(
    session: Session,
    message: str,
    after: int,
    on_text: OnText | None = None,
    *,
    waits_if_held: bool = True,
) -> Followed:
    """Watch until the message's turn has settled; `after` is a place in the log before it. Raises
    if a stop of another turn holds the message back, unless it `waits_if_held`."""
    followed = Followed(session.id, message, tells=on_text is not None)
    async with aclosing(session.watch(after=after)) as events:
        async for shown in events:
            text = followed.add(shown)
            if text and on_text is not None:
                await on_text(text)
            if followed.over:
                return followed
            held = isinstance(shown, Recorded) and isinstance(shown.event, QueueHeld)
            if held and not waits_if_held:
                await _refuse_if_held(session, message)
    raise Problem(Code.UNAVAILABLE, f"session {session.id} ended before {message} was answered")


async def _refuse_if_held(session: Session, message: str) -> None:
    state = await session.state()
    if state.held and any(each.message.id == message for each in state.waiting):
        raise Problem(
            Code.BUSY,
            f"the turn before this one was stopped in session {session.id}, which holds what waits "
            "behind it; this message was taken back, send it again",
        )


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
    async for recorded in session.log():
        event = recorded.event
        if isinstance(event, TurnStarted | MessagesTaken) and message in event.messages:
            return event.turn
    return None
