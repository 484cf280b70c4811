"""Turns a session's events into pieces for a chat: answers, questions, and failures of turns.

It reads `bargein.view`, the one reducer of events. The name of a piece has its turn, the number of
the answer and the number of the part, so a second reading of the log gives it the same name.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bargein.cancel import Cause
from bargein.channels import words
from bargein.channels.contract import Button, Traits
from bargein.channels.rows import Piece
from bargein.channels.splitting import split
from bargein.contracts.event import TurnOutcome
from bargein.contracts.visible import visible
from bargein.session.broadcast import Watched
from bargein.view import (
    AnswerEnded,
    Change,
    Picture,
    QuestionOpened,
    QuestionSettled,
    ShownAnswer,
    ShownQuestion,
    ShownTurn,
    TurnClosed,
    TurnState,
    TurnStopping,
)

if TYPE_CHECKING:
    from bargein.channels.outbox import Outbox

TURNS_MAX = 4
ERROR_CHARACTERS_MAX = 500


class Showing:
    def __init__(self, session: str, channel: str, traits: Traits, outbox: "Outbox") -> None:
        self.picture = Picture(session, turns_max=TURNS_MAX)
        self._channel = channel
        self._text_max = traits.text_max
        self._how_to_answer = words.REPLY_TO_ANSWER if traits.replies else words.NEXT_ANSWERS
        self._outbox = outbox
        self._answers: dict[str, int] = {}

    def apply(self, events: Iterable[Watched]) -> None:
        for event in events:
            for change in self.picture.apply(event):
                self._show(change)
        self._preview()

    def _show(self, change: Change) -> None:
        if isinstance(change, AnswerEnded):
            self._answered(change.answer)
        elif isinstance(change, QuestionOpened | QuestionSettled):
            self._asked(change.question)
        elif isinstance(change, TurnStopping):
            self._outbox.stop(change.turn.id)
        elif isinstance(change, TurnClosed):
            self._closed(change.turn)

    def _preview(self) -> None:
        from bargein.channels.outbox import Preview

        turn = self.picture.turn
        if turn is None or turn.state is not TurnState.RUNNING:
            self._outbox.put_preview(None, working=False)
            return
        text = next((each.text for each in turn.saying if each.words), "")
        preview = Preview(self._key(turn.id), turn.id, text) if text.strip() else None
        asks = any(question.open for question in self.picture.questions.values())
        self._outbox.put_preview(preview, working=not asks)

    def _key(self, turn: str) -> str:
        return f"{turn}.{self._answers.get(turn, 0)}.0"

    def _answered(self, answer: ShownAnswer) -> None:
        turn = self.picture.turns.get(answer.turn)
        if not answer.said or not answer.text.strip():
            return
        number = self._answers.get(answer.turn, 0)
        self._answers[answer.turn] = number + 1
        if turn is None or turn.state is TurnState.STOPPING:
            return
        text = f"{answer.text} …" if answer.partial else answer.text
        for part, piece in enumerate(split(text, self._text_max)):
            self._outbox.put(Piece(f"{answer.turn}.{number}.{part}", answer.turn, piece))

    def _asked(self, asked: ShownQuestion) -> None:
        """With buttons while it is open. The last part has them, so all of it is read first."""
        text = words.question_in_words(asked.question)
        buttons = tuple(Button(choice) for choice in asked.question.choices)
        if not asked.open:
            closing = f"Answered: {visible(asked.answer)}" if asked.answer else "Closed."
            text, buttons = f"{text}\n\n{closing}", ()
        elif not buttons:
            text += f"\n\n{self._how_to_answer}"
        parts = split(text, self._text_max // 2, fences=False)
        for part, piece in enumerate(parts):
            last = part == len(parts) - 1
            self._outbox.put(
                Piece(
                    f"question.{asked.id}.{part}",
                    asked.turn,
                    piece,
                    buttons if last else (),
                    question=asked.id if last else "",
                    exact=True,
                )
            )

    def _closed(self, turn: ShownTurn) -> None:
        from bargein.channels.outbox import AllSent

        self._answers.pop(turn.id, None)
        notice = self._notice(turn)
        if notice:
            self._outbox.put(Piece(f"{turn.id}.end.0", "", notice))
        self._outbox.put_done(AllSent(self.picture.seq, turn.id))

    def _notice(self, turn: ShownTurn) -> str:
        if turn.outcome is TurnOutcome.FAILED:
            return f"This failed: {visible(turn.error)[:ERROR_CHARACTERS_MAX]}"
        if turn.outcome is TurnOutcome.CRASHED:
            return words.CRASHED
        receipt = turn.receipt
        if turn.outcome is not TurnOutcome.STOPPED or receipt is None:
            return ""
        cause = receipt.reason.root.cause if receipt.reason is not None else Cause.USER_STOP
        if cause is Cause.SHUTDOWN:
            return words.CRASHED
        if cause in (Cause.REDIRECT, Cause.ROLLBACK) or receipt.by.startswith(f"{self._channel}:"):
            # Who stopped it was answered, or sees the answer to what they said instead.
            return ""
        return words.receipt_in_short(receipt)
