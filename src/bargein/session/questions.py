"""Questions to the user: a call asks, people answer by id, a stop ends them.

A sub-agent's question is also asked by each session above it, under the same id, so that watchers
of the root see it and can answer it there. It is answered once, wherever that happens, because the
session that asked decides it. After a restart it stays open in the root (see `decide`).

The message that started a turn may say that nobody will answer (`Message.questions`). Then the
question is still asked, so that the log shows it, and at once answered or used to end the turn.
`allow` holds as long as all words of the turn are from one sender.
"""

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from bargein.calls.words import NOBODY_ANSWERS, NOBODY_APPROVES
from bargein.cancel import Cancelled, Cause, Reason, Token
from bargein.contracts.event import UNANSWERED
from bargein.contracts.message import QuestionPolicy
from bargein.contracts.permission import Standing
from bargein.contracts.tool import Approval, OpenQuestion, Question, QuestionKind
from bargein.session.abort import land
from bargein.session.commands import AnswerQuestion, Ask, CloseQuestion, GiveAnswer, Refuse, Stop
from bargein.session.reply import Promise, Reply

if TYPE_CHECKING:
    from bargein.session.actor import Actor


def answerer(sender: str, policy: QuestionPolicy) -> str:
    """Return the name that the log shows for an answer or a stop by a message's policy."""
    return f"{sender} (questions: {policy})"


class Questions:
    """The open questions of one session and its sub-agents for which a call waits."""

    def __init__(self, actor: "Actor") -> None:
        self._actor = actor
        self._numbers = count(1)
        self._slots: dict[str, Promise[GiveAnswer]] = {}
        self._askers: dict[str, Actor] = {}

    async def ask(self, turn: str, call_id: str, question: Question, token: Token) -> str:
        """Put a question to the user and wait for the answer. A cancel of the token ends it."""
        question = self._actor.permits.asked(question)
        question_id = f"{self._actor.path}{call_id}_q{next(self._numbers)}"
        slot = self._slots[question_id] = Promise[GiveAnswer]()
        given: GiveAnswer | None = None
        try:
            with token.scope():
                replies = self._ask_upwards(OpenQuestion(question_id, turn, question, call_id))
                for reply in replies:
                    if isinstance(await reply.wait(), Refuse):
                        raise Cancelled(token)
                self._obey_policy(turn, question_id, question)
                given = await slot.wait()
                return given.text
            raise Cancelled(token)
        finally:
            del self._slots[question_id]
            self._close_upwards(_close(question_id, given, token))

    def answer(self, question_id: str, text: str, by: str, standing: Standing) -> Reply:
        asker = self._askers.get(question_id, self._actor)
        return asker.post(AnswerQuestion(question_id, text, by, standing))

    def give(self, answer: GiveAnswer) -> None:
        slot = self._slots.get(answer.question)
        if slot is not None:
            slot.give(answer)

    def _obey_policy(self, turn_id: str, question_id: str, question: Question) -> None:
        """Answer the question, or stop the root's turn, if a message of that turn says so."""
        root = self._actor
        while root.run is not None:
            turn_id, root = root.run.turn_id, root.run.parent
        turn = root.turn
        if turn is None or turn.id != turn_id:
            return
        message = next((each for each in turn.messages if each.questions is not None), None)
        policy = message.questions if message is not None else None
        if message is None or policy is None or policy is QuestionPolicy.WAIT:
            return
        if policy is QuestionPolicy.ALLOW and any(
            each.sender != message.sender for each in turn.messages
        ):
            # Nobody approves in advance what somebody else makes of the turn.
            return
        by = answerer(message.sender, policy)
        if policy is QuestionPolicy.ERROR:
            landing = land(root, Reason(Cause.USER_STOP, by), turn_id)
            root.post(Stop(turn_id, landing.stops, by, UNANSWERED))
            return
        text = NOBODY_ANSWERS
        if question.kind is QuestionKind.APPROVAL:
            text = Approval.ALLOW if policy is QuestionPolicy.ALLOW else NOBODY_APPROVES
        self._actor.post(AnswerQuestion(question_id, text, by))

    def _ask_upwards(self, asked: OpenQuestion) -> list[Reply]:
        replies = [self._actor.post(Ask(asked))]
        below = self._actor
        while below.run is not None:
            run, above = below.run, below.run.parent
            above.questions._askers[asked.id] = self._actor
            who = f"Asked by the sub-agent {self._actor.session_id}: {run.task.task}"
            detail = "\n".join(filter(None, (who, asked.question.detail)))
            question = msgspec.structs.replace(asked.question, detail=detail)
            relayed = OpenQuestion(asked.id, run.turn_id, question, run.call.id)
            replies.append(above.post(Ask(relayed)))
            below = above
        return replies

    def _close_upwards(self, close: CloseQuestion) -> None:
        self._actor.post(close)
        below = self._actor
        while below.run is not None:
            below = below.run.parent
            below.questions._askers.pop(close.question, None)
            below.post(close)


def _close(question_id: str, given: GiveAnswer | None, token: Token) -> CloseQuestion:
    if given is not None:
        return CloseQuestion(question_id, given.text, given.by)
    shut_down = token.reason is not None and token.reason.root.cause is Cause.SHUTDOWN
    return CloseQuestion(question_id, shut_down=shut_down)
