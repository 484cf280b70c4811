"""Rules for an arriving message. Where it goes:

- The session is idle: into a new turn, whatever its mode. Held messages continue after it.
- A turn runs: its mode decides (see `Lane`). A message that came too late to stop the turn is next.
- A turn is stopping: into the next turn, together with similar ones; `queue` stays in the queue.
- Files of a turn that was rolled back are being put back: as while a turn is stopping.
- It belongs to the same album as a message that the running turn took: it joins that turn.
"""

from bargein.contracts.event import Event, InterruptLanded, MessageAccepted, QueueReleased
from bargein.contracts.message import Disposition, Message, Mode
from bargein.session.commands import Accept, CutModel, Effect, Gather, GatherOver, Log, Refuse, Send
from bargein.session.rules.moves import Decision, accept_as, change, start_next, wait_in
from bargein.session.state import Lane, Phase, SessionState

# On Python 3.11, looking a member up in its enum class takes as long as a function call.
_REJECT, _QUEUE, _STEER = Mode.REJECT, Mode.QUEUE, Mode.STEER
_QUEUED, _IN_QUEUE = Disposition.QUEUED, Lane.QUEUE


def send_idle(state: SessionState, send: Send) -> Decision:
    message = send.message
    if state.child and state.turns:
        return send_ended(state, send)
    if state.restoring:
        return send_restoring(state, message)
    state = wait_in(state, message, Lane.NEXT)
    if message.group is not None and state.gathering in (None, message.group):
        first = state.gathering is None
        state = change(state, gathering=message.group)
        effects: tuple[Effect, ...] = (
            Log((MessageAccepted(message, Disposition.STARTED),)),
            Accept(message.id, Disposition.STARTED, None),
        )
        return state, (*effects, Gather(message.group)) if first else effects
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    state, events, starts = start_next(change(state, held=False, gathering=None))
    accepted = MessageAccepted(message, Disposition.STARTED)
    return state, (
        Log((accepted, *released, *events)),
        Accept(message.id, Disposition.STARTED, state.turn),
        *starts,
    )


def send_restoring(state: SessionState, message: Message) -> Decision:
    if message.mode is _REJECT:
        why = f"files of {state.restoring} are being put back; send it in a moment"
        return state, (Refuse("busy", why),)
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    lane = _IN_QUEUE if message.mode is _QUEUE else Lane.NEXT
    state = change(wait_in(state, message, lane), held=False)
    accepted = MessageAccepted(message, _QUEUED)
    return state, (Log((accepted, *released)), Accept(message.id, _QUEUED, None))


def send_busy(state: SessionState, send: Send) -> Decision:
    message = send.message
    if message.mode is _REJECT:
        return state, (Refuse("busy", f"the session is busy with {state.turn}; send it later"),)
    if message.group is not None and message.group in state.turn_groups:
        return steer_turn(state, message)
    if state.child and message.mode is not _STEER:
        return state, (Refuse("one_turn", ONE_TURN),)
    if message.mode is _QUEUE:
        state = wait_in(state, message, _IN_QUEUE)
        return state, accept_as(message, _QUEUED, None)
    if message.mode is _STEER:
        return steer_turn(state, message)
    state = wait_in(state, message, Lane.NEXT)
    if not send.landed:
        # The turn ended by itself first, or it was not the expected turn.
        return state, accept_as(message, _QUEUED, None)
    hide = message.mode is Mode.ROLLBACK
    state = change(state, phase=Phase.STOPPING, hide_turn=hide, boundary=False)
    accepted = MessageAccepted(message, Disposition.INTERRUPTING, send.target)
    landed = InterruptLanded(send.target or "", str(message.mode), message.sender)
    return state, (
        Log((accepted, landed)),
        Accept(message.id, Disposition.INTERRUPTING, send.target),
    )


def steer_turn(state: SessionState, message: Message) -> Decision:
    turn = state.turn or ""
    state = wait_in(state, message, Lane.STEER)
    return state, (CutModel(turn), *accept_as(message, Disposition.STEERING, turn))


def send_stopping(state: SessionState, send: Send) -> Decision:
    message = send.message
    if message.mode is Mode.REJECT:
        return state, (Refuse("busy", f"{state.turn} is stopping; send it in a moment"),)
    if state.child:
        return send_ended(state, send)
    lane = Lane.QUEUE if message.mode is Mode.QUEUE else Lane.NEXT
    disposition = Disposition.QUEUED if lane is Lane.QUEUE else Disposition.INTERRUPTING
    hide = state.hide_turn or (message.mode is Mode.ROLLBACK and send.target == state.turn)
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    state = change(wait_in(state, message, lane), held=False, hide_turn=hide)
    return state, (
        Log((MessageAccepted(message, disposition, state.turn), *released)),
        Accept(message.id, disposition, state.turn),
    )


def send_ended(state: SessionState, send: Send) -> Decision:
    child = "this sub-agent has ended and takes no more messages; tell its parent"
    over = child if state.child else "the session has ended; begin another one"
    return state, (Refuse("ended", over),)


ONE_TURN = (
    "a sub-agent has one turn: steer it, or stop it and tell its parent; it takes no other message"
)


def gather_over(state: SessionState, over: GatherOver) -> Decision:
    if state.gathering != over.group:
        return state, ()
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    state, events, starts = start_next(change(state, held=False, gathering=None))
    return state, (Log((*released, *events)), *starts)


_BY_PHASE = {
    Phase.IDLE: send_idle,
    Phase.RUNNING: send_busy,
    Phase.PAUSED: send_busy,
    Phase.STOPPING: send_stopping,
    Phase.ENDED: send_ended,
}


def send_in_any(state: SessionState, send: Send) -> Decision:
    """Apply the rule for `Send` in any phase, for rules that themselves send a message."""
    return _BY_PHASE[state.phase](state, send)
