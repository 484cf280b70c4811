"""Runs one turn for a client's request, and stops it when the request is cancelled.

The server's task group owns the task that runs `ServedTurn.run`. Cancelling that task, or calling
`cancel`, stops the turn and everything that its session runs in the background. The task ends when
all of it has settled, within a bound.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import anyio
import msgspec

from bargein.contracts.event import TurnOutcome
from bargein.contracts.message import Mode, QuestionPolicy
from bargein.contracts.receipt import Scope
from bargein.contracts.tool import Question
from bargein.errors import BargeinError
from bargein.session.any_session import AnySession
from bargein.session.broadcast import Watched
from bargein.session.results import TurnResult
from bargein.session.sending import Sent, TooLate
from bargein.view import CallClosed, CallOpened, Picture, QuestionOpened, StepOpened

STOP_S: Final = 15.0
"""Longer than any stop takes."""
QUESTION_CHARS_MAX: Final = 2000

_log = logging.getLogger("bargein.mcp_server")

OnProgress = Callable[[str], None]


class TurnQuestion(msgspec.Struct, frozen=True):
    """The turn waits for an answer to this."""

    id: str
    question: Question


class TurnEnd(msgspec.Struct, frozen=True):
    """The turn is over. `text` is the answer, or says why there is none."""

    outcome: str
    text: str
    failed: bool = False


class ServedTurn:
    """`on_progress` receives a sentence about each thing that begins or ends; requests set it."""

    def __init__(self, session: AnySession) -> None:
        self.session = session
        self.on_progress: OnProgress | None = None
        self._scope = anyio.CancelScope()
        self._steps: deque[TurnQuestion | TurnEnd] = deque()
        self._came = anyio.Event()
        self._sent: Sent[object] | None = None
        self._over = False
        self._can_ask = False
        self._picture = Picture(session.id, turns_max=1)
        self._asked: Question | None = None

    def cancel(self) -> None:
        """Stops the turn; does nothing if it is over."""
        self._scope.cancel()

    async def next(self) -> TurnQuestion | TurnEnd:
        """Waits for the next question, or the end."""
        while not self._steps:
            self._came = anyio.Event()
            await self._came.wait()
        return self._steps.popleft()

    def _put(self, step: TurnQuestion | TurnEnd) -> None:
        self._steps.append(step)
        self._came.set()

    async def answer(self, question: str, text: str) -> None:
        try:
            await self.session.answer(question, text)
        except TooLate:
            _log.info("the answer to %s came too late", question)

    async def run(self, text: str, *, can_ask: bool) -> None:
        """Sends the message and follows its turn to the end. Leaving early stops the turn."""
        self._can_ask = can_ask
        try:
            with self._scope:
                await self._run(text, QuestionPolicy.WAIT if can_ask else QuestionPolicy.ERROR)
        finally:
            if self._sent is not None and not self._over:
                with anyio.move_on_after(STOP_S, shield=True):
                    await self._stop()
            self._put(TurnEnd(TurnOutcome.STOPPED, "The turn was stopped.", failed=True))

    async def _stop(self) -> None:
        try:
            receipt = await self.session.interrupt(scope=Scope.SESSION)
            _log.info("%s: stopped with its request: %s", self.session.id, receipt.status)
        except BargeinError as error:
            _log.warning("%s: its turn could not be stopped: %s", self.session.id, error)

    async def _run(self, text: str, questions: QuestionPolicy) -> None:
        try:
            position = await self.session.position()
            # A cancel must not leave a message behind whose turn is not known here.
            with anyio.CancelScope(shield=True):
                sent = await self.session.send(text, mode=Mode.REJECT, questions=questions)
                self._sent = sent
        except BargeinError as error:
            self._put(TurnEnd("refused", str(error), failed=True))
            return
        result: TurnResult[object] | BargeinError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, position)
            try:
                result = await sent.result()
            except BargeinError as error:
                result = error
            tasks.cancel_scope.cancel()
        if result is not None:
            self._over = True
            self._put(self._end_of(result))

    async def _watch(self, position: int) -> None:
        async with aclosing(self.session.watch(after=position)) as events:
            async for event in events:
                self._show(event)

    def _show(self, event: Watched) -> None:
        for change in self._picture.apply(event):
            match change:
                case QuestionOpened(question=shown):
                    self._asked = shown.question
                    if self._can_ask:
                        self._put(TurnQuestion(shown.id, shown.question))
                case CallOpened(call=call):
                    self._tell(f"{call} ...")
                case CallClosed(call=call):
                    self._tell(f"{call}: {call.state}")
                case StepOpened():
                    self._tell("the model answers ...")
                case _:
                    pass

    def _tell(self, words: str) -> None:
        if self.on_progress is not None:
            self.on_progress(words)

    def _end_of(self, result: TurnResult[object] | BargeinError) -> TurnEnd:
        if isinstance(result, BargeinError):
            return TurnEnd(TurnOutcome.FAILED, str(result), failed=True)
        if result.outcome is TurnOutcome.COMPLETED:
            return TurnEnd(result.outcome, result.text)
        if self._asked is not None and result.outcome is TurnOutcome.STOPPED:
            return TurnEnd(result.outcome, _unanswered(self._asked), failed=True)
        said = f"\n\nUntil then it said: {result.text}" if result.text else ""
        why = result.error or f"the turn was {result.outcome}"
        return TurnEnd(result.outcome, f"The agent did not finish: {why}.{said}", failed=True)


def _unanswered(question: Question) -> str:
    words = "\n".join(filter(None, (question.text, question.detail)))[:QUESTION_CHARS_MAX]
    return (
        f"The agent was stopped because it asked something and nobody could answer: {words}\n\n"
        "This MCP client offers no elicitation. Use one that does, allow such calls beforehand "
        "(approval.allow in bargein's settings, or bargein mcp serve --mode), or say in the task "
        "that this is not to be done."
    )
