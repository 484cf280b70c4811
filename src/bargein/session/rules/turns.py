"""Rules for a turn: its step boundaries, the pause at a boundary, its end, and the end of the
restore of its files."""

from bargein.contracts.event import (
    MessagesTaken,
    MessageWithdrawn,
    QuestionClosed,
    TurnSettled,
    UserSaid,
)
from bargein.session.commands import (
    Announce,
    Boundary,
    Done,
    Effect,
    GiveSteers,
    Log,
    Pause,
    Refuse,
    RestoreFiles,
    Resume,
    RolledBack,
    Settled,
    StopBackground,
)
from bargein.session.rules.moves import Decision, change, content_of, leave, start_next
from bargein.session.rules.stopping import unheard_stop
from bargein.session.state import Lane, Phase, SessionState, WaitingMessage


def at_boundary(state: SessionState, boundary: Boundary) -> Decision:
    if boundary.turn != state.turn:
        return state, (Refuse("fenced", f"{boundary.turn} is over"),)
    if state.phase is Phase.PAUSED:
        return change(state, boundary=True), ()
    steers = state.lane(Lane.STEER)
    if not steers:
        return state, (GiveSteers(boundary.turn, ()),)
    left = tuple(each for each in state.waiting if each.lane is not Lane.STEER)
    groups = tuple(each.group for each in steers if each.group is not None)
    state = change(state, waiting=left, turn_groups=(*state.turn_groups, *groups))
    taken = MessagesTaken(boundary.turn, tuple(each.id for each in steers))
    said = UserSaid(boundary.turn, content_of(steers))
    return state, (Log((taken, said)), GiveSteers(boundary.turn, steers))


def boundary_stopping(state: SessionState, boundary: Boundary) -> Decision:
    return state, (Refuse("fenced", f"{boundary.turn} is being stopped"),)


def turn_settled(state: SessionState, settled: Settled) -> Decision:
    if settled.turn != state.turn:
        return state, (Refuse("fenced", f"{settled.turn} has already settled"),)
    receipt = settled.receipt
    by = receipt.by if receipt is not None else ""
    state, held = unheard_stop(state, settled.turn, settled.stopped_by, by)
    if receipt is not None:
        # In a sub-agent nothing stays waiting: messages that came too late are withdrawn below.
        ids = () if state.child else tuple(each.message.id for each in state.waiting)
        receipt = change(receipt, held=ids if state.held else (), queued=() if state.held else ids)
        if state.hide_turn:
            # Hiding a turn undoes nothing, so the receipt lists everything that the turn did.
            receipt = change(receipt, steps=(*settled.effects, *receipt.steps))
    over = TurnSettled(
        settled.turn, settled.outcome, receipt, settled.error, hidden=state.hide_turn
    )
    # A stop that was known before it was stored closes its questions here.
    closed = {each.id for each in settled.events if isinstance(each, QuestionClosed)}
    questions = tuple(each for each in state.questions if each.asked.id not in closed)
    # The turn did not take these steers, so the next turn takes them first.
    waiting = tuple(
        WaitingMessage(each.message, Lane.NEXT) if each.lane is Lane.STEER else each
        for each in state.waiting
    )
    restores = state.hide_turn and settled.has_files
    hidden_note = "" if restores else settled.note_if_hidden
    note = hidden_note if state.hide_turn else settled.note
    # `state.note` may still hold the note of an earlier stop: a compression shows the model none.
    note = "\n".join(filter(None, (state.note, note)))
    state = change(
        state,
        phase=Phase.IDLE,
        turn=None,
        turn_groups=(),
        waiting=waiting,
        questions=questions if closed else state.questions,
        hide_turn=False,
        boundary=False,
        note=note,
        restoring=settled.turn if restores else "",
    )
    stops: tuple[Effect, ...] = ()
    if state.child:
        # A sub-agent has one turn. Messages that came too late are visibly withdrawn.
        held = tuple(MessageWithdrawn(m.message.id, "end of the sub-agent") for m in waiting)
        state = change(state, waiting=(), ending=True, closing=True)
        stops = (StopBackground(),)
    state, events, starts = start_next(state)
    state, ends, leaves = leave(state)
    return state, (
        *stops,
        Log((*settled.events, *held, over, *ends, *events)),
        Announce(settled.turn, settled.outcome, settled.error, receipt),
        *((RestoreFiles(settled.turn),) if restores else ()),
        *starts,
        *leaves,
    )


def rolled_back(state: SessionState, over: RolledBack) -> Decision:
    if over.turn != state.restoring:
        return state, (Refuse("fenced", f"{over.turn} is not being rolled back"),)
    note = "\n".join(filter(None, (state.note, over.note)))
    state, events, starts = start_next(change(state, restoring="", note=note))
    state, ends, leaves = leave(state)
    told = (*over.events, *ends, *events)
    return state, (*((Log(told),) if told else ()), Done(), *starts, *leaves)


def pause_turn(state: SessionState, pause: Pause) -> Decision:
    if pause.turn is not None and pause.turn != state.turn:
        return state, (Refuse("too_late", f"{pause.turn} has ended"),)
    return change(state, phase=Phase.PAUSED), (Done(),)


def resume_turn(state: SessionState, resume: Resume) -> Decision:
    state = change(state, phase=Phase.RUNNING)
    if not state.boundary or state.turn is None:
        return state, (Done(),)
    state, effects = at_boundary(change(state, boundary=False), Boundary(state.turn))
    return state, (Done(), *effects)
