"""What is made of a turn that the program did not live to settle.

The log since the turn's start tells what is known. Its text so far is kept and marked. Calls that
had started get "outcome unknown" and are not run again; calls that had not, "not started". The
turn is settled as crashed, once: the epoch was claimed before, and the log must end where it was
read to. Its messages count as taken and unanswered; those that still wait are taken next.
"""

from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    CallStarted,
    Event,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
)
from bargein.contracts.model import AssistantMessage, Text, ToolCall
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.session.calls import not_started
from bargein.session.commands import Settled

CRASH_NOTE = "[The program ended while you were answering. What you said until then is above.]"


def settle_crashed(turn: str, log: list[Recorded]) -> Settled:
    """The command that settles `turn`, from its part of the log."""
    text = ""
    calls: dict[str, ToolCall] = {}
    started: set[str] = set()
    questions: set[str] = set()
    for recorded in log:
        event = recorded.event
        if isinstance(event, TextCheckpoint):
            text = "" if event.void else text + event.text
        elif isinstance(event, AssistantSaid):
            text = ""
            calls.update((c.id, c) for c in event.message.content if isinstance(c, ToolCall))
        elif isinstance(event, CallStarted) and event.effect is not Effect.NONE:
            started.add(event.call.id)
        elif isinstance(event, CallEnded):
            calls.pop(event.call_id, None)
        elif isinstance(event, QuestionAsked):
            questions.add(event.id)
        elif isinstance(event, QuestionClosed):
            questions.discard(event.id)
    events: list[Event] = [QuestionClosed(question) for question in sorted(questions)]
    if text:
        said = AssistantMessage((Text(text),))
        events.append(AssistantSaid(turn, said, partial=True))
    notes = [CRASH_NOTE]
    for call in calls.values():
        result = unknown_outcome() if call.id in started else not_started()
        notes.append(f"[{call.name} ({call.id}): {result.status}]")
        events.append(CallEnded(turn, call.id, result))
    return Settled(turn, TurnOutcome.CRASHED, tuple(events), note="\n".join(notes))


def unknown_outcome() -> CallResult:
    told = "Outcome unknown: the program ended while this ran. It was not run again."
    return CallResult(CallStatus.UNKNOWN, (Text(told),), "outcome unknown")
