"""Follows one message of a client from its hand-over until the turn that took it has settled.

Also what happens when the client goes away: its message is withdrawn, or its turn is stopped.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
from starlette.types import Receive

from bargein.cancel import Cause
from bargein.contracts.event import UNANSWERED, Recorded, TurnOutcome
from bargein.contracts.model import Usage
from bargein.contracts.output import TEXT, Output
from bargein.contracts.tool import QuestionKind
from bargein.server.access import Principal
from bargein.server.gateway import Reader
from bargein.server.problems import Code, Problem
from bargein.session.broadcast import Watched
from bargein.session.session import Session, TooLate
from bargein.view import (
    AnswerVoided,
    Change,
    MessageArrived,
    MessageFate,
    MessageTaken,
    Picture,
    ShownAnswer,
    ShownMessage,
    ShownQuestion,
    ShownTurn,
    TurnOpened,
    TurnState,
    WordsAdded,
)

PARAGRAPH = "\n\n"
"""Between what the model says before and after it used its tools."""
QUESTION_CHARACTERS_MAX = 500

OnText = Callable[[str], Awaitable[None]]


class Followed:
    """One message in the picture of its session.

    `text` is its answer: all that was said for it; or, if the message or its agent (`output`) says
    what the answer must be, the last answer, once the turn has completed. `tells`: the client gets
    the text as it comes.
    """

    def __init__(
        self,
        session: str,
        message: str,
        *,
        output: Output | None = None,
        tells: bool = False,
        turns_max: int | None = None,
    ) -> None:
        self.session = session
        self.message = message
        self.picture = Picture(session, turns_max=turns_max)
        self.turn: ShownTurn | None = None
        self._tells = tells
        self._output = output
        self._answers_before = 0
        """How many answers its turn had given before it took the message."""
        self._told: ShownAnswer | None = None

    def add(self, shown: Watched) -> str:
        """Returns the text that the client is to be told now."""
        turn = self.turn
        if not isinstance(shown, Recorded) and (turn is None or shown.turn != turn.id):
            # What other turns say is told to others; the log has what became of it.
            return ""
        words = ""
        for change in self.picture.apply(shown):
            words += self._add(change)
        if self._output is None:
            return words
        return self.text if self.settled is not None else ""

    def _add(self, change: Change) -> str:
        match change:
            case WordsAdded(answer=answer, text=text) if self._is_ours(answer.turn) and text:
                return self._say(answer, text)
            case MessageArrived(message=message) if message.id == self.message:
                asked = message.message.output or self._output
                self._output = None if asked == TEXT else asked
            case TurnOpened(turn=turn) if self.message in turn.messages:
                self.turn = turn
            case MessageTaken(message=message) if message.id == self.message and message.turn:
                self.turn = self.picture.turns[message.turn]
                self._answers_before = len(self.turn.answers)
            case AnswerVoided(turn=turn_id, answer=answer) if self._is_ours(turn_id):
                if answer is not None and answer.words:
                    self._void(change.cause)
            case _:
                pass
        return ""

    def _is_ours(self, turn_id: str) -> bool:
        return self.turn is not None and self.turn.id == turn_id

    def _say(self, answer: ShownAnswer, text: str) -> str:
        """Begins a paragraph with the first words of each answer but the first."""
        before, self._told = self._told, answer
        return PARAGRAPH + text if before is not None and before is not answer else text

    def _void(self, cause: str) -> None:
        """The model is asked again. A client that was told its words cannot be told otherwise."""
        if self._tells and self.output is None:
            raise Problem(
                Code.UNAVAILABLE,
                f"the model failed in the middle of its answer ({cause}); ask again",
            )

    @property
    def known(self) -> ShownMessage | None:
        return self.picture.messages.get(self.message)

    @property
    def settled(self) -> ShownTurn | None:
        turn = self.turn
        return turn if turn is not None and turn.state is TurnState.SETTLED else None

    @property
    def withdrawn(self) -> bool:
        known = self.known
        return known is not None and known.fate is MessageFate.WITHDRAWN

    @property
    def over(self) -> bool:
        return self.settled is not None or self.withdrawn

    @property
    def outcome(self) -> TurnOutcome | None:
        turn = self.turn
        return turn.outcome if turn is not None else None

    @property
    def output(self) -> Output | None:
        return self._output

    @property
    def _answers(self) -> list[ShownAnswer]:
        turn = self.turn
        if turn is None:
            return []
        return [*turn.answers[self._answers_before :], *turn.saying]

    @property
    def text(self) -> str:
        if self.output is None:
            return PARAGRAPH.join(answer.text for answer in self._answers if answer.words)
        if self.outcome is not TurnOutcome.COMPLETED or not self._answers:
            return ""
        return self._answers[-1].text

    @property
    def usage(self) -> Usage:
        used = [answer.usage for answer in self._answers]
        return Usage(
            sum(each.input_tokens for each in used),
            sum(each.output_tokens for each in used),
            sum(each.cached_input_tokens for each in used),
            any(each.estimated for each in used),
        )

    @property
    def unanswered(self) -> ShownQuestion | None:
        """The question that ended the turn."""
        turn = self.turn
        if turn is None or all(each.reason != UNANSWERED for each in turn.interrupts):
            return None
        asked = (each for each in self.picture.questions.values() if each.turn == turn.id)
        return next((each for each in asked if each.answer is None), None)

    @property
    def problem(self) -> Problem | None:
        """Why there is no answer, once it is over."""
        if self.unanswered is not None:
            return _unanswered(self.unanswered, self.session)
        turn = self.settled
        if turn is not None and turn.outcome in (TurnOutcome.FAILED, TurnOutcome.CRASHED):
            words = turn.error or "the server ended before the answer did"
            return Problem(Code.UNAVAILABLE, words)
        return None


def _unanswered(asked: ShownQuestion, session: str) -> Problem:
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
    followed = Followed(
        session.id,
        message,
        output=agents_output(session),
        tells=on_text is not None,
        turns_max=1,
    )
    async with aclosing(session.watch(after=after)) as events:
        async for shown in events:
            was_held = followed.picture.held
            text = followed.add(shown)
            if text and on_text is not None:
                await on_text(text)
            if followed.over:
                return followed
            if followed.picture.held and not was_held and not waits_if_held:
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
    followed = Followed(session.id, message, turns_max=1)
    async for recorded in session.log():
        followed.add(recorded)
        if followed.turn is not None:
            return followed.turn.id
    return None


def agents_output(session: Session) -> Output | None:
    """What the answers of its agent must be; None for words."""
    return session.output_type.output if session.output_type is not None else None
