"""What happens in the session on the screen: its picture, timed by the terminal's own clock, and
what the terminal remembers beside it.

The drawing and the plain terminal both read this. Pure.
"""

from collections.abc import Callable, Iterable

from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import Question
from bargein.session.broadcast import Watched
from bargein.view import (
    WORDS,
    Change,
    Picture,
    QuestionOpened,
    QuestionSettled,
    ShownCall,
    ShownChild,
    ShownTurn,
    TurnClosed,
    TurnOpened,
    TurnStopping,
    TurnTakenBack,
)

TURNS_MAX = 8


class QuestionOnScreen:
    """An open question. A line begun before the question could be read does not answer it."""

    def __init__(self, question: Question, asked_at: float) -> None:
        self.question = question
        self.asked_at = asked_at


class Activity:
    """`stopping`: a stop was requested and its end is not on the screen yet. `unanswered`: the
    user's words in a turn that failed or crashed, to ask again. `receipt` is the last receipt
    shown, `failure` the last error."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.forget()

    def forget(self) -> None:
        """Starts over for another session."""
        self.picture = Picture(turns_max=TURNS_MAX)
        self.questions: dict[str, QuestionOnScreen] = {}
        self.receipt: Receipt | None = None
        self.stopping = False
        self.unanswered = ""
        self.failure = ""

    def recall(self, log: Iterable[Recorded], wall_now: float) -> None:
        """Reads the log of a session that began before this terminal looked at it."""
        now = self._now()
        for recorded in log:
            for change in self.picture.apply(recorded, now - max(0.0, wall_now - recorded.at)):
                self._note(change)
        self.stopping = False
        self.receipt = None

    def see(self, event: Watched) -> tuple[Change, ...]:
        changes = self.picture.apply(event, self._now())
        if not isinstance(event, WORDS):
            for change in changes:
                self._note(change)
        return changes

    def _note(self, change: Change) -> None:
        match change:
            case TurnOpened() | TurnTakenBack():
                self.unanswered = ""
            case TurnStopping():
                self.stopping = True
            case TurnClosed(turn=turn):
                self.stopping = False
                failed = turn.outcome in (TurnOutcome.FAILED, TurnOutcome.CRASHED)
                self.unanswered = self._words_of(turn) if failed else ""
                if turn.receipt is not None:
                    self.receipt = turn.receipt
            case QuestionOpened(question=asked):
                self.questions[asked.id] = QuestionOnScreen(asked.question, self._now())
            case QuestionSettled(question=asked):
                self.questions.pop(asked.id, None)
            case _:
                pass

    def _words_of(self, turn: ShownTurn) -> str:
        known = (self.picture.messages.get(each) for each in turn.messages)
        return "\n".join(each.text for each in known if each is not None and not each.is_news)

    @property
    def turn_began_at(self) -> float | None:
        turn = self.picture.turn
        return turn.began_at if turn is not None else None

    @property
    def calls(self) -> dict[str, ShownCall]:
        return {call.id: call for call in self.picture.running_calls}

    @property
    def background(self) -> dict[str, ShownCall]:
        return {call.id: call for call in self.picture.background_calls}

    @property
    def children(self) -> dict[str, ShownChild]:
        return {child.id: child for child in self.picture.running_children}

    @property
    def in_background(self) -> list[str]:
        """What runs without the turn: background calls and detached sub-agents."""
        children = [each for each in self.children.values() if each.detached]
        return [str(call) for call in self.picture.background_calls] + [
            f"sub-agent  {' '.join(child.task.split())}" for child in children
        ]

    def used_in_words(self) -> str:
        """Tokens used, and their cost where the price is known."""
        spent = self.picture.used
        if not spent.tokens:
            return ""
        tokens = f"{spent.tokens}" if spent.tokens < 10_000 else f"{spent.tokens / 1000:.0f}k"
        if not spent.priced:
            return f"{tokens} tokens"
        at_least = "at least " if spent.unpriced else ""
        return f"{tokens} tokens · {at_least}${spent.priced:.{2 if spent.priced >= 1 else 4}f}"

    def failed_in_words(self, error: str) -> str:
        """Why something failed and what to do; shortened if it is the same as last time."""
        before, self.failure = self.failure, error
        if error != before:
            return f"failed: {error}"
        return f"failed, as before: {error.partition('. ')[0]}"
