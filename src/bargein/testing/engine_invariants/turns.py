"""Rules for turns: one at a time, correctly aimed, reported truthfully, with all their words."""

from bargein.cancel import Cause
from bargein.contracts.event import (
    AgentEvent,
    AgentState,
    AssistantSaid,
    BudgetUsedUp,
    Compressed,
    InterruptLanded,
    MessagesTaken,
    SessionTitled,
    TextCheckpoint,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Disposition, Mode
from bargein.contracts.model import ToolCall
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.contracts.tool import CallStatus
from bargein.session.title import BY_MODEL, BY_WORDS
from bargein.testing.engine_invariants.inbox import take
from bargein.testing.engine_invariants.seen import SeenLog, SeenTurn

_BUDGETS = (Cause.BUDGET, Cause.DEADLINE)
_HOLDING = (Cause.USER_STOP, *_BUDGETS)
"""Stops without a message: what waits must be held, steers included."""
_CAUSES_WITHOUT_A_WORD = (Cause.SHUTDOWN, Cause.LEASE_LOST, Cause.USER_STOP, *_BUDGETS)
"""Causes that may end a turn without an `InterruptLanded`: a stop from another thread may arrive
while the session is closing, and a sub-agent may end before it hears of its parent's stop."""


def started(seen: SeenLog, event: TurnStarted) -> None:
    if seen.turn is not None:
        seen.broken(4, f"{event.turn} started while {seen.turn.id} was in flight")
    if event.turn in seen.turns:
        seen.broken(4, f"{event.turn} started twice")
    compacts = not event.messages
    if (seen.held and not compacts) or seen.ended:
        seen.broken(3, f"{event.turn} started though held={seen.held}, ended={seen.ended}")
    if seen.is_child and seen.turns:
        seen.broken(4, f"{event.turn} of a sub-agent, which has one turn")
    if not compacts:
        _check_next(seen, event.turn, event.messages)
    seen.turn = seen.turns[event.turn] = SeenTurn(event.turn, compacts)
    if not compacts:
        take(seen, seen.turn, event.messages)


def _check_next(seen: SeenLog, turn: str, messages: tuple[str, ...]) -> None:
    """Steers and redirects go before the queue; from the queue the first one, with its album."""
    queued = [each for each in seen.waiting if _is_queued(seen, each)]
    if not any(each in queued for each in messages):
        together = [each for each in seen.waiting if each not in queued]
        if list(messages) != together:
            seen.broken(3, f"{turn} took {messages} alone; {together} belong together")
        return
    first = seen.messages[seen.waiting[0]]
    album = [m for m in seen.waiting if first.group and seen.messages[m].group == first.group]
    if queued != seen.waiting or list(messages) != (album or [first.id]):
        seen.broken(3, f"{turn} took {messages} out of turn; {seen.waiting} waited")


def _is_queued(seen: SeenLog, message: str) -> bool:
    accepted = seen.dispositions[message]
    is_queued = accepted.disposition is Disposition.QUEUED
    return is_queued and accepted.message.mode is Mode.QUEUE


def steered(seen: SeenLog, event: MessagesTaken) -> None:
    take(seen, seen.talking(9, event.turn, "took messages"), event.messages)


def user_said(seen: SeenLog, event: UserSaid) -> None:
    seen.talking(2, event.turn, "was given the user's words")
    for message, turn in seen.taken.items():
        if turn == event.turn:
            seen.said_at.setdefault(message, seen.log[-1].seq)
    if seen.owed is None:
        return
    turn, content = seen.owed
    seen.owed = None
    told = event.content[-len(content) :] if content else ()
    noted = len(event.content) - len(content)
    if turn != event.turn or told != content or noted > 1:
        seen.broken(3, f"{turn} took {content}, and the model is told {event.content}")
    if seen.note_owed is not None and bool(noted) != seen.note_owed:
        seen.broken(10, f"of the turn before {turn} the model is told {event.content[:noted]}")
    seen.note_owed = False


def assistant_said(seen: SeenLog, event: AssistantSaid) -> None:
    turn = seen.talking(2, event.turn, "spoke")
    if turn.open_calls:
        seen.broken(5, f"the model spoke while {turn.open_calls} had no result")
    calls = [part for part in event.message.content if isinstance(part, ToolCall)]
    if calls and event.partial:
        seen.broken(5, f"calls of an answer that was cut off were kept: {calls}")
    known = {call for each in seen.turns.values() for call in each.calls}
    if known.intersection(call.id for call in calls):
        seen.broken(5, f"a call id was used before: {calls}")
    turn.calls.update((call.id, call) for call in calls)
    turn.said.append(event)
    turn.checkpoints = ""


def checkpoint(seen: SeenLog, event: TextCheckpoint) -> None:
    turn = seen.open(2, event.turn, "spoke")
    turn.checkpoints = "" if event.void else turn.checkpoints + event.text


def landed(seen: SeenLog, event: InterruptLanded) -> None:
    turn = seen.open(9, event.turn, "was interrupted")
    turn.landed.append(event)
    by_message = event.reason in (Mode.INTERRUPT, Mode.ROLLBACK)
    if by_message and seen.messages[next(reversed(seen.messages))].group in turn.groups:
        seen.broken(3, f"{turn.id} was stopped by the album that it answers")
    holds = event.reason in _HOLDING and not seen.is_child
    seen.must_hold = holds and bool(seen.waiting) and not seen.held


def compressed(seen: SeenLog, event: Compressed) -> None:
    """Law 5: compression happens only between steps. Law 3: it covers only what came before it."""
    turn = seen.open(2, event.turn, "compressed")
    if turn.open_calls:
        seen.broken(5, f"{turn.id} compressed while {turn.open_calls} had no result")
    if not event.summary.strip() or not 1 < event.before <= seen.log[-1].seq:
        seen.broken(3, f"{turn.id} has compressed nothing, or what is yet to come: {event}")
    seen.compressions.append(event)


def used_up(seen: SeenLog, event: BudgetUsedUp) -> None:
    seen.open(2, event.turn, "used up a budget").used_up = event


def settled(seen: SeenLog, event: TurnSettled) -> None:
    turn = seen.open(4, event.turn, "settled")
    if event.hidden:
        seen.forget_compressions(turn.id)
    turn.settled = event
    seen.turn = None
    # The model may still be told what a hidden turn did.
    stopped = event.outcome in (TurnOutcome.STOPPED, TurnOutcome.CRASHED)
    if not turn.compacts:
        seen.note_owed = None if event.hidden else stopped
    elif event.hidden and not seen.note_owed:
        # An earlier debt remains; this turn itself may be mentioned.
        seen.note_owed = None
    if turn.open_calls:
        seen.broken(5, f"{turn.id} settled and {turn.open_calls} have no result")
    if turn.checkpoints:
        seen.broken(5, f"{turn.id} had said {turn.checkpoints!r}, and that was not kept")
    asking = [q for q in turn.questions if seen.questions.get(q) not in (None, *seen.detached)]
    if asking and not _ended_with_the_program(event):
        seen.broken(10, f"{turn.id} settled and its questions {asking} are open")
    # A rollback of the parent stops a sub-agent, but it is the parent's turn that is hidden.
    rolled_back = any(landed.reason == Mode.ROLLBACK for landed in turn.landed)
    must_hide = rolled_back and not seen.is_child
    if (event.hidden and not turn.rolled_back) or (must_hide and not event.hidden):
        seen.broken(9, f"{turn.id} hidden={event.hidden}, rolled back={turn.rolled_back}")
    _check_outcome(seen, turn, event)


def was_hidden(seen: SeenLog, event: TurnHidden) -> None:
    turn = seen.turns.get(event.turn)
    if seen.turn is not None or turn is None or turn.settled is None:
        seen.broken(9, f"{event.turn} was taken back though it had not settled")
    seen.forget_compressions(event.turn)
    seen.note_owed = None


def _check_outcome(seen: SeenLog, turn: SeenTurn, event: TurnSettled) -> None:
    stopped = event.outcome is TurnOutcome.STOPPED
    if turn.strays and event.outcome in (TurnOutcome.COMPLETED, TurnOutcome.FAILED):
        seen.broken(3, f"{turn.strays} did not join {turn.id}, which answers their album")
    if turn.landed and event.outcome not in (TurnOutcome.STOPPED, TurnOutcome.CRASHED):
        seen.broken(9, f"an interrupt landed on {turn.id}, which then {event.outcome}")
    if stopped != (event.receipt is not None):
        seen.broken(10, f"{turn.id} {event.outcome} with the receipt {event.receipt}")
    if event.receipt is not None:
        _check_receipt(seen, turn, event.receipt)


def _check_receipt(seen: SeenLog, turn: SeenTurn, receipt: Receipt) -> None:
    if receipt.target != turn.id or receipt.status is not ReceiptStatus.STOPPED:
        seen.broken(10, f"{turn.id} settled with a receipt of {receipt.target}")
    waiting = tuple(seen.waiting)
    told = (receipt.held, receipt.queued)
    if told != ((waiting, ()) if seen.held else ((), waiting)):
        seen.broken(10, f"{turn.id}: held={seen.held} {waiting}, the receipt says {told}")
    cause = receipt.reason.root.cause if receipt.reason is not None else None
    if cause is Cause.BUDGET and (turn.used_up is None or receipt.steps):
        seen.broken(10, f"{turn.id}: a budget has ended it, and cut {receipt.steps}")
    from_parent = receipt.reason is not None and receipt.reason.parent is not None
    if not turn.landed and not from_parent and cause not in _CAUSES_WITHOUT_A_WORD:
        seen.broken(9, f"{turn.id} was stopped ({receipt.reason}), and no interrupt named it")
    detached = turn.ended.intersection(seen.detached)
    for step in receipt.steps:
        if step.call_id in detached and step.status is not CallStatus.DETACHED:
            seen.broken(1, f"{step.call_id} was detached, and {turn.id} stopped it: {step}")


def _ended_with_the_program(event: TurnSettled) -> bool:
    """Whether the program ended with the turn; its questions can be answered after a restart."""
    reason = event.receipt.reason if event.receipt is not None else None
    shut_down = reason is not None and reason.root.cause is Cause.SHUTDOWN
    return event.outcome is TurnOutcome.CRASHED or shut_down


def agent_event(seen: SeenLog, event: AgentEvent) -> None:
    seen.open(2, event.turn, "wrote")


def agent_state(seen: SeenLog, event: AgentState) -> None:
    seen.open(2, event.turn, "wrote")
    seen.agent_state = event.body


def titled(seen: SeenLog, event: SessionTitled) -> None:
    """Law 3: an automatic title never replaces an existing one."""
    if event.by in (BY_MODEL, BY_WORDS) and seen.titles:
        seen.broken(3, f"is given another title: {event}, after {seen.titles[-1]}")
    if not event.title.strip():
        seen.broken(3, f"was given an empty title: {event}")
    seen.titles.append(event)
