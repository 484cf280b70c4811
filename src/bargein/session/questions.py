"""Questions to the user: asked by a call, answered by their id, ended by a stop.

One that a sub-agent asks is asked by each session above it too, under the same id, so that whoever
watches the root sees it and can answer it there. It is answered once, wherever that is, because it
is decided in the session that asked. A restart leaves it open in the root (see `decide`).
"""

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from bargein.cancel import Cancelled, Cause, Token
from bargein.contracts.tool import OpenQuestion, Question
from bargein.session.commands import AnswerQuestion, Ask, CloseQuestion, GiveAnswer, Refuse
from bargein.session.reply import Reply
from bargein.session.slot import Slot

if TYPE_CHECKING:
    from bargein.session.actor import Actor


class QuestionDesk:
    """The questions of one session that somebody waits for, its sub-agents' included."""

    def __init__(self, actor: "Actor") -> None:
        self._actor = actor
        self._numbers = count(1)
        self._slots: dict[str, Slot[GiveAnswer]] = {}
        self._askers: dict[str, Actor] = {}

    async def ask(self, turn: str, call_id: str, question: Question, token: Token) -> str:
        """Put a question to the user. Ended by the token; the answer carries its id."""
        question_id = f"{self._actor.path}{call_id}_q{next(self._numbers)}"
        slot = self._slots[question_id] = Slot[GiveAnswer]()
        given: GiveAnswer | None = None
        try:
            with token.scope():
                replies = self._ask_upwards(OpenQuestion(question_id, turn, question, call_id))
                for reply in replies:
                    if isinstance(await reply.wait(), Refuse):
                        raise Cancelled(token)
                given = await slot.wait()
                return given.text
            raise Cancelled(token)
        finally:
            del self._slots[question_id]
            self._close_upwards(_close(question_id, given, token))

    def answer(self, question_id: str, text: str, by: str) -> Reply:
        asker = self._askers.get(question_id, self._actor)
        return asker.post(AnswerQuestion(question_id, text, by))

    def give(self, answer: GiveAnswer) -> None:
        slot = self._slots.get(answer.question)
        if slot is not None:
            slot.give(answer)

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
