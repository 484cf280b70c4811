"""All laws over one log: maps each kind of event to its rule."""

from collections.abc import Callable, Iterable
from typing import cast

from bargein.contracts.event import (
    AgentEvent,
    AgentState,
    AssistantSaid,
    BackgroundEnded,
    BudgetUsedUp,
    CallDetached,
    CallEnded,
    CallStarted,
    CallsUndoing,
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
    SessionTitled,
    TextCheckpoint,
    TurnHidden,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.testing.engine_invariants import calls, inbox, turns
from bargein.testing.engine_invariants.seen import SeenLog


class SessionLaws(SeenLog):
    """Checks the log of one session against the laws, event by event. Also exposes its contents."""

    def feed(self, recorded: Recorded) -> None:
        if recorded.seq != len(self.log) + 1:
            self.broken(3, f"event {recorded.seq} follows {len(self.log)}")
        self.log.append(recorded)
        event = recorded.event
        if self.must_hold and not isinstance(event, QueueHeld):
            self.broken(3, f"a stop without a message did not hold what waits: {self.waiting}")
        if self.owed is not None and not isinstance(event, UserSaid):
            self.broken(3, f"messages were taken and their words were not said: {self.owed}")
        rule = _RULES.get(type(event))
        if rule is not None:
            rule(self, event)

    def check_all_ran(self) -> None:
        """Law 3, at rest: what still waits is visibly held, or the session has ended."""
        if self.turn is not None:
            self.broken(3, f"{self.turn.id} was never settled")
        if self.waiting and not self.held and not self.ended:
            self.broken(3, f"stranded, neither taken nor held: {self.waiting}")
        if self.running_children:
            self.broken(3, f"sub-agents that never ended: {self.running_children}")
        if self.is_child and not self.ended:
            self.broken(3, "a sub-agent that is not at work any more and has not ended")


def check_log(log: Iterable[Recorded], session: str = "session") -> SessionLaws:
    """Checks a whole log of one session, from its first event."""
    laws = SessionLaws(session)
    for recorded in log:
        laws.feed(recorded)
    return laws


Rule = Callable[[SeenLog, Event], None]

_RULES: dict[type[Event], Rule] = cast(
    dict[type[Event], Rule],
    {
        SessionCreated: calls.created,
        ChildStarted: calls.child_started,
        ChildEnded: calls.child_ended,
        MessageAccepted: inbox.accepted,
        MessageEdited: inbox.edited,
        MessageMoved: inbox.moved,
        MessageWithdrawn: inbox.withdrew,
        QueueHeld: inbox.was_held,
        QueueReleased: inbox.was_released,
        TurnStarted: turns.started,
        MessagesTaken: turns.steered,
        UserSaid: turns.user_said,
        AssistantSaid: turns.assistant_said,
        TextCheckpoint: turns.checkpoint,
        InterruptLanded: turns.landed,
        TurnSettled: turns.settled,
        Compressed: turns.compressed,
        BudgetUsedUp: turns.used_up,
        TurnHidden: turns.was_hidden,
        CallsUndoing: calls.undoing,
        CallStarted: calls.call_started,
        CallEnded: calls.call_ended,
        CallDetached: calls.call_detached,
        BackgroundEnded: calls.background_ended,
        QuestionAsked: calls.asked,
        QuestionClosed: calls.closed,
        AgentEvent: turns.agent_event,
        AgentState: turns.agent_state,
        SessionTitled: turns.titled,
        SessionEnded: calls.session_ended,
    },
)
