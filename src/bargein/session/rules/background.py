"""Rules for work beside the turn: calls in the background and sub-agents."""

from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    CallEnded,
    ChildEnded,
    ChildStarted,
    Event,
    MessageAccepted,
    TurnOutcome,
)
from bargein.contracts.message import Disposition, Message
from bargein.session.commands import (
    BackgroundOver,
    ChildBegan,
    ChildOver,
    Detached,
    Done,
    Log,
    Refuse,
)
from bargein.session.rules.moves import Decision, change, hold, leave, start_next, wait_in
from bargein.session.state import Child, Lane, Phase, SessionState

# The background


def call_detached(state: SessionState, detached: Detached) -> Decision:
    if detached.turn != state.turn:
        return state, (Refuse("fenced", f"{detached.turn} is over"),)
    state = change(state, background=(*state.background, detached.call))
    turn, call = detached.turn, detached.call
    return state, (Log((CallDetached(turn, call), CallEnded(turn, call, detached.result))), Done())


def background_over(state: SessionState, over: BackgroundOver) -> Decision:
    if over.call not in state.background:
        return state, ()
    background = tuple(each for each in state.background if each != over.call)
    state = change(state, background=background)
    ended = BackgroundEnded(over.call, over.result)
    if over.message is None:
        state, ends, leaves = leave(state)
        return state, (Log((ended, *ends)), Done(), *leaves)
    return news(state, ended, over.message, begins_turn=over.begins_turn)


def news(state: SessionState, ended: Event, message: Message, *, begins_turn: bool) -> Decision:
    """Accept the outcome of background work as a message. It joins the running turn, without
    cutting a request short, or starts a turn. Held messages stay held, because this is not the
    user's permission to continue. The outcome of work that somebody stopped or a restart lost
    starts no turn either: it is held, unless other messages wait that start a turn anyway."""
    joins = state.phase in (Phase.RUNNING, Phase.PAUSED)
    alone = not joins and not state.waiting
    state = wait_in(state, message, Lane.STEER if joins else Lane.NEXT)
    holds: tuple[Event, ...] = ()
    if alone and not begins_turn:
        state, holds = hold(state)
    state, events, starts = start_next(state)
    state, ends, leaves = leave(state)
    accepted = MessageAccepted(message, Disposition.QUEUED)
    return state, (Log((ended, accepted, *holds, *events, *ends)), Done(), *starts, *leaves)


# Sub-agents


def child_began(state: SessionState, began: ChildBegan) -> Decision:
    if state.closing or state.ending:
        return state, (Refuse("closing", "the session is about to end"),)
    child = Child(began.child, began.call, began.detached)
    started = ChildStarted(began.turn, began.call, began.child, began.task, began.detached)
    return change(state, children=(*state.children, child)), (Log((started,)), Done())


def child_over(state: SessionState, over: ChildOver) -> Decision:
    if all(each.id != over.child for each in state.children):
        return state, (Done(),)
    state = change(state, children=tuple(c for c in state.children if c.id != over.child))
    ended = ChildEnded(over.child, over.outcome, over.summary)
    if over.message is not None:
        begins_turn = over.outcome is not TurnOutcome.STOPPED and not over.lost
        return news(state, ended, over.message, begins_turn=begins_turn)
    state, ends, leaves = leave(state)
    return state, (Log((ended, *ends)), Done(), *leaves)
