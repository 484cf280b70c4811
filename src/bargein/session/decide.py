"""`decide(state, command) -> state, effects`: the whole behaviour of a session, without I/O.

`TABLE` has a rule for each phase and command that may meet; each rule names the phases it may
lead to, which a test holds it to and from which the picture in the docs is drawn. What is not in
the table is refused. Effects are carried out in order; those after a `Log` wait until it is
durable.

Where a message goes:

- idle: a turn of its own, whatever its mode, and what was held goes on after it;
- a turn runs: by its mode (see `Lane`). One that was too late to stop the turn is the next one;
- a turn is stopping: next, together with others like it; `queue` stays in the queue;
- it belongs to the same album as what the running turn took: it joins that turn.

Longer than other files, because the rules are read side by side with the table.
"""

from collections.abc import Callable

import msgspec

from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    ChildEnded,
    ChildStarted,
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
    SessionEnded,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallStatus, OpenQuestion, QuestionKind
from bargein.session.commands import (
    Accept,
    Announce,
    AnswerQuestion,
    Ask,
    BackgroundOver,
    Boundary,
    ChildBegan,
    ChildOver,
    Close,
    CloseQuestion,
    Command,
    Compact,
    Continue,
    CutModel,
    Detached,
    Dismiss,
    Done,
    Drain,
    Edit,
    Effect,
    End,
    Gather,
    GatherOver,
    GiveAnswer,
    GiveSteers,
    Hide,
    Leave,
    Log,
    Move,
    Passivate,
    Pause,
    Refuse,
    Resume,
    Send,
    Settled,
    StartTurn,
    Stop,
    StopBackground,
    Wake,
    Withdraw,
)
from bargein.session.state import Child, Lane, Pending, Phase, SessionState, Waiting

QUESTIONS_LEFT_OPEN_MAX = 50
"""So many questions of turns that a restart has ended stay open; then the oldest is closed."""

Decision = tuple[SessionState, tuple[Effect, ...]]
_change = msgspec.structs.replace


def decide(state: SessionState, command: Command) -> Decision:
    rule = TABLE.get((state.phase, type(command)))
    if rule is None:
        name = type(command).__name__.lower()
        return state, (
            Refuse("wrong_state", f"{name} is not possible: the session is {state.phase}"),
        )
    return rule.function(state, command)


# Sending


def _send_idle(state: SessionState, send: Send) -> Decision:
    message = send.message
    if state.child and state.turns:
        return _send_ended(state, send)
    state = _wait(state, message, Lane.NEXT)
    if message.group is not None and state.gathering in (None, message.group):
        first = state.gathering is None
        state = _change(state, gathering=message.group)
        effects: tuple[Effect, ...] = (
            Log((MessageAccepted(message, Disposition.STARTED),)),
            Accept(message.id, Disposition.STARTED, None),
        )
        return state, (*effects, Gather(message.group)) if first else effects
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    state, events, starts = _start_next(_change(state, held=False, gathering=None))
    accepted = MessageAccepted(message, Disposition.STARTED)
    return state, (
        Log((accepted, *released, *events)),
        Accept(message.id, Disposition.STARTED, state.turn),
        *starts,
    )


def _send_busy(state: SessionState, send: Send) -> Decision:
    message = send.message
    if message.mode is Mode.REJECT:
        return state, (Refuse("busy", f"the session is busy with {state.turn}; send it later"),)
    if message.group is not None and message.group in state.turn_groups:
        return _steer(state, message)
    if state.child and message.mode is not Mode.STEER:
        return state, (Refuse("one_turn", ONE_TURN),)
    if message.mode is Mode.QUEUE:
        state = _wait(state, message, Lane.QUEUE)
        return state, _accepted(message, Disposition.QUEUED, None)
    if message.mode is Mode.STEER:
        return _steer(state, message)
    state = _wait(state, message, Lane.NEXT)
    if not send.landed:
        # The turn ended by itself first, or was not the one that was meant.
        return state, _accepted(message, Disposition.QUEUED, None)
    hide = message.mode is Mode.ROLLBACK
    state = _change(state, phase=Phase.STOPPING, hide_turn=hide, boundary=False)
    accepted = MessageAccepted(message, Disposition.INTERRUPTING, send.target)
    landed = InterruptLanded(send.target or "", str(message.mode), message.sender)
    return state, (
        Log((accepted, landed)),
        Accept(message.id, Disposition.INTERRUPTING, send.target),
    )


def _steer(state: SessionState, message: Message) -> Decision:
    turn = state.turn or ""
    state = _wait(state, message, Lane.STEER)
    return state, (CutModel(turn), *_accepted(message, Disposition.STEERING, turn))


def _send_stopping(state: SessionState, send: Send) -> Decision:
    message = send.message
    if message.mode is Mode.REJECT:
        return state, (Refuse("busy", f"{state.turn} is stopping; send it in a moment"),)
    if state.child:
        return _send_ended(state, send)
    lane = Lane.QUEUE if message.mode is Mode.QUEUE else Lane.NEXT
    disposition = Disposition.QUEUED if lane is Lane.QUEUE else Disposition.INTERRUPTING
    hide = state.hide_turn or (message.mode is Mode.ROLLBACK and send.target == state.turn)
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    state = _change(_wait(state, message, lane), held=False, hide_turn=hide)
    return state, (
        Log((MessageAccepted(message, disposition, state.turn), *released)),
        Accept(message.id, disposition, state.turn),
    )


def _send_ended(state: SessionState, send: Send) -> Decision:
    child = "this sub-agent is over and takes no more messages; tell its parent"
    return state, (Refuse("ended", child if state.child else "the session is ended"),)


ONE_TURN = (
    "a sub-agent has one turn: steer it, or stop it and tell its parent; no other message is taken"
)


def _accepted(message: Message, disposition: Disposition, turn: str | None) -> tuple[Effect, ...]:
    return (
        Log((MessageAccepted(message, disposition, turn),)),
        Accept(message.id, disposition, turn),
    )


def _wait(state: SessionState, message: Message, lane: Lane) -> SessionState:
    waiting = (*state.waiting, Waiting(message, lane))
    return _change(state, waiting=waiting, messages=state.messages + 1)


def _gather_over(state: SessionState, over: GatherOver) -> Decision:
    if state.gathering != over.group:
        return state, ()
    released: tuple[Event, ...] = (QueueReleased(),) if state.held else ()
    state, events, starts = _start_next(_change(state, held=False, gathering=None))
    return state, (Log((*released, *events)), *starts)


# Stopping


def _stop_idle(state: SessionState, stop: Stop) -> Decision:
    if state.gathering is None or stop.target is not None:
        return state, (Refuse("too_late", "nothing is running"),)
    # An album that was about to start is held instead.
    state, held = _hold(_change(state, gathering=None))
    return state, (Log(held), Done())


def _stop_busy(state: SessionState, stop: Stop) -> Decision:
    if not stop.landed or stop.target != state.turn:
        return state, (Refuse("too_late", f"{stop.target or 'the turn'} has ended"),)
    landed = InterruptLanded(stop.target or "", stop.reason, stop.by)
    state, held = _hold(_change(state, phase=Phase.STOPPING, boundary=False))
    return state, (Log((landed, *held)), Done())


def _stop_stopping(state: SessionState, stop: Stop) -> Decision:
    if stop.target != state.turn:
        return state, (Refuse("too_late", f"{stop.target or 'the turn'} has ended"),)
    if not stop.landed and state.held:
        return state, (Done(),)
    state, held = _hold(state)
    return state, (Log(held), Done()) if held else (Done(),)


def _hold(state: SessionState) -> tuple[SessionState, tuple[Event, ...]]:
    if state.held or not state.waiting or state.child:
        return state, ()
    return _change(state, held=True), (QueueHeld(),)


def _drain(state: SessionState, drain: Drain) -> Decision:
    return _change(state, closing=True), (Done(),)


def _close_idle(state: SessionState, close: Close) -> Decision:
    state, _, leaves = _leave(_change(state, closing=True))
    return state, (StopBackground(), Done(), *leaves)


def _close_busy(state: SessionState, close: Close) -> Decision:
    # The turn has been cancelled by whoever sent this; its end brings the actor's.
    return _change(state, phase=Phase.STOPPING, closing=True, boundary=False), (StopBackground(),)


def _end_idle(state: SessionState, end: End) -> Decision:
    state, events, leaves = _leave(_change(state, ending=True, closing=True))
    logs = (Log(events),) if events else ()
    return state, (StopBackground(), *logs, Done(), *leaves)


def _end_busy(state: SessionState, end: End) -> Decision:
    state = _change(state, phase=Phase.STOPPING, ending=True, closing=True, boundary=False)
    return state, (StopBackground(), Done())


def _leave(state: SessionState) -> tuple[SessionState, tuple[Event, ...], tuple[Effect, ...]]:
    """The session leaves memory if it is about to and nothing of it runs any more."""
    runs = state.busy or state.background or state.children
    if not (state.closing or state.ending) or runs:
        return state, (), ()
    if state.ending:
        closed = [QuestionClosed(each.asked.id) for each in state.questions]
        state = _change(state, phase=Phase.ENDED, ending=False, questions=())
        return state, (*closed, SessionEnded()), (Leave(),)
    return state, (), (Leave(),)


def _leave_ended(state: SessionState, command: Close | End | Passivate) -> Decision:
    return state, (Done(), Leave())


# The turn's own commands


def _boundary(state: SessionState, boundary: Boundary) -> Decision:
    if boundary.turn != state.turn:
        return state, (Refuse("fenced", f"{boundary.turn} is over"),)
    if state.phase is Phase.PAUSED:
        return _change(state, boundary=True), ()
    steers = state.lane(Lane.STEER)
    if not steers:
        return state, (GiveSteers(boundary.turn, ()),)
    left = tuple(each for each in state.waiting if each.lane is not Lane.STEER)
    groups = tuple(each.group for each in steers if each.group is not None)
    state = _change(state, waiting=left, turn_groups=(*state.turn_groups, *groups))
    taken = MessagesTaken(boundary.turn, tuple(each.id for each in steers))
    said = UserSaid(boundary.turn, _content(steers))
    return state, (Log((taken, said)), GiveSteers(boundary.turn, steers))


def _boundary_stopping(state: SessionState, boundary: Boundary) -> Decision:
    return state, (Refuse("fenced", f"{boundary.turn} is being stopped"),)


def _settled(state: SessionState, settled: Settled) -> Decision:
    if settled.turn != state.turn:
        return state, (Refuse("fenced", f"{settled.turn} has settled before"),)
    holds: tuple[Event, ...] = ()
    if settled.bare_stop and state.phase is not Phase.STOPPING:
        state, holds = _hold(state)
    receipt = settled.receipt
    if receipt is not None:
        # Of a sub-agent nothing waits on: what came too late for it is withdrawn.
        ids = () if state.child else tuple(each.message.id for each in state.waiting)
        receipt = _change(receipt, held=ids if state.held else (), queued=() if state.held else ids)
        if state.hide_turn:
            # It undoes nothing, so all that the turn has done is told.
            receipt = _change(receipt, steps=(*settled.effects, *receipt.steps))
    over = TurnSettled(
        settled.turn, settled.outcome, receipt, settled.error, hidden=state.hide_turn
    )
    # A steer that no boundary took is the next message.
    waiting = tuple(
        Waiting(each.message, Lane.NEXT) if each.lane is Lane.STEER else each
        for each in state.waiting
    )
    note = settled.note_if_hidden if state.hide_turn else settled.note
    # That of a stop before a compression has not been told yet.
    note = "\n".join(filter(None, (state.note, note)))
    state = _change(
        state,
        phase=Phase.IDLE,
        turn=None,
        turn_groups=(),
        waiting=waiting,
        hide_turn=False,
        boundary=False,
        note=note,
    )
    stops: tuple[Effect, ...] = ()
    if state.child:
        # Its one turn is over. What came too late for it goes back in plain sight.
        holds = tuple(MessageWithdrawn(m.message.id, "end of the sub-agent") for m in waiting)
        state = _change(state, waiting=(), ending=True, closing=True)
        stops = (StopBackground(),)
    state, events, starts = _start_next(state)
    state, ends, leaves = _leave(state)
    return state, (
        *stops,
        Log((*settled.events, *holds, over, *ends, *events)),
        Announce(settled.turn, settled.outcome, settled.error, receipt),
        *starts,
        *leaves,
    )


def _start_next(
    state: SessionState,
) -> tuple[SessionState, tuple[Event, ...], tuple[Effect, ...]]:
    """Take what is next into a new turn, if anything may start."""
    stays = state.held or state.closing or state.ending or state.gathering or state.busy
    if stays or not state.waiting:
        return state, (), ()
    taken = state.lane(Lane.NEXT) or state.lane(Lane.STEER)
    if not taken:
        first = state.waiting[0].message
        taken = tuple(
            each.message
            for each in state.waiting
            if each.message is first or (first.group and each.message.group == first.group)
        )
    ids = tuple(each.id for each in taken)
    turn = f"t{state.turns + 1}"
    note = (Text(state.note),) if state.note else ()
    events = (TurnStarted(turn, ids), UserSaid(turn, (*note, *_content(taken))))
    state = _change(
        state,
        phase=Phase.RUNNING,
        turn=turn,
        turns=state.turns + 1,
        turn_groups=tuple(each.group for each in taken if each.group is not None),
        waiting=tuple(each for each in state.waiting if each.message.id not in ids),
        note="",
    )
    return state, events, (StartTurn(turn, taken),)


def _content(messages: tuple[Message, ...]) -> tuple[Text | Image, ...]:
    return tuple(part for message in messages for part in message.content)


def _pause(state: SessionState, pause: Pause) -> Decision:
    if pause.turn is not None and pause.turn != state.turn:
        return state, (Refuse("too_late", f"{pause.turn} has ended"),)
    return _change(state, phase=Phase.PAUSED), (Done(),)


def _resume(state: SessionState, resume: Resume) -> Decision:
    state = _change(state, phase=Phase.RUNNING)
    if not state.boundary or state.turn is None:
        return state, (Done(),)
    state, effects = _boundary(_change(state, boundary=False), Boundary(state.turn))
    return state, (Done(), *effects)


# The inbox


def _continue(state: SessionState, command: Continue) -> Decision:
    if not state.held:
        return state, (Refuse("too_late", "nothing is held"),)
    state, events, starts = _start_next(_change(state, held=False))
    return state, (Log((QueueReleased(), *events)), Done(), *starts)


def _compact(state: SessionState, compact: Compact) -> Decision:
    """A turn that takes no message. What is held stays so, and the model is told of the last stop
    when it is next asked."""
    if state.gathering or state.closing or state.ending:
        return state, (Refuse("busy", "the session is about to do something else"),)
    turn = f"t{state.turns + 1}"
    state = _change(state, phase=Phase.RUNNING, turn=turn, turns=state.turns + 1)
    return state, (Log((TurnStarted(turn, ()),)), Done(), StartTurn(turn, ()))


def _continue_busy(state: SessionState, command: Continue) -> Decision:
    if not state.held:
        return state, (Refuse("too_late", "nothing is held"),)
    return _change(state, held=False), (Log((QueueReleased(),)), Done())


def _edit(state: SessionState, edit: Edit) -> Decision:
    if _find(state, edit.message) is None:
        return state, (_gone(edit.message),)
    waiting = tuple(
        Waiting(_change(each.message, content=edit.content), each.lane)
        if each.message.id == edit.message
        else each
        for each in state.waiting
    )
    event = MessageEdited(edit.message, edit.content, edit.by)
    return _change(state, waiting=waiting), (Log((event,)), Done())


def _move(state: SessionState, move: Move) -> Decision:
    moved = _find(state, move.message)
    if moved is None:
        return state, (_gone(move.message),)
    rest = [each for each in state.waiting if each is not moved]
    if move.before is None:
        rest.append(moved)
    else:
        places = [n for n, each in enumerate(rest) if each.message.id == move.before]
        if not places:
            return state, (_gone(move.before),)
        rest.insert(places[0], moved)
    order = tuple(each.message.id for each in rest)
    event = MessageMoved(order, move.by)
    return _change(state, waiting=tuple(rest)), (Log((event,)), Done())


def _withdraw(state: SessionState, withdraw: Withdraw) -> Decision:
    if _find(state, withdraw.message) is None:
        return state, (_gone(withdraw.message),)
    waiting = tuple(each for each in state.waiting if each.message.id != withdraw.message)
    state = _change(state, waiting=waiting, held=state.held and bool(waiting))
    return state, (Log((MessageWithdrawn(withdraw.message, withdraw.by),)), Done())


def _find(state: SessionState, message: str) -> Waiting | None:
    return next((each for each in state.waiting if each.message.id == message), None)


def _gone(message: str) -> Refuse:
    return Refuse("too_late", f"{message} is not in the inbox: it was taken or withdrawn")


def _hide(state: SessionState, hide: Hide) -> Decision:
    if hide.turns != state.turns:
        return state, (Refuse("too_late", f"another turn came after {hide.turn}"),)
    hidden = TurnHidden(hide.turn, hide.by)
    return _change(state, note=hide.note), (Log((hidden,)), Done())


# The background


def _detached(state: SessionState, detached: Detached) -> Decision:
    if detached.turn != state.turn:
        return state, (Refuse("fenced", f"{detached.turn} is over"),)
    state = _change(state, background=(*state.background, detached.call))
    return state, (Log((CallDetached(detached.turn, detached.call),)), Done())


def _background_over(state: SessionState, over: BackgroundOver) -> Decision:
    if over.call not in state.background:
        return state, ()
    background = tuple(each for each in state.background if each != over.call)
    ended = BackgroundEnded(over.call, over.result)
    stopped = over.result.status in (CallStatus.STOPPED, CallStatus.ABANDONED)
    return _news(_change(state, background=background), ended, over.message, stopped)


def _news(state: SessionState, ended: Event, message: Message, stopped: bool) -> Decision:
    """The outcome of what ran in the background is a message: it joins the turn that runs, without
    cutting it short, or starts one. What is held stays held: such an end is not the user's word to
    go on. Nor is the outcome of what was stopped: it is held, unless something waits that goes on
    anyway."""
    joins = state.phase in (Phase.RUNNING, Phase.PAUSED)
    alone = not joins and not state.waiting
    state = _wait(state, message, Lane.STEER if joins else Lane.NEXT)
    holds: tuple[Event, ...] = ()
    if alone and stopped:
        state, holds = _hold(state)
    state, events, starts = _start_next(state)
    state, ends, leaves = _leave(state)
    accepted = MessageAccepted(message, Disposition.QUEUED)
    return state, (Log((ended, accepted, *holds, *events, *ends)), *starts, *leaves)


# Sub-agents


def _child_began(state: SessionState, began: ChildBegan) -> Decision:
    if state.closing or state.ending:
        return state, (Refuse("closing", "the session is about to end"),)
    child = Child(began.child, began.call, began.detached)
    started = ChildStarted(began.turn, began.call, began.child, began.task, began.detached)
    return _change(state, children=(*state.children, child)), (Log((started,)), Done())


def _child_over(state: SessionState, over: ChildOver) -> Decision:
    if all(each.id != over.child for each in state.children):
        return state, (Done(),)
    state = _change(state, children=tuple(c for c in state.children if c.id != over.child))
    ended = ChildEnded(over.child, over.outcome, over.summary)
    if over.message is not None:
        return _news(state, ended, over.message, over.outcome is TurnOutcome.STOPPED)
    state, ends, leaves = _leave(state)
    return state, (Log((ended, *ends)), Done(), *leaves)


# Questions


def _ask(state: SessionState, ask: Ask) -> Decision:
    if state.closing or state.ending:
        return state, (Refuse("closing", "the session is about to end"),)
    left = [each for each in state.questions if not each.live]
    dropped = left[: max(0, len(left) + 1 - QUESTIONS_LEFT_OPEN_MAX)]
    kept = tuple(each for each in state.questions if each not in dropped)
    asked = ask.asked
    events: tuple[Event, ...] = (
        *(QuestionClosed(each.asked.id) for each in dropped),
        QuestionAsked(asked.turn, asked.id, asked.question, asked.call_id),
    )
    return _change(state, questions=(*kept, Pending(asked))), (Log(events), Done())


def _answer(state: SessionState, answer: AnswerQuestion) -> Decision:
    pending = state.question(answer.question)
    if pending is None:
        return state, (Refuse("too_late", f"question {answer.question} is not open any more"),)
    state = _without_question(state, answer.question)
    closed = QuestionClosed(answer.question, answer.text, answer.by)
    if pending.live:
        given = GiveAnswer(answer.question, answer.text, answer.by)
        return state, (Log((closed,)), given, Done())
    # Whoever asked is gone. The answer is a message that carries the question along.
    words = Text(late_answer(pending.asked, answer.text))
    message = Message(f"m{state.messages + 1}", answer.by, Mode.STEER, (words,))
    state, effects = decide(state, Send(message, state.turn))
    return state, tuple(
        Log((closed, *each.events)) if isinstance(each, Log) else each for each in effects
    )


def late_answer(asked: OpenQuestion, answer: str) -> str:
    """The answer to a question that a restart had left open, as the model is told."""
    what = "You had asked the user"
    if asked.question.kind is QuestionKind.APPROVAL:
        what = "You needed the user's yes for a call, which was not started"
    return f"[{what}, before the program ended: {asked.question.text}]\n[The answer:] {answer}"


def _close_question(state: SessionState, close: CloseQuestion) -> Decision:
    pending = state.question(close.question)
    if pending is None:
        return state, (Done(),)
    if close.answer is None and state.closing and not state.ending:
        # The program ends, which is nothing the user meant: it can be answered after the restart.
        kept = tuple(
            Pending(each.asked, live=False) if each is pending else each for each in state.questions
        )
        return _change(state, questions=kept), (Done(),)
    closed = QuestionClosed(close.question, close.answer, close.by)
    return _without_question(state, close.question), (Log((closed,)), Done())


def _dismiss(state: SessionState, dismiss: Dismiss) -> Decision:
    pending = state.question(dismiss.question)
    if pending is None or pending.live:
        why = "is not open any more" if pending is None else "is waited for; stop its call instead"
        return state, (Refuse("too_late", f"question {dismiss.question} {why}"),)
    closed = QuestionClosed(dismiss.question, None, dismiss.by)
    return _without_question(state, dismiss.question), (Log((closed,)), Done())


def _without_question(state: SessionState, question: str) -> SessionState:
    left = tuple(each for each in state.questions if each.asked.id != question)
    return _change(state, questions=left)


def _wake(state: SessionState, wake: Wake) -> Decision:
    state, events, starts = _start_next(_change(state, gathering=None))
    state, ends, leaves = _leave(state)
    logs = (Log((*events, *ends)),) if events or ends else ()
    return state, (*logs, *starts, *leaves)


def _passivate(state: SessionState, passivate: Passivate) -> Decision:
    waits = state.waiting or state.gathering or state.questions
    if waits or state.background or state.children:
        return state, ()
    return state, (Leave(),)


class Rule(msgspec.Struct, frozen=True):
    """What happens, and which phases it may lead to."""

    function: Callable[..., Decision]
    to: tuple[Phase, ...]


_I, _R, _P, _S, _E = Phase.IDLE, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING, Phase.ENDED

TABLE: dict[tuple[Phase, type[Command]], Rule] = {
    (_I, Send): Rule(_send_idle, (_R, _I)),
    (_I, GatherOver): Rule(_gather_over, (_R, _I)),
    (_I, Stop): Rule(_stop_idle, (_I,)),
    (_I, Continue): Rule(_continue, (_R, _I)),
    (_I, Compact): Rule(_compact, (_R, _I)),
    (_I, Edit): Rule(_edit, (_I,)),
    (_I, Move): Rule(_move, (_I,)),
    (_I, Withdraw): Rule(_withdraw, (_I,)),
    (_I, Hide): Rule(_hide, (_I,)),
    (_I, BackgroundOver): Rule(_background_over, (_R, _I, _E)),
    (_I, Wake): Rule(_wake, (_R, _I, _E)),
    (_I, ChildBegan): Rule(_child_began, (_I,)),
    (_I, ChildOver): Rule(_child_over, (_R, _I, _E)),
    (_I, Ask): Rule(_ask, (_I,)),
    (_I, AnswerQuestion): Rule(_answer, (_R, _I)),
    (_I, CloseQuestion): Rule(_close_question, (_I,)),
    (_I, Dismiss): Rule(_dismiss, (_I,)),
    (_I, Drain): Rule(_drain, (_I,)),
    (_I, Close): Rule(_close_idle, (_I, _E)),
    (_I, End): Rule(_end_idle, (_E, _I)),
    (_I, Passivate): Rule(_passivate, (_I,)),
    (_R, Send): Rule(_send_busy, (_R, _S)),
    (_R, Stop): Rule(_stop_busy, (_R, _S)),
    (_R, Boundary): Rule(_boundary, (_R,)),
    (_R, Settled): Rule(_settled, (_I, _R, _E)),
    (_R, Pause): Rule(_pause, (_R, _P)),
    (_R, Resume): Rule(_resume, (_R,)),
    (_R, Edit): Rule(_edit, (_R,)),
    (_R, Move): Rule(_move, (_R,)),
    (_R, Withdraw): Rule(_withdraw, (_R,)),
    (_R, Detached): Rule(_detached, (_R,)),
    (_R, BackgroundOver): Rule(_background_over, (_R,)),
    (_R, ChildBegan): Rule(_child_began, (_R,)),
    (_R, ChildOver): Rule(_child_over, (_R,)),
    (_R, Ask): Rule(_ask, (_R,)),
    (_R, AnswerQuestion): Rule(_answer, (_R,)),
    (_R, CloseQuestion): Rule(_close_question, (_R,)),
    (_R, Dismiss): Rule(_dismiss, (_R,)),
    (_R, Drain): Rule(_drain, (_R,)),
    (_R, Close): Rule(_close_busy, (_S,)),
    (_R, End): Rule(_end_busy, (_S,)),
    (_P, Send): Rule(_send_busy, (_P, _S)),
    (_P, Stop): Rule(_stop_busy, (_P, _S)),
    (_P, Boundary): Rule(_boundary, (_P,)),
    (_P, Settled): Rule(_settled, (_I, _R, _E)),
    (_P, Pause): Rule(_pause, (_P,)),
    (_P, Resume): Rule(_resume, (_R,)),
    (_P, Edit): Rule(_edit, (_P,)),
    (_P, Move): Rule(_move, (_P,)),
    (_P, Withdraw): Rule(_withdraw, (_P,)),
    (_P, Detached): Rule(_detached, (_P,)),
    (_P, BackgroundOver): Rule(_background_over, (_P,)),
    (_P, ChildBegan): Rule(_child_began, (_P,)),
    (_P, ChildOver): Rule(_child_over, (_P,)),
    (_P, Ask): Rule(_ask, (_P,)),
    (_P, AnswerQuestion): Rule(_answer, (_P,)),
    (_P, CloseQuestion): Rule(_close_question, (_P,)),
    (_P, Dismiss): Rule(_dismiss, (_P,)),
    (_P, Drain): Rule(_drain, (_P,)),
    (_P, Close): Rule(_close_busy, (_S,)),
    (_P, End): Rule(_end_busy, (_S,)),
    (_S, Send): Rule(_send_stopping, (_S,)),
    (_S, Stop): Rule(_stop_stopping, (_S,)),
    (_S, Boundary): Rule(_boundary_stopping, (_S,)),
    (_S, Settled): Rule(_settled, (_I, _R, _E)),
    (_S, Continue): Rule(_continue_busy, (_S,)),
    (_S, Edit): Rule(_edit, (_S,)),
    (_S, Move): Rule(_move, (_S,)),
    (_S, Withdraw): Rule(_withdraw, (_S,)),
    (_S, BackgroundOver): Rule(_background_over, (_S,)),
    (_S, ChildBegan): Rule(_child_began, (_S,)),
    (_S, ChildOver): Rule(_child_over, (_S,)),
    (_S, Ask): Rule(_ask, (_S,)),
    (_S, AnswerQuestion): Rule(_answer, (_S,)),
    (_S, CloseQuestion): Rule(_close_question, (_S,)),
    (_S, Dismiss): Rule(_dismiss, (_S,)),
    (_S, Drain): Rule(_drain, (_S,)),
    (_S, Close): Rule(_close_busy, (_S,)),
    (_S, End): Rule(_end_busy, (_S,)),
    (_E, Send): Rule(_send_ended, (_E,)),
    (_E, Close): Rule(_leave_ended, (_E,)),
    (_E, End): Rule(_leave_ended, (_E,)),
    (_E, Passivate): Rule(_leave_ended, (_E,)),
}
