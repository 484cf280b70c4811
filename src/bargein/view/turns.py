"""Rules of the picture for the inbox, turns and the session itself: what each event changes."""

from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.event import (
    BudgetLow,
    BudgetUsedUp,
    Compressed,
    FilesRolledBack,
    HistoryImported,
    InterruptLanded,
    MessageAccepted,
    MessageEdited,
    MessageMoved,
    MessagesTaken,
    MessageWithdrawn,
    ModelUsed,
    QueueHeld,
    QueueReleased,
    SessionEnded,
    SessionTitled,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.live import (
    Stopping,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.view.calls import drop_output
from bargein.view.changes import (
    AnswerEnded,
    BudgetWarned,
    Change,
    Changes,
    FilesCameBack,
    InboxChanged,
    MessageArrived,
    MessageTaken,
    MessageTakenBack,
    ModelTold,
    Rules,
    SessionClosed,
    Shortened,
    Titled,
    TurnClosed,
    TurnOpened,
    TurnStopping,
    TurnTakenBack,
    UsageAdded,
)
from bargein.view.shown import (
    CallState,
    MessageFate,
    ShownInterrupt,
    ShownMessage,
    TextPieces,
    TurnState,
    WaitsFor,
)

if TYPE_CHECKING:
    from bargein.view.picture import Picture

_WAITS_FOR = {
    Disposition.STARTED: WaitsFor.NEXT,
    Disposition.STEERING: WaitsFor.STEER,
    Disposition.INTERRUPTING: WaitsFor.NEXT,
}

# The inbox


def _accepted(picture: "Picture", event: MessageAccepted) -> Changes:
    message = event.message
    waits_for = _waits_for(picture, message, event.disposition)
    shown = ShownMessage(message, event.disposition, picture.at, waits_for, event.target)
    picture.messages[message.id] = shown
    picture.inbox.append(message.id)
    return (MessageArrived(shown),)


def _waits_for(picture: "Picture", message: Message, disposition: Disposition) -> WaitsFor:
    if disposition is not Disposition.QUEUED:
        return _WAITS_FOR.get(disposition, WaitsFor.QUEUE)
    if message.mode is Mode.QUEUE:
        return WaitsFor.QUEUE
    # The message of an interrupt that came too late is next. News from the background joins a
    # running turn.
    is_running = picture.turn is not None and picture.turn.state is TurnState.RUNNING
    return WaitsFor.STEER if message.mode is Mode.STEER and is_running else WaitsFor.NEXT


def _edited(picture: "Picture", event: MessageEdited) -> Changes:
    shown = picture.messages.get(event.message)
    if shown is None:
        return ()
    shown.message = msgspec.structs.replace(shown.message, content=event.content, allows=None)
    shown.edited_by = event.by
    return (InboxChanged(picture.held),)


def _moved(picture: "Picture", event: MessageMoved) -> Changes:
    picture.inbox = list(event.order)
    return (InboxChanged(picture.held),)


def _withdrawn(picture: "Picture", event: MessageWithdrawn) -> Changes:
    if event.message in picture.inbox:
        picture.inbox.remove(event.message)
    picture.held = picture.held and bool(picture.inbox)
    shown = picture.messages.get(event.message)
    if shown is None:
        return ()
    shown.fate, shown.ended_at = MessageFate.WITHDRAWN, picture.at
    shown.withdrawn_by = event.by
    return (MessageTakenBack(shown),)


def _set_held(picture: "Picture", event: QueueHeld | QueueReleased) -> Changes:
    picture.held = isinstance(event, QueueHeld)
    return (InboxChanged(picture.held),)


def _taken(picture: "Picture", event: TurnStarted | MessagesTaken) -> list[Change]:
    turn = picture.turn_of(event.turn)
    taken: list[Change] = []
    for message in event.messages:
        turn.messages.append(message)
        if message in picture.inbox:
            picture.inbox.remove(message)
        shown = picture.messages.get(message)
        if shown is not None:
            shown.fate, shown.turn, shown.ended_at = MessageFate.TAKEN, event.turn, picture.at
            taken.append(MessageTaken(shown))
    return taken


# Turns


def _turn_started(picture: "Picture", event: TurnStarted) -> Changes:
    turn = picture.turn_of(event.turn)
    picture.turn, turn.began_at, turn.is_whole = turn, picture.at, True
    return (TurnOpened(turn), *_taken(picture, event))


def _messages_taken(picture: "Picture", event: MessagesTaken) -> Changes:
    return tuple(_taken(picture, event))


def _told(picture: "Picture", event: UserSaid) -> Changes:
    return (ModelTold(event.turn, event.content),)


def _landed(picture: "Picture", event: InterruptLanded) -> Changes:
    turn = picture.turn_of(event.turn)
    turn.interrupts.append(ShownInterrupt(picture.at, event.reason, event.by))
    return _stopping(picture, event)


def _stopping(picture: "Picture", event: InterruptLanded | Stopping) -> Changes:
    # A stop may land on a turn before the log has the start of the turn, which may then never come.
    turn = picture.turns.get(event.turn)
    if turn is None or turn.state is not TurnState.RUNNING:
        return ()
    turn.state = TurnState.STOPPING
    return (TurnStopping(turn),)


def _settled(picture: "Picture", event: TurnSettled) -> Changes:
    turn = picture.turn_of(event.turn)
    turn.state, turn.ended_at = TurnState.SETTLED, picture.at
    turn.outcome, turn.error = event.outcome, event.error
    turn.receipt, turn.hidden = event.receipt, turn.hidden or event.hidden
    if picture.turn is turn:
        picture.turn = None
    for message in picture.inbox:
        if message in picture.messages and picture.messages[message].waits_for is WaitsFor.STEER:
            # The turn did not take this steer, so the next turn takes it first.
            picture.messages[message].waits_for = WaitsFor.NEXT
    for call in [*turn.calls]:
        known = picture.calls[call]
        drop_output(known)
        if not known.listed and known.state is not CallState.BACKGROUND:
            # Only live events had it: the program died before the log did.
            turn.calls.remove(call)
            del picture.calls[call]
    unsaid = [answer for answer in turn.saying if answer.words]
    turn.saying, turn.steps, turn.heard_ahead = [], [], None
    if event.outcome is TurnOutcome.COMPLETED:
        return (TurnClosed(turn),)
    for answer in unsaid:
        answer.partial = True
        answer.unkept, answer.words = answer.text, TextPieces()
    return (*map(AnswerEnded, unsaid), TurnClosed(turn))


def _hidden(picture: "Picture", event: TurnHidden) -> Changes:
    turn = picture.turns.get(event.turn)
    if turn is None:
        return ()
    turn.hidden = True
    return (TurnTakenBack(turn),)


def _rolled_back(picture: "Picture", event: FilesRolledBack) -> Changes:
    return (FilesCameBack(event),)


def _budget_used_up(picture: "Picture", event: BudgetUsedUp) -> Changes:
    picture.turn_of(event.turn).budget = event
    return ()


def _budget_low(picture: "Picture", event: BudgetLow) -> Changes:
    return (BudgetWarned(event),)


# The session itself


def _compressed(picture: "Picture", event: Compressed) -> Changes:
    return (Shortened(event),)


def _model_used(picture: "Picture", event: ModelUsed) -> Changes:
    picture.used = picture.used.with_request(event.usage)
    turn = picture.turns.get(event.turn)
    if turn is not None:
        turn.used = turn.used.with_request(event.usage)
    return (UsageAdded(event.turn, event.model, event.usage, event.purpose),)


def _titled(picture: "Picture", event: SessionTitled) -> Changes:
    picture.title = event.title
    return (Titled(event.title, event.by),)


def _imported(picture: "Picture", event: HistoryImported) -> Changes:
    picture.imported = event
    return ()


def _session_ended(picture: "Picture", event: SessionEnded) -> Changes:
    picture.ended = True
    return (SessionClosed(),)


LIVE: Rules = {
    Stopping: _stopping,
}

RECORDED: Rules = {
    HistoryImported: _imported,
    MessageAccepted: _accepted,
    MessageEdited: _edited,
    MessageMoved: _moved,
    MessageWithdrawn: _withdrawn,
    QueueHeld: _set_held,
    QueueReleased: _set_held,
    TurnStarted: _turn_started,
    MessagesTaken: _messages_taken,
    UserSaid: _told,
    InterruptLanded: _landed,
    TurnSettled: _settled,
    TurnHidden: _hidden,
    FilesRolledBack: _rolled_back,
    BudgetUsedUp: _budget_used_up,
    BudgetLow: _budget_low,
    ModelUsed: _model_used,
    Compressed: _compressed,
    SessionTitled: _titled,
    SessionEnded: _session_ended,
}
"""Events without a rule: `SessionCreated`, `TextCheckpoint` (only recovery needs it, and
`AssistantSaid` follows), and those of user-written agents (`AgentEvent`, `AgentState`)."""
