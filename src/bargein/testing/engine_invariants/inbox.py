"""Law 3 for the inbox: every accepted message waits until it is taken, once, or withdrawn."""

from bargein.contracts.event import (
    MessageAccepted,
    MessageEdited,
    MessageMoved,
    MessageWithdrawn,
    QuestionClosed,
    QueueHeld,
    QueueReleased,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.tool import Approval
from bargein.testing.engine_invariants.seen import SeenLog, SeenTurn


def accepted(seen: SeenLog, event: MessageAccepted) -> None:
    message = event.message
    if message.id in seen.messages:
        seen.broken(3, f"{message.id} was accepted twice")
    seen.messages[message.id] = message
    seen.dispositions[message.id] = event
    seen.waiting.append(message.id)
    before = seen.log[-2].event if len(seen.log) > 1 else None
    if isinstance(before, QuestionClosed) and message.text.endswith(
        f"[The answer:] {before.answer}"
    ):
        seen.late_answers.add(message.id)
    if message.allows is not None and before != QuestionClosed(
        message.allows.id, Approval.ALLOW, message.sender
    ):
        seen.broken(9, f"{message.id} carries an approval that nobody gave: {message.allows}")
    joins = event.disposition is Disposition.STEERING
    if seen.turn is not None and message.group in seen.turn.groups and not joins:
        seen.turn.strays.append(message.id)
    if event.disposition is not Disposition.INTERRUPTING:
        return
    turn = seen.open(9, event.target or "", "interrupted by a message")
    if message.mode is Mode.ROLLBACK:
        turn.rolled_back = True


def edited(seen: SeenLog, event: MessageEdited) -> None:
    _must_wait(seen, event.message, "edited")
    old = seen.messages[event.message]
    seen.messages[event.message] = Message(
        old.id, old.sender, old.mode, event.content, old.attachments, old.client_id, old.group
    )


def moved(seen: SeenLog, event: MessageMoved) -> None:
    if sorted(event.order) != sorted(seen.waiting):
        seen.broken(3, f"a move made {event.order} of {seen.waiting}")
    seen.waiting = list(event.order)


def withdrew(seen: SeenLog, event: MessageWithdrawn) -> None:
    _must_wait(seen, event.message, "withdrawn")
    seen.waiting.remove(event.message)
    seen.withdrawn.add(event.message)
    seen.held = seen.held and bool(seen.waiting)


def was_held(seen: SeenLog, event: QueueHeld) -> None:
    if seen.held or not seen.waiting:
        seen.broken(3, f"held, with {seen.waiting} waiting and held={seen.held}")
    seen.held, seen.must_hold = True, False


def was_released(seen: SeenLog, event: QueueReleased) -> None:
    if not seen.held:
        seen.broken(3, "released, but nothing was held")
    seen.held = False


def _must_wait(seen: SeenLog, message: str, what: str) -> None:
    if message not in seen.waiting:
        place = seen.taken.get(message, "nowhere")
        seen.broken(3, f"{message} was {what}, but it does not wait (taken by {place})")


def take(seen: SeenLog, turn: SeenTurn, messages: tuple[str, ...]) -> None:
    if not messages or [each for each in seen.waiting if each in messages] != list(messages):
        seen.broken(3, f"{turn.id} took {messages} while {seen.waiting} waited in this order")
    for message in messages:
        seen.waiting.remove(message)
        seen.taken[message] = turn.id
        turn.messages.append(message)
        group = seen.messages[message].group
        if group is not None:
            turn.groups.add(group)
    seen.owed = turn.id, tuple(p for m in messages for p in seen.messages[m].content)
