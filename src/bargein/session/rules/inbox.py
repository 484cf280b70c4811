"""Rules for the inbox: continue, edit, move, withdraw; compact, take back a turn, undo calls."""

from bargein.contracts.event import (
    CallsUndoing,
    Event,
    MessageEdited,
    MessageMoved,
    MessageWithdrawn,
    QueueReleased,
    TurnHidden,
    TurnStarted,
    UndoingCall,
)
from bargein.contracts.message import Message, QuestionPolicy
from bargein.session.commands import (
    Compact,
    Continue,
    Done,
    Edit,
    Hide,
    Log,
    Move,
    Refuse,
    StartTurn,
    UndoCalls,
    Withdraw,
)
from bargein.session.rules.moves import Decision, change, start_next
from bargein.session.state import Phase, SessionState, WaitingMessage


def continue_queue(state: SessionState, command: Continue) -> Decision:
    if not state.held:
        return state, (Refuse("too_late", "nothing is held"),)
    state, events, starts = start_next(change(state, held=False, unasked=0))
    return state, (Log((QueueReleased(), *events)), Done(), *starts)


def compact_session(state: SessionState, compact: Compact) -> Decision:
    turn = f"t{state.turns + 1}"
    return _start_without_messages(state, (TurnStarted(turn, ()),), StartTurn(turn, ()))


def undo_calls(state: SessionState, command: UndoCalls) -> Decision:
    """The calls get ids that no call of a model has."""
    turn = f"t{state.turns + 1}"
    calls = tuple(
        change(each, undo=change(each.undo, id=f"undo_{turn}_{number}"))
        for number, each in enumerate(command.calls, 1)
    )
    undoing = tuple(UndoingCall(each.of, each.call.id, each.undo) for each in calls)
    events = (TurnStarted(turn, ()), CallsUndoing(turn, undoing, command.by))
    return _start_without_messages(state, events, StartTurn(turn, (), calls))


def _start_without_messages(
    state: SessionState, events: tuple[Event, ...], start: StartTurn
) -> Decision:
    """Held messages stay held, and the note about the last stop waits for the next turn with
    messages."""
    if state.gathering or state.restoring or state.closing or state.ending:
        return state, (Refuse("busy", "the session is about to do something else"),)
    state = change(state, phase=Phase.RUNNING, turn=start.turn, turns=state.turns + 1)
    return state, (Log(events), Done(), start)


def continue_busy(state: SessionState, command: Continue) -> Decision:
    if not state.held:
        return state, (Refuse("too_late", "nothing is held"),)
    return change(state, held=False, unasked=0), (Log((QueueReleased(),)), Done())


def edit_message(state: SessionState, edit: Edit) -> Decision:
    if find_waiting(state, edit.message) is None:
        return state, (message_gone(edit.message),)
    event = MessageEdited(edit.message, edit.content, edit.by)
    waiting = tuple(
        WaitingMessage(edited(each.message, event), each.lane)
        if each.message.id == edit.message
        else each
        for each in state.waiting
    )
    return change(state, waiting=waiting), (Log((event,)), Done())


def edited(message: Message, edit: MessageEdited) -> Message:
    """Returns the message with its new content. What its sender has approved with the old words is
    not approved any more; somebody else's words are not approved in advance either."""
    allows_all = message.questions is QuestionPolicy.ALLOW
    questions = None if allows_all and edit.by != message.sender else message.questions
    return change(message, content=edit.content, allows=None, questions=questions)


def move_message(state: SessionState, move: Move) -> Decision:
    moved = find_waiting(state, move.message)
    if moved is None:
        return state, (message_gone(move.message),)
    rest = [each for each in state.waiting if each is not moved]
    if move.before is None:
        rest.append(moved)
    else:
        places = [n for n, each in enumerate(rest) if each.message.id == move.before]
        if not places:
            return state, (message_gone(move.before),)
        rest.insert(places[0], moved)
    order = tuple(each.message.id for each in rest)
    event = MessageMoved(order, move.by)
    return change(state, waiting=tuple(rest)), (Log((event,)), Done())


def withdraw_message(state: SessionState, withdraw: Withdraw) -> Decision:
    if find_waiting(state, withdraw.message) is None:
        return state, (message_gone(withdraw.message),)
    waiting = tuple(each for each in state.waiting if each.message.id != withdraw.message)
    state = change(state, waiting=waiting, held=state.held and bool(waiting))
    return state, (Log((MessageWithdrawn(withdraw.message, withdraw.by),)), Done())


def find_waiting(state: SessionState, message: str) -> WaitingMessage | None:
    return next((each for each in state.waiting if each.message.id == message), None)


def message_gone(message: str) -> Refuse:
    return Refuse(
        "too_late", f"{message} is not in the inbox: it was taken, withdrawn, or never there"
    )


def hide_turn(state: SessionState, hide: Hide) -> Decision:
    if hide.turns != state.turns:
        return state, (Refuse("too_late", f"another turn came after {hide.turn}"),)
    if hide.turn == state.taken_back:
        return state, (Refuse("too_late", f"{hide.turn} was already taken back"),)
    hidden = TurnHidden(hide.turn, hide.by)
    return change(state, note=hide.note, taken_back=hide.turn), (Log((hidden,)), Done())
