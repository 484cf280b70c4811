"""Rules for stopping a turn, ending a session, and leaving memory.

A stop without a message holds everything that no turn has taken: steers, interrupts that came
second, the queue. Only `holds`, here, decides which reasons count as such a stop.
"""

from bargein.cancel import Cause
from bargein.contracts.event import Event, InterruptLanded
from bargein.session.commands import (
    Close,
    Done,
    Drain,
    End,
    Leave,
    Log,
    Passivate,
    Refuse,
    RestoreFiles,
    Stop,
    StopBackground,
    StopBefore,
    Wake,
)
from bargein.session.rules.moves import Decision, change, hold, leave, start_next
from bargein.session.state import Phase, SessionState

HOLDING = frozenset({str(Cause.USER_STOP), str(Cause.BUDGET), str(Cause.DEADLINE)})


def holds(reason: str | None) -> bool:
    """Whether a turn that ended for this reason holds the inbox.

    A redirect and a rollback bring a message, which the next turn answers. A client that went away,
    a question that nobody will answer and the end of the program do not show what a person wants
    done with the waiting messages.
    """
    return reason in HOLDING


def stop_idle(state: SessionState, stop: Stop) -> Decision:
    if state.restoring and stop.target is None and state.waiting and holds(stop.reason):
        # The files are put back to the end; the message that did it is held.
        state, held = hold(change(state, gathering=None))
        return state, (Log(held), Done()) if held else (Done(),)
    if state.gathering is None or stop.target is not None:
        return state, (Refuse("too_late", "nothing is running"),)
    # An album that was about to start is held instead.
    state, held = hold(change(state, gathering=None))
    return state, (Log(held), Done())


def stop_busy(state: SessionState, stop: Stop) -> Decision:
    if not stop.landed or stop.target != state.turn:
        return state, (Refuse("too_late", f"{stop.target or 'the turn'} has ended"),)
    landed = InterruptLanded(stop.target or "", stop.reason, stop.by)
    state = change(state, phase=Phase.STOPPING, boundary=False)
    held: tuple[Event, ...] = ()
    if holds(stop.reason):
        state, held = hold(state)
    # This lingers, so that the end of the turn, and with it the receipt, can be in the same commit.
    return state, (Log((landed, *held), lingers=True), Done())


def stop_stopping(state: SessionState, stop: Stop) -> Decision:
    if stop.target != state.turn:
        return state, (Refuse("too_late", f"{stop.target or 'the turn'} has ended"),)
    if not holds(stop.reason):
        return state, (Done(),)
    state, held = hold(state)
    return state, (Log(held), Done()) if held else (Done(),)


def drain_session(state: SessionState, drain: Drain) -> Decision:
    return change(state, closing=True), (Done(),)


def close_idle(state: SessionState, close: Close) -> Decision:
    state, _, leaves = leave(change(state, closing=True))
    return state, (StopBackground(), Done(), *leaves)


def close_busy(state: SessionState, close: Close) -> Decision:
    # The caller has cancelled the turn. The session leaves memory when the turn has ended.
    state, logs = _stopped_before(state, close.stopped)
    state = change(state, phase=Phase.STOPPING, closing=True, boundary=False)
    return state, (StopBackground(), *logs)


def _stopped_before(
    state: SessionState, stopped: StopBefore | None
) -> tuple[SessionState, tuple[Log, ...]]:
    """Decides now the stop of a turn whose own command comes too late, because the session is being
    closed."""
    if stopped is None or stopped.turn != state.turn:
        return state, ()
    state, events = unheard_stop(state, stopped.turn, stopped.cause, stopped.by)
    return state, (Log(events, lingers=True),) if events else ()


def unheard_stop(
    state: SessionState, turn: str, cause: Cause | None, by: str
) -> tuple[SessionState, tuple[Event, ...]]:
    """Holds what a stop holds if there was no `Stop` command: a budget ended the turn, or the store
    lost the command, or the command comes too late."""
    if state.phase is Phase.STOPPING or not holds(cause):
        return state, ()
    state, held = hold(state)
    landed = cause is Cause.USER_STOP
    return state, (InterruptLanded(turn, str(cause), by), *held) if landed else held


def end_idle(state: SessionState, end: End) -> Decision:
    state, events, leaves = leave(change(state, ending=True, closing=True))
    logs = (Log(events),) if events else ()
    return state, (StopBackground(), *logs, Done(), *leaves)


def end_busy(state: SessionState, end: End) -> Decision:
    state, logs = _stopped_before(state, end.stopped)
    state = change(state, phase=Phase.STOPPING, ending=True, closing=True, boundary=False)
    return state, (StopBackground(), *logs, Done())


def leave_ended(state: SessionState, command: Close | End | Passivate) -> Decision:
    return state, (Done(), Leave())


def wake_up(state: SessionState, wake: Wake) -> Decision:
    state, events, starts = start_next(change(state, gathering=None))
    state, ends, leaves = leave(state)
    logs = (Log((*events, *ends)),) if events or ends else ()
    restores = (RestoreFiles(state.restoring),) if state.restoring else ()
    return state, (*logs, *restores, *starts, *leaves)


def leave_memory(state: SessionState, passivate: Passivate) -> Decision:
    waits = state.waiting or state.gathering or state.restoring or state.questions
    if waits or state.background or state.children:
        return state, ()
    return state, (Leave(),)
