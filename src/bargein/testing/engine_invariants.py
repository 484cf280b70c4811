"""The laws of a session, checked over its durable log and over what a model is asked.

Everything here looks from outside: at events that are durable and at requests that have arrived,
never into the engine. So the same checkers serve the simulation and every end-to-end test:

    check_log(await session.events())               # a whole log
    laws = SessionLaws("alice"); laws.feed(event)   # event by event, as they become durable
    check_request(request)                          # at the moment a model is asked

Each failure is a `LawBroken` that names the law of docs/design.md, section 1.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, cast

from bargein.cancel import Cause
from bargein.contracts.event import (
    AgentEvent,
    AgentState,
    AssistantSaid,
    BackgroundEnded,
    BudgetUsedUp,
    CallDetached,
    CallEnded,
    CallStarted,
    ChildEnded,
    ChildStarted,
    Compressed,
    Event,
    InterruptLanded,
    MessageAccepted,
    MessageEdited,
    MessageMoved,
    MessagesTaken,
    MessageWithdrawn,
    QuestionAsked,
    QuestionClosed,
    QueueHeld,
    QueueReleased,
    Recorded,
    SessionCreated,
    SessionEnded,
    TextCheckpoint,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.contracts.tool import Approval, CallStatus
from bargein.testing.invariants import LawBroken

Content = tuple[Text | Image, ...]

_BUDGETS = (Cause.BUDGET, Cause.DEADLINE)
_CAUSES_WITHOUT_A_WORD = (Cause.SHUTDOWN, Cause.LEASE_LOST, Cause.USER_STOP, *_BUDGETS)
"""What may end a turn before its session hears of it: the word of a stop from another thread may
come later than the end of the turn."""


def check_log(log: Iterable[Recorded], session: str = "session") -> "SessionLaws":
    """Check a whole log of one session, from its first event."""
    laws = SessionLaws(session)
    for recorded in log:
        laws.feed(recorded)
    return laws


def check_request(request: ModelRequest) -> None:
    """Law 5: what goes to a model is well formed, by the strictest provider's rules."""
    messages = request.messages
    if not messages or isinstance(messages[-1], AssistantMessage):
        raise LawBroken(5, f"the model is asked, and nobody has said anything new: {messages!r}")
    check_messages(messages)


def check_messages(messages: Sequence[ModelMessage]) -> None:
    """Law 5: begins with the user; each call has exactly one result, right after; ids are unique;
    nothing is empty."""
    owed: tuple[str, ...] = ()
    seen: set[str] = set()
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            got = tuple(result.call_id for result in message.results)
            if sorted(got) != sorted(owed):
                raise LawBroken(5, f"message {place} has results of {got}, but {owed} were called")
            if not all(result.content for result in message.results):
                raise LawBroken(5, f"message {place} has a result without content")
            owed = ()
            continue
        if owed:
            raise LawBroken(5, f"no result of {owed} before message {place}")
        if not message.content:
            raise LawBroken(5, f"message {place} is empty")
        if isinstance(message, AssistantMessage):
            if place == 0:
                raise LawBroken(5, "the first message is the model's own")
            owed = tuple(part.id for part in message.content if isinstance(part, ToolCall))
            if seen.intersection(owed) or len(set(owed)) != len(owed):
                raise LawBroken(5, f"a call id of {owed} was used before")
            seen.update(owed)
        else:
            assert isinstance(message, UserMessage)
    if owed:
        raise LawBroken(5, f"the last calls {owed} have no result")


@dataclass(slots=True)
class SeenTurn:
    """What the log says of one turn."""

    id: str
    messages: list[str] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    questions: set[str] = field(default_factory=set)
    landed: list[InterruptLanded] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    rolled_back: bool = False
    said: list[AssistantSaid] = field(default_factory=list)
    checkpoints: str = ""
    used_up: BudgetUsedUp | None = None
    settled: TurnSettled | None = None

    @property
    def open_calls(self) -> set[str]:
        return set(self.calls) - self.ended


class SessionLaws:
    """The log of one session, event by event, against the laws. Also tells what it has seen."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.log: list[Recorded] = []
        self.messages: dict[str, Message] = {}
        self.dispositions: dict[str, MessageAccepted] = {}
        self.waiting: list[str] = []
        self.taken: dict[str, str] = {}
        self.said_at: dict[str, int] = {}
        self.compressions: list[Compressed] = []
        self.withdrawn: set[str] = set()
        self.turns: dict[str, SeenTurn] = {}
        self.turn: SeenTurn | None = None
        self.held = False
        self.ended = False
        self.background: set[str] = set()
        self.detached: set[str] = set()
        self.questions: dict[str, str] = {}
        self.asked: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        self.late_answers: set[str] = set()
        """Messages that carry the answer to a question that a restart had left open."""
        self.agent_state = b""
        self.is_child = False
        self.children: dict[str, ChildStarted] = {}
        self.children_ended: dict[str, ChildEnded] = {}
        self._note_owed: bool | None = False
        self._owed: tuple[str, Content] | None = None
        self._must_hold = False

    def feed(self, recorded: Recorded) -> None:
        if recorded.seq != len(self.log) + 1:
            self._broken(3, f"event {recorded.seq} follows {len(self.log)}")
        self.log.append(recorded)
        event = recorded.event
        if self._must_hold and not isinstance(event, QueueHeld):
            self._broken(3, f"a stop without a message did not hold what waits: {self.waiting}")
        if self._owed is not None and not isinstance(event, UserSaid):
            self._broken(3, f"messages were taken and their words were not said: {self._owed}")
        rule = _RULES.get(type(event))
        if rule is not None:
            rule(self, event)

    def check_all_ran(self) -> None:
        """Law 3, when all is quiet: what still waits is held in plain sight, or the session has
        ended."""
        if self.turn is not None:
            self._broken(3, f"{self.turn.id} was never settled")
        if self.waiting and not self.held and not self.ended:
            self._broken(3, f"stranded, neither taken nor held: {self.waiting}")
        if self.running_children:
            self._broken(3, f"sub-agents that never ended: {self.running_children}")
        if self.is_child and not self.ended:
            self._broken(3, "a sub-agent that is not at work any more and has not ended")

    @property
    def running_children(self) -> list[str]:
        return [child for child in self.children if child not in self.children_ended]

    # The inbox

    def _accepted(self, event: MessageAccepted) -> None:
        message = event.message
        if message.id in self.messages:
            self._broken(3, f"{message.id} was accepted twice")
        self.messages[message.id] = message
        self.dispositions[message.id] = event
        self.waiting.append(message.id)
        before = self.log[-2].event if len(self.log) > 1 else None
        if isinstance(before, QuestionClosed) and message.text.endswith(
            f"[The answer:] {before.answer}"
        ):
            self.late_answers.add(message.id)
        if message.allows is not None and before != QuestionClosed(
            message.allows.id, Approval.ALLOW, message.sender
        ):
            self._broken(9, f"{message.id} allows what nobody has said yes to: {message.allows}")
        joins = event.disposition is Disposition.STEERING
        if self.turn is not None and message.group in self.turn.groups and not joins:
            self.turn.strays.append(message.id)
        if event.disposition is not Disposition.INTERRUPTING:
            return
        turn = self._open(9, event.target or "", "interrupted by a message")
        if message.mode is Mode.ROLLBACK:
            turn.rolled_back = True

    def _edited(self, event: MessageEdited) -> None:
        self._must_wait(event.message, "edited")
        old = self.messages[event.message]
        self.messages[event.message] = Message(
            old.id, old.sender, old.mode, event.content, old.attachments, old.client_id, old.group
        )

    def _moved(self, event: MessageMoved) -> None:
        if sorted(event.order) != sorted(self.waiting):
            self._broken(3, f"a move made {event.order} of {self.waiting}")
        self.waiting = list(event.order)

    def _withdrew(self, event: MessageWithdrawn) -> None:
        self._must_wait(event.message, "withdrawn")
        self.waiting.remove(event.message)
        self.withdrawn.add(event.message)
        self.held = self.held and bool(self.waiting)

    def _was_held(self, event: QueueHeld) -> None:
        if self.held or not self.waiting:
            self._broken(3, f"held, with {self.waiting} waiting and held={self.held}")
        self.held, self._must_hold = True, False

    def _was_released(self, event: QueueReleased) -> None:
        if not self.held:
            self._broken(3, "released, but nothing was held")
        self.held = False

    def _must_wait(self, message: str, what: str) -> None:
        if message not in self.waiting:
            place = self.taken.get(message, "nowhere")
            self._broken(3, f"{message} was {what}, but it does not wait (taken by {place})")

    def _take(self, turn: SeenTurn, messages: tuple[str, ...]) -> None:
        if not messages or [each for each in self.waiting if each in messages] != list(messages):
            self._broken(3, f"{turn.id} took {messages} while {self.waiting} waited in this order")
        for message in messages:
            self.waiting.remove(message)
            self.taken[message] = turn.id
            turn.messages.append(message)
            group = self.messages[message].group
            if group is not None:
                turn.groups.add(group)
        self._owed = turn.id, tuple(p for m in messages for p in self.messages[m].content)

    # Turns

    def _started(self, event: TurnStarted) -> None:
        if self.turn is not None:
            self._broken(4, f"{event.turn} started while {self.turn.id} was in flight")
        if event.turn in self.turns:
            self._broken(4, f"{event.turn} started twice")
        if self.held or self.ended:
            self._broken(3, f"{event.turn} started though held={self.held}, ended={self.ended}")
        if self.is_child and self.turns:
            self._broken(4, f"{event.turn} of a sub-agent, which has one turn")
        self._check_next(event.turn, event.messages)
        self.turn = self.turns[event.turn] = SeenTurn(event.turn)
        self._take(self.turn, event.messages)

    def _check_next(self, turn: str, messages: tuple[str, ...]) -> None:
        """What goes before the queue does; of the queue it is the first one, with its album."""
        queued = [each for each in self.waiting if self._is_queued(each)]
        if not any(each in queued for each in messages):
            together = [each for each in self.waiting if each not in queued]
            if list(messages) != together:
                self._broken(3, f"{turn} took {messages} alone; {together} belong together")
            return
        first = self.messages[self.waiting[0]]
        album = [m for m in self.waiting if first.group and self.messages[m].group == first.group]
        if queued != self.waiting or list(messages) != (album or [first.id]):
            self._broken(3, f"{turn} took {messages} out of turn; {self.waiting} waited")

    def _is_queued(self, message: str) -> bool:
        accepted = self.dispositions[message]
        is_queued = accepted.disposition is Disposition.QUEUED
        return is_queued and accepted.message.mode is Mode.QUEUE

    def _steered(self, event: MessagesTaken) -> None:
        self._take(self._open(9, event.turn, "took messages"), event.messages)

    def _user_said(self, event: UserSaid) -> None:
        self._open(2, event.turn, "was given the user's words")
        for message, turn in self.taken.items():
            if turn == event.turn:
                self.said_at.setdefault(message, self.log[-1].seq)
        if self._owed is None:
            return
        turn, content = self._owed
        self._owed = None
        told = event.content[-len(content) :] if content else ()
        noted = len(event.content) - len(content)
        if turn != event.turn or told != content or noted > 1:
            self._broken(3, f"{turn} took {content}, and the model is told {event.content}")
        if self._note_owed is not None and bool(noted) != self._note_owed:
            self._broken(10, f"of the turn before {turn} the model is told {event.content[:noted]}")
        self._note_owed = False

    def _assistant_said(self, event: AssistantSaid) -> None:
        turn = self._open(2, event.turn, "spoke")
        if turn.open_calls:
            self._broken(5, f"the model spoke while {turn.open_calls} had no result")
        calls = [part for part in event.message.content if isinstance(part, ToolCall)]
        if calls and event.partial:
            self._broken(5, f"calls of an answer that was cut off were kept: {calls}")
        known = {call for each in self.turns.values() for call in each.calls}
        if known.intersection(call.id for call in calls):
            self._broken(5, f"a call id was used before: {calls}")
        turn.calls.update((call.id, call) for call in calls)
        turn.said.append(event)
        turn.checkpoints = ""

    def _checkpoint(self, event: TextCheckpoint) -> None:
        turn = self._open(2, event.turn, "spoke")
        turn.checkpoints = "" if event.void else turn.checkpoints + event.text

    def _landed(self, event: InterruptLanded) -> None:
        turn = self._open(9, event.turn, "was interrupted")
        turn.landed.append(event)
        by_message = event.reason in (Mode.INTERRUPT, Mode.ROLLBACK)
        if by_message and self.messages[next(reversed(self.messages))].group in turn.groups:
            self._broken(3, f"{turn.id} was stopped by the album that it answers")
        holds = not by_message and not self.is_child
        self._must_hold = holds and bool(self.waiting) and not self.held

    def _compressed(self, event: Compressed) -> None:
        """Law 5: only between two steps. Law 3: it stands for what was said before it."""
        turn = self._open(2, event.turn, "compressed")
        if turn.open_calls:
            self._broken(5, f"{turn.id} compressed while {turn.open_calls} had no result")
        if not event.summary.strip() or not 1 < event.before <= self.log[-1].seq:
            self._broken(3, f"{turn.id} has compressed nothing, or what is yet to come: {event}")
        self.compressions.append(event)

    def _used_up(self, event: BudgetUsedUp) -> None:
        self._open(2, event.turn, "used up a budget").used_up = event

    def may_be_summarised(self, message: str) -> bool:
        """Whether the model is shown a summary in place of a message that was taken."""
        before = self.compressions[-1].before if self.compressions else 0
        last = max(self.said_at.values(), default=0)
        said_at = self.said_at.get(message, last)
        return said_at < before and said_at != last

    def _forget_compressions(self, turn: str) -> None:
        """Of a turn that was taken back."""
        self.compressions = [each for each in self.compressions if each.turn != turn]

    def _settled(self, event: TurnSettled) -> None:
        turn = self._open(4, event.turn, "settled")
        if event.hidden:
            self._forget_compressions(turn.id)
        turn.settled = event
        self.turn = None
        # Of a turn that it is not shown the model may still be told what it did.
        stopped = event.outcome in (TurnOutcome.STOPPED, TurnOutcome.CRASHED)
        self._note_owed = None if event.hidden else stopped
        if turn.open_calls:
            self._broken(5, f"{turn.id} settled and {turn.open_calls} have no result")
        if turn.checkpoints:
            self._broken(5, f"{turn.id} had said {turn.checkpoints!r}, and that was not kept")
        asking = [q for q in turn.questions if self.questions.get(q) not in (None, *self.detached)]
        if asking and not _ended_with_the_program(event):
            self._broken(10, f"{turn.id} settled and its questions {asking} are open")
        # A sub-agent is stopped by the rollback of its parent, whose turn it is that is hidden.
        rolled_back = any(landed.reason == Mode.ROLLBACK for landed in turn.landed)
        must_hide = rolled_back and not self.is_child
        if (event.hidden and not turn.rolled_back) or (must_hide and not event.hidden):
            self._broken(9, f"{turn.id} hidden={event.hidden}, rolled back={turn.rolled_back}")
        self._check_outcome(turn, event)

    def _was_hidden(self, event: TurnHidden) -> None:
        turn = self.turns.get(event.turn)
        if self.turn is not None or turn is None or turn.settled is None:
            self._broken(9, f"{event.turn} was taken back though it had not settled")
        self._forget_compressions(event.turn)
        self._note_owed = None

    def _check_outcome(self, turn: SeenTurn, event: TurnSettled) -> None:
        stopped = event.outcome is TurnOutcome.STOPPED
        if turn.strays and event.outcome in (TurnOutcome.COMPLETED, TurnOutcome.FAILED):
            self._broken(3, f"{turn.strays} did not join {turn.id}, which answers their album")
        if turn.landed and event.outcome not in (TurnOutcome.STOPPED, TurnOutcome.CRASHED):
            self._broken(9, f"an interrupt landed on {turn.id}, which then {event.outcome}")
        if stopped != (event.receipt is not None):
            self._broken(10, f"{turn.id} {event.outcome} with the receipt {event.receipt}")
        if event.receipt is not None:
            self._check_receipt(turn, event.receipt)

    def _check_receipt(self, turn: SeenTurn, receipt: Receipt) -> None:
        if receipt.target != turn.id or receipt.status is not ReceiptStatus.STOPPED:
            self._broken(10, f"{turn.id} settled with a receipt of {receipt.target}")
        waiting = tuple(self.waiting)
        told = (receipt.held, receipt.queued)
        if told != ((waiting, ()) if self.held else ((), waiting)):
            self._broken(10, f"{turn.id}: held={self.held} {waiting}, the receipt says {told}")
        cause = receipt.reason.root.cause if receipt.reason is not None else None
        if cause is Cause.BUDGET and (turn.used_up is None or receipt.steps):
            self._broken(10, f"{turn.id}: a budget has ended it, and cut {receipt.steps}")
        if not turn.landed and cause not in _CAUSES_WITHOUT_A_WORD:
            self._broken(9, f"{turn.id} was stopped ({receipt.reason}), and no interrupt named it")
        detached = turn.ended.intersection(self.detached)
        for step in receipt.steps:
            if step.call_id in detached and step.status is not CallStatus.DETACHED:
                self._broken(1, f"{step.call_id} was detached, and {turn.id} stopped it: {step}")

    # Calls and questions

    def _call_started(self, event: CallStarted) -> None:
        turn = self._open(2, event.turn, "started a call")
        call = event.call.id
        if call not in turn.open_calls or call in turn.started:
            self._broken(3, f"{call} started, though it was not asked for, or was over, or twice")
        turn.started.add(call)

    def _call_ended(self, event: CallEnded) -> None:
        turn = self._open(2, event.turn, "ended a call")
        if event.call_id not in turn.open_calls:
            self._broken(5, f"{event.call_id} has a second result, or was never asked for")
        turn.ended.add(event.call_id)
        if (event.result.status is CallStatus.DETACHED) != (event.call_id in self.detached):
            self._broken(10, f"{event.call_id} ended as {event.result.status}")
        at_work = [child for child in self.running_children if self._belongs(child, event.call_id)]
        if at_work and event.result.status not in (CallStatus.ABANDONED, CallStatus.DETACHED):
            self._broken(6, f"{event.call_id} ended and its sub-agents {at_work} had not")

    def _call_detached(self, event: CallDetached) -> None:
        turn = self._open(2, event.turn, "detached a call")
        if event.call_id not in turn.open_calls or event.call_id in self.detached:
            self._broken(3, f"{event.call_id} was detached, though it was over or detached before")
        self.background.add(event.call_id)
        self.detached.add(event.call_id)

    def _background_ended(self, event: BackgroundEnded) -> None:
        if event.call_id not in self.background:
            self._broken(3, f"{event.call_id} ended in the background, where it was not")
        self.background.discard(event.call_id)

    # Sub-agents

    def _created(self, event: SessionCreated) -> None:
        self.is_child = event.parent is not None

    def _child_started(self, event: ChildStarted) -> None:
        if event.child in self.children:
            self._broken(4, f"the sub-agent {event.child} was begun twice")
        if self.ended:
            self._broken(2, f"the sub-agent {event.child} was begun after the session's end")
        if event.call_id not in self.background:
            self._open(2, event.turn, "began a sub-agent")
        self.children[event.child] = event

    def _child_ended(self, event: ChildEnded) -> None:
        if event.child not in self.running_children:
            self._broken(3, f"the sub-agent {event.child} ended, though it was not at work")
        self.children_ended[event.child] = event

    def _belongs(self, child: str, call_id: str) -> bool:
        started = self.children[child]
        return started.call_id == call_id and not started.detached

    def _asked(self, event: QuestionAsked) -> None:
        if event.id in self.asked:
            self._broken(
                9, f"the question {event.id} was asked twice: a late answer would fit both"
            )
        self.asked[event.id] = self.questions[event.id] = event.call_id
        detached = any(each.detached for each in self.children.values())
        if event.call_id not in self.background and not detached:
            self._open(2, event.turn, "asked a question").questions.add(event.id)

    def _closed(self, event: QuestionClosed) -> None:
        call = self.questions.pop(event.id, None)
        if call is None:
            self._broken(3, f"the question {event.id} was closed, though it was not open")
        if event.answer is not None:
            self.answers[call] = event.answer

    def _agent_event(self, event: AgentEvent) -> None:
        self._open(2, event.turn, "wrote")

    def _agent_state(self, event: AgentState) -> None:
        self._open(2, event.turn, "wrote")
        self.agent_state = event.body

    def _session_ended(self, event: SessionEnded) -> None:
        self.ended = True
        if self.running_children:
            self._broken(3, f"the session ended before its sub-agents {self.running_children}")
        if self.questions:
            self._broken(10, f"the session ended and its questions {self.questions} are open")

    # Inside

    def _open(self, law: int, turn: str, what: str) -> SeenTurn:
        if self.turn is None or self.turn.id != turn:
            now = self.turn.id if self.turn is not None else "no turn"
            self._broken(law, f"{turn} {what}, but {now} is in flight")
        return self.turn

    def _broken(self, law: int, words: str) -> NoReturn:
        raise LawBroken(law, f"{self.session}: {words}")


def _ended_with_the_program(event: TurnSettled) -> bool:
    """Its questions can be answered after the restart."""
    reason = event.receipt.reason if event.receipt is not None else None
    shut_down = reason is not None and reason.root.cause is Cause.SHUTDOWN
    return event.outcome is TurnOutcome.CRASHED or shut_down


Rule = Callable[[SessionLaws, Event], None]

_RULES: dict[type[Event], Rule] = cast(
    dict[type[Event], Rule],
    {
        SessionCreated: SessionLaws._created,
        ChildStarted: SessionLaws._child_started,
        ChildEnded: SessionLaws._child_ended,
        MessageAccepted: SessionLaws._accepted,
        MessageEdited: SessionLaws._edited,
        MessageMoved: SessionLaws._moved,
        MessageWithdrawn: SessionLaws._withdrew,
        QueueHeld: SessionLaws._was_held,
        QueueReleased: SessionLaws._was_released,
        TurnStarted: SessionLaws._started,
        MessagesTaken: SessionLaws._steered,
        UserSaid: SessionLaws._user_said,
        AssistantSaid: SessionLaws._assistant_said,
        TextCheckpoint: SessionLaws._checkpoint,
        InterruptLanded: SessionLaws._landed,
        TurnSettled: SessionLaws._settled,
        Compressed: SessionLaws._compressed,
        BudgetUsedUp: SessionLaws._used_up,
        TurnHidden: SessionLaws._was_hidden,
        CallStarted: SessionLaws._call_started,
        CallEnded: SessionLaws._call_ended,
        CallDetached: SessionLaws._call_detached,
        BackgroundEnded: SessionLaws._background_ended,
        QuestionAsked: SessionLaws._asked,
        QuestionClosed: SessionLaws._closed,
        AgentEvent: SessionLaws._agent_event,
        AgentState: SessionLaws._agent_state,
        SessionEnded: SessionLaws._session_ended,
    },
)
