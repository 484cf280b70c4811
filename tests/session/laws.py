"""What must be true of a session's log and of what a model is asked. Written against the contracts
alone, so that it knows nothing of how the engine comes to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bargein.cancel import Cause
from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    CallStarted,
    CallsUndoing,
    Event,
    MessageAccepted,
    MessagesTaken,
    MessageWithdrawn,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.contracts.tool import CallStatus


def events_of(log: Iterable[Recorded | Event]) -> list[Event]:
    return [each.event if isinstance(each, Recorded) else each for each in log]


def check_log(log: Sequence[Recorded], *, waiting: Iterable[str] = (), busy: bool = False) -> None:
    """Laws 3, 4 and 5 and the numbering, over a whole log. `waiting` are the messages that the
    inbox still shows; `busy` allows for one turn that is still in flight."""
    assert [each.seq for each in log] == list(range(1, len(log) + 1)), "a gap in the log"
    events = events_of(log)
    check_messages(events, waiting)
    check_turns(events, busy=busy)
    check_calls(events, busy=busy)


def check_messages(events: Sequence[Event], waiting: Iterable[str]) -> None:
    accepted = [each.message.id for each in events if isinstance(each, MessageAccepted)]
    assert max(Counter(accepted).values(), default=1) == 1, f"accepted twice: {accepted}"
    places: list[str] = list(waiting)
    for event in events:
        if isinstance(event, TurnStarted | MessagesTaken):
            places.extend(event.messages)
        elif isinstance(event, MessageWithdrawn):
            places.append(event.message)
    assert sorted(places) == sorted(accepted), f"accepted {accepted}, found in {places}"


def check_turns(events: Sequence[Event], *, busy: bool = False) -> None:
    running: str | None = None
    seen: set[str] = set()
    for event in events:
        if isinstance(event, TurnStarted):
            assert running is None, f"{event.turn} began while {running} was in flight"
            assert event.turn not in seen, f"{event.turn} began twice"
            running = event.turn
            seen.add(running)
        elif isinstance(event, TurnSettled):
            assert running == event.turn, f"{event.turn} settled while {running} was in flight"
            check_receipt_of(event)
            running = None
        else:
            turn = getattr(event, "turn", None)
            if isinstance(event, AssistantSaid | CallStarted | CallEnded | MessagesTaken):
                assert turn == running, f"{event!r} outside of its turn"
    assert busy or running is None, f"{running} never settled"


def check_receipt_of(settled: TurnSettled) -> None:
    stopped = settled.outcome is TurnOutcome.STOPPED
    assert (settled.receipt is not None) == stopped, settled
    if settled.receipt is not None:
        check_receipt(settled.receipt)
        assert settled.receipt.target == settled.turn


def check_receipt(receipt: Receipt) -> None:
    assert receipt.elapsed_ms >= 0
    if receipt.status is ReceiptStatus.TOO_LATE:
        assert not receipt.steps
        return
    assert not (receipt.held and receipt.queued), "what waits is held or goes on, not both"
    for step in receipt.steps:
        assert 0 <= step.elapsed_ms <= receipt.elapsed_ms + 0.001, (step, receipt.elapsed_ms)


def check_calls(events: Sequence[Event], *, busy: bool = False) -> None:
    open_calls: dict[str, ToolCall] = {}
    questions: dict[str, str] = {}
    left_open: set[str] = set()
    for event in events:
        if isinstance(event, AssistantSaid):
            assert not open_calls, f"said while {list(open_calls)} had no result"
            calls = [part for part in event.message.content if isinstance(part, ToolCall)]
            assert not (event.partial and calls), "a call in an answer that was cut off"
            open_calls = {call.id: call for call in calls}
        elif isinstance(event, CallsUndoing):
            assert not open_calls, f"undone while {list(open_calls)} had no result"
            open_calls = {each.call.id: each.call for each in event.calls}
        elif isinstance(event, CallStarted):
            assert event.call.id in open_calls, f"{event.call.id} was not asked for"
        elif isinstance(event, CallEnded):
            assert open_calls.pop(event.call_id, None), f"a second result of {event.call_id}"
            assert event.result.content, f"an empty result of {event.call_id}"
        elif isinstance(event, QuestionAsked):
            assert event.id not in questions, f"{event.id} was asked twice"
            questions[event.id] = event.turn
        elif isinstance(event, QuestionClosed):
            del questions[event.id]
        elif isinstance(event, TurnSettled):
            if may_leave_questions(event):
                left_open |= {each for each, turn in questions.items() if turn == event.turn}
            assert not open_calls, f"{event.turn} settled with {list(open_calls)} open"
    assert busy or not open_calls
    assert busy or not questions.keys() - left_open, f"never closed: {questions}"


def may_leave_questions(settled: TurnSettled) -> bool:
    """The end of the program leaves them open; nothing else does."""
    reason = settled.receipt.reason if settled.receipt is not None else None
    shut_down = reason is not None and reason.root.cause is Cause.SHUTDOWN
    return settled.outcome is TurnOutcome.CRASHED or shut_down


def check_requests(requests: Iterable[ModelRequest]) -> None:
    for request in requests:
        check_transcript(request.messages)
        assert isinstance(request.messages[-1], UserMessage | ToolMessage), "nothing to answer"


def check_transcript(messages: Sequence[ModelMessage]) -> None:
    """As strict as the strictest provider: each call exactly one result, right after it; nothing
    empty; the user begins."""
    assert messages, "nothing was asked"
    assert isinstance(messages[0], UserMessage), "the user begins"
    ids: Counter[str] = Counter()
    owed: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert owed, "results that nobody asked for"
            assert [result.call_id for result in message.results] == owed
            for result in message.results:
                check_content(result.content)
            owed = []
            continue
        assert not owed, f"{owed} have no result"
        if isinstance(message, UserMessage):
            check_content(message.content)
            continue
        check_assistant(message)
        owed = [part.id for part in message.content if isinstance(part, ToolCall)]
        ids.update(owed)
    assert not owed, f"{owed} have no result"
    assert max(ids.values(), default=1) == 1, "the id of a call twice"


def check_assistant(message: AssistantMessage) -> None:
    assert message.content, "an empty answer"
    kinds = [type(part) for part in message.content]
    assert set(kinds) != {Reasoning}, "reasoning and nothing else"
    for part in message.content:
        if isinstance(part, ToolCall):
            assert part.id
            assert part.name
        else:
            assert part.text or (isinstance(part, Reasoning) and part.signature), "an empty part"


def check_content(content: Sequence[Text | Image]) -> None:
    assert content, "empty content"
    for part in content:
        if isinstance(part, Text):
            assert part.text.strip(), "empty text"


def statuses(log: Iterable[Recorded | Event]) -> dict[str, CallStatus]:
    """How each call ended."""
    return {e.call_id: e.result.status for e in events_of(log) if isinstance(e, CallEnded)}


def outcomes(log: Iterable[Recorded | Event]) -> dict[str, TurnOutcome]:
    """How each turn ended."""
    return {e.turn: e.outcome for e in events_of(log) if isinstance(e, TurnSettled)}


def said(log: Iterable[Recorded | Event]) -> list[str]:
    """What the model said, answer by answer."""
    return [
        "".join(part.text for part in event.message.content if isinstance(part, Text))
        for event in events_of(log)
        if isinstance(event, AssistantSaid)
    ]
