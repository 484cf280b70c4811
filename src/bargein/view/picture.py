"""The reducer: events in, a picture out.

`Picture.apply` takes recorded and live events in the order in which `watch` yields them, and
returns what each of them changed. Its rules:

- The log is the truth. Live events only show it earlier, and show what the log does not keep:
  streaming text, output of calls, steps in progress. `docs/view.md` lists what is live only.
- A reader may begin anywhere in a log. The picture infers what the reader missed from the events
  that follow, and whatever it reports as open is open.
- An event that was applied before is ignored, by its `seq`.
- A delta costs the same however much came before it.

With `turns_max` the picture keeps at most that many settled turns, so its size does not grow with
the age of the session. Without it, the picture keeps everything in the log.
"""

from collections.abc import Iterable

from bargein.contracts.budget import Spent
from bargein.contracts.event import (
    HistoryImported,
    Recorded,
    TurnSettled,
)
from bargein.contracts.live import (
    CallOutput,
    Live,
    ReasoningDelta,
    TextDelta,
)
from bargein.view import answers, calls, turns
from bargein.view.calls import OPEN
from bargein.view.changes import (
    ITEMS,
    Change,
    Changes,
)
from bargein.view.shown import (
    CallState,
    MessageFate,
    ShownCall,
    ShownChild,
    ShownMessage,
    ShownQuestion,
    ShownTurn,
    TurnState,
    WaitsFor,
)

WORDS = (TextDelta, ReasoningDelta, CallOutput)
"""Live events that only add words. A reader that does not show them may skip them: the rest of the
picture is the same without them."""

_LIVE = {**turns.LIVE, **answers.LIVE, **calls.LIVE}
_RECORDED = {**turns.RECORDED, **answers.RECORDED, **calls.RECORDED}


class Picture:
    """A session as surfaces show it.

    `turn` is the turn in flight. `inbox` has the ids of the waiting messages, in order; `held`:
    they wait for the user. `items` are the changes that make up the conversation, in order. `seq`
    is the last event of the log in the picture, `at` the time of the last event. `used` is the
    cost of all requests to models. `imported` is the conversation before the session.
    """

    def __init__(self, session: str = "", *, turns_max: int | None = None) -> None:
        self.session = session
        self.seq = 0
        self.at = 0.0
        self.title = ""
        self.ended = False
        self.turn: ShownTurn | None = None
        self.turns: dict[str, ShownTurn] = {}
        self.messages: dict[str, ShownMessage] = {}
        self.inbox: list[str] = []
        self.held = False
        self.calls: dict[str, ShownCall] = {}
        self.questions: dict[str, ShownQuestion] = {}
        self.children: dict[str, ShownChild] = {}
        self.used = Spent()
        self.imported: HistoryImported | None = None
        self.items: list[Change] = []
        self._turns_max = turns_max
        self._items_dropped = 0

    @classmethod
    def of(cls, log: Iterable[Recorded], session: str = "") -> "Picture":
        picture = cls(session)
        for recorded in log:
            picture.apply(recorded)
        return picture

    def apply(self, event: Recorded | Live, at: float | None = None) -> Changes:
        """Take the next event. `at` is when it happened, for a reader with its own clock. Without
        it the log's time counts; a live event then has the time of the last event."""
        if not isinstance(event, Recorded):
            if at is not None:
                self.at = at
            handle_live = _LIVE.get(type(event))
            return handle_live(self, event) if handle_live is not None else ()
        if event.seq <= self.seq:
            return ()
        self.seq = event.seq
        self.at = event.at if at is None else at
        handle = _RECORDED.get(type(event.event))
        if handle is None:
            return ()
        changes = handle(self, event.event)
        self.items += [change for change in changes if isinstance(change, ITEMS)]
        if self._turns_max is not None and type(event.event) is TurnSettled:
            self._trim(self._turns_max)
        return changes

    # Looking

    @property
    def waiting(self) -> list[ShownMessage]:
        """The waiting messages, in the order in which turns will take them; the queue comes
        last."""
        waiting = [self.messages[each] for each in self.inbox if each in self.messages]
        return sorted(waiting, key=lambda each: each.waits_for is WaitsFor.QUEUE)

    @property
    def running_calls(self) -> list[ShownCall]:
        """The calls of the turn in flight that are not over."""
        turn = self.turn.id if self.turn is not None else None
        return [c for c in self.calls.values() if c.state in OPEN and c.turn == turn]

    @property
    def background_calls(self) -> list[ShownCall]:
        return [call for call in self.calls.values() if call.state is CallState.BACKGROUND]

    @property
    def running_children(self) -> list[ShownChild]:
        return [child for child in self.children.values() if child.running]

    @property
    def open_questions(self) -> list[ShownQuestion]:
        return [question for question in self.questions.values() if question.open]

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs, no message waits and no question is open."""
        open_ = self.turn or self.inbox or self.background_calls or self.running_children
        return not open_ and not self.open_questions

    def last_items(self, turns: int) -> list[Change]:
        """Return the items of the last `turns` turns, and those between and after them."""
        started = list(self.turns.values())
        if len(started) <= turns:
            return self.items
        return self.items[started[-turns].first_item - self._items_dropped :]

    def below(self, child: str) -> "Picture":
        """Return the picture of a sub-agent's own session, at any depth. A watcher of that session
        applies its events there."""
        for known in self.children.values():
            if child == known.id or child.startswith(f"{known.id}/"):
                if known.below is None:
                    known.below = Picture(known.id, turns_max=self._turns_max)
                return known.below if child == known.id else known.below.below(child)
        raise KeyError(child)

    def rejoin(self) -> None:
        """Note that live events were missed. Call it before applying the events of a new watch."""
        if self.turn is not None:
            for answer in self.turn.saying:
                answer.stale = True

    # For the rules

    def turn_of(self, turn: str) -> ShownTurn:
        """Return the turn with this id. A turn that began before the first event read counts as
        running."""
        shown = self.turns.get(turn)
        if shown is None:
            first_item = self._items_dropped + len(self.items)
            shown = self.turns[turn] = ShownTurn(turn, self.at, first_item=first_item)
            self.turn = self.turn or shown
        return shown

    def turn_in_flight(self, turn: str) -> ShownTurn | None:
        """Return the turn of a live event; None if abandoned work of an old turn emitted it."""
        if turn not in self.turns and self._items_dropped:
            return None
        shown = self.turn_of(turn)
        return None if shown.state is TurnState.SETTLED else shown

    def _trim(self, turns_max: int) -> None:
        """Forget the oldest settled turns, and everything of theirs that is over."""
        settled = [turn for turn in self.turns.values() if turn.state is TurnState.SETTLED]
        gone = {turn.id for turn in settled[: max(0, len(settled) - turns_max)]}
        if not gone:
            return
        self.turns = {key: turn for key, turn in self.turns.items() if key not in gone}
        first = next(iter(self.turns.values()), None)
        begin = self._items_dropped + len(self.items) if first is None else first.first_item
        del self.items[: begin - self._items_dropped]
        self._items_dropped = begin
        waiting = MessageFate.WAITING
        self.messages = {
            key: m for key, m in self.messages.items() if m.fate is waiting or m.turn in self.turns
        }
        self.calls = {
            key: call
            for key, call in self.calls.items()
            if call.state is CallState.BACKGROUND or call.turn in self.turns
        }
        self.questions = {
            key: each
            for key, each in self.questions.items()
            if each.open or each.turn in self.turns
        }
        self.children = {
            key: each
            for key, each in self.children.items()
            if each.running or each.turn in self.turns
        }
