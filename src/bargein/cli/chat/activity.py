"""The state of the session on the screen: its picture, with times of the terminal's own clock, and
what only the terminal knows.

The drawing and the plain terminal both read this. Pure.
"""

from collections.abc import Callable, Iterable

from bargein.cli.chat.paint import harmless
from bargein.cli.receipts import spent_in_words
from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import CallStatus, Question
from bargein.session.broadcast import Watched
from bargein.tools.todo import NAME as TODO
from bargein.tools.todo import TodoItem, todo_of
from bargein.view import (
    WORDS,
    CallClosed,
    CallResulted,
    Change,
    Picture,
    QuestionOpened,
    QuestionSettled,
    ShownCall,
    ShownChild,
    ShownQuestion,
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


class Aside:
    """A side question that is being answered."""

    def __init__(self, question: str, began_at: float) -> None:
        self.question = question
        self.began_at = began_at


class Activity:
    """`stopping`: a stop was requested and its end is not on the screen yet. `unanswered`: the
    user's words in a turn that failed or crashed, to ask again. `receipt` is the last receipt
    shown, `failure` the last error. `asides` are the side questions that are being answered.
    `own_senders`: the senders that stand for this terminal's user; None if not known yet."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.asides: dict[str, Aside] = {}
        self.own_senders: frozenset[str] | None = None
        self.forget()

    def forget(self) -> None:
        """Starts over for another session."""
        self.picture = Picture(turns_max=TURNS_MAX)
        self._plans_awaited: set[str] = set()
        self._after_plans: list[Change] = []
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
        """Returns the changes to show now."""
        changes = self.picture.apply(event, self._now())
        if not isinstance(event, WORDS):
            for change in changes:
                self._note(change)
        elif not self._plans_awaited:
            return changes
        return tuple(shown for change in changes for shown in self._in_order(change))

    def _in_order(self, change: Change) -> list[Change]:
        """Holds back what follows a plan until the log, which alone has its items, has caught up
        with the live events. Otherwise the plan would stand inside the next answer."""
        match change:
            case CallClosed(call=call) if call.name == TODO and call.result is None:
                self._plans_awaited.add(call.id)
                return [change]
            case CallResulted(call=call) if call.id in self._plans_awaited:
                self._plans_awaited.remove(call.id)
                return [change, *self._caught_up()]
            case TurnOpened() | TurnClosed():
                # A store that fails brings no result, and sometimes no end of the turn.
                self._plans_awaited.clear()
                return [*self._caught_up(), change]
            case _ if self._plans_awaited:
                self._after_plans.append(change)
                return []
            case _:
                return [change]

    def _caught_up(self) -> list[Change]:
        """Returns what was held back, if no plan is awaited any more."""
        if self._plans_awaited:
            return []
        held_back, self._after_plans = self._after_plans, []
        return held_back

    def _note(self, change: Change) -> None:
        match change:
            case TurnOpened() | TurnTakenBack():
                self.unanswered = ""
            case TurnStopping():
                self.stopping = True
            case TurnClosed(turn=turn):
                self.stopping = False
                failed = turn.outcome in (TurnOutcome.FAILED, TurnOutcome.CRASHED)
                self.unanswered = self.words_of(turn) if failed else ""
                if turn.receipt is not None:
                    self.receipt = turn.receipt
            case QuestionOpened(question=asked):
                self.questions[asked.id] = QuestionOnScreen(asked.question, self._now())
            case QuestionSettled(question=asked):
                self.questions.pop(asked.id, None)
            case _:
                pass

    def words_of(self, turn: ShownTurn) -> str:
        """Returns what people said in a turn."""
        known = (self.picture.messages.get(each) for each in turn.messages)
        return "\n".join(each.text for each in known if each is not None and not each.is_news)

    def author_of(self, sender: str) -> str:
        """Returns who wrote a message; empty if this terminal's user did, or if nobody knows."""
        mine = self.own_senders
        return "" if not sender or mine is None or sender in mine else harmless(sender)

    def answered_in_words(self, asked: ShownQuestion) -> str:
        author = self.author_of(asked.by)
        return f"answered{f' by {author}' if author else ''}: {harmless(asked.answer or '')}"

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

    @property
    def todo(self) -> tuple[TodoItem, ...]:
        """The model's plan: the list of its last call of the tool `todo` that went well."""
        return todo_of(call.arguments) if (call := self._todo_call) is not None else ()

    @property
    def todo_of_turn(self) -> tuple[TodoItem, ...]:
        """The plan of the running turn."""
        call, turn = self._todo_call, self.picture.turn
        return self.todo if call is not None and turn is not None and call.turn == turn.id else ()

    @property
    def _todo_call(self) -> ShownCall | None:
        for call in reversed(self.picture.calls.values()):
            if call.name == TODO and call.status is CallStatus.FINISHED:
                return call
        return None

    @property
    def context_used(self) -> int:
        """The tokens of the last request and its answer, which the next request contains."""
        for turn in reversed(self.picture.turns.values()):
            for answer in reversed(turn.answers):
                if answer.usage.input_tokens:
                    return answer.usage.input_tokens + answer.usage.output_tokens
        return 0

    def used_in_words(self) -> str:
        """Tokens used, and their cost where the price is known."""
        return spent_in_words(self.picture.used)

    def failed_in_words(self, error: str) -> str:
        """Why something failed and what to do; shortened if it is the same as last time."""
        before, self.failure = self.failure, error
        if error != before:
            return f"failed: {error}"
        return f"failed, as before: {error.partition('. ')[0]}"
