"""Rules for what runs beside or below a turn: calls, the background, sub-agents, questions."""

from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    CallEnded,
    CallStarted,
    CallsUndoing,
    ChildEnded,
    ChildStarted,
    QuestionAsked,
    QuestionClosed,
    SessionCreated,
    SessionEnded,
)
from bargein.contracts.tool import CallStatus
from bargein.testing.engine_invariants.seen import SeenLog


def undoing(seen: SeenLog, event: CallsUndoing) -> None:
    turn = seen.open(2, event.turn, "undoes calls")
    for each in event.calls:
        undone = seen.turns.get(each.of)
        if undone is None or each.undoes not in undone.started:
            seen.broken(3, f"{event.turn} undoes {each.undoes}, which {each.of} has not started")
    turn.calls.update((each.call.id, each.call) for each in event.calls)


def call_started(seen: SeenLog, event: CallStarted) -> None:
    turn = seen.talking(2, event.turn, "started a call")
    call = event.call.id
    if call not in turn.open_calls or call in turn.started:
        seen.broken(3, f"{call} started without being asked for, after its end, or twice")
    turn.started.add(call)


def call_ended(seen: SeenLog, event: CallEnded) -> None:
    turn = seen.open(2, event.turn, "ended a call")
    if event.call_id not in turn.open_calls:
        seen.broken(5, f"{event.call_id} has a second result, or was never asked for")
    turn.ended.add(event.call_id)
    if (event.result.status is CallStatus.DETACHED) != (event.call_id in seen.detached):
        seen.broken(10, f"{event.call_id} ended as {event.result.status}")
    at_work = [child for child in seen.running_children if _belongs(seen, child, event.call_id)]
    if at_work and event.result.status not in (CallStatus.ABANDONED, CallStatus.DETACHED):
        seen.broken(6, f"{event.call_id} ended and its sub-agents {at_work} had not")


def call_detached(seen: SeenLog, event: CallDetached) -> None:
    turn = seen.open(2, event.turn, "detached a call")
    if event.call_id not in turn.open_calls or event.call_id in seen.detached:
        seen.broken(3, f"{event.call_id} was detached after its end, or twice")
    seen.background.add(event.call_id)
    seen.detached.add(event.call_id)


def background_ended(seen: SeenLog, event: BackgroundEnded) -> None:
    if event.call_id not in seen.background:
        seen.broken(3, f"{event.call_id} ended in the background without being there")
    seen.background.discard(event.call_id)


# Sub-agents


def created(seen: SeenLog, event: SessionCreated) -> None:
    seen.is_child = event.parent is not None


def child_started(seen: SeenLog, event: ChildStarted) -> None:
    if event.child in seen.children:
        seen.broken(4, f"the sub-agent {event.child} was begun twice")
    if seen.ended:
        seen.broken(2, f"the sub-agent {event.child} was begun after the session's end")
    if event.call_id not in seen.background:
        seen.open(2, event.turn, "began a sub-agent")
    seen.children[event.child] = event


def child_ended(seen: SeenLog, event: ChildEnded) -> None:
    if event.child not in seen.running_children:
        seen.broken(3, f"the sub-agent {event.child} ended without being at work")
    seen.children_ended[event.child] = event


def _belongs(seen: SeenLog, child: str, call_id: str) -> bool:
    started = seen.children[child]
    return started.call_id == call_id and not started.detached


# Questions


def asked(seen: SeenLog, event: QuestionAsked) -> None:
    if event.id in seen.asked:
        seen.broken(9, f"the question {event.id} was asked twice: a late answer would fit both")
    seen.asked[event.id] = seen.questions[event.id] = event.call_id
    detached = any(each.detached for each in seen.children.values())
    if event.call_id not in seen.background and not detached:
        seen.open(2, event.turn, "asked a question").questions.add(event.id)


def closed(seen: SeenLog, event: QuestionClosed) -> None:
    call = seen.questions.pop(event.id, None)
    if call is None:
        seen.broken(3, f"the question {event.id} was closed without being open")
    if event.answer is not None:
        seen.answers[call] = event.answer


def session_ended(seen: SeenLog, event: SessionEnded) -> None:
    seen.ended = True
    if seen.running_children:
        seen.broken(3, f"the session ended before its sub-agents {seen.running_children}")
    if seen.questions:
        seen.broken(10, f"the session ended and its questions {seen.questions} are open")
