"""What is made of a turn that the program did not live to settle.

The log since the turn's start tells what is known. Its text so far is kept and marked. Calls that
had started get "outcome unknown" and are not run again; calls that had not, "not started". The
turn is settled as crashed, once: the epoch was claimed before, and the log must end where it was
read to. Its messages count as taken and unanswered; those that still wait are taken next. Its
sub-agents have been settled before, and none of them runs again. Its questions stay open.
"""

from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    CallStarted,
    ChildStarted,
    Event,
    MessageAccepted,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import AssistantMessage, Text, ToolCall
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.session import child_report
from bargein.session.calls import background_news, not_started
from bargein.session.commands import BackgroundOver, ChildOver, End, Settled, Wake
from bargein.session.state import Phase

if TYPE_CHECKING:
    from bargein.session.actor import Actor

CRASH_NOTE = "[The program ended while you were answering. What you said until then is above.]"


class Ending(msgspec.Struct, frozen=True):
    """How a sub-agent of a session that crashed has ended; `task` is what it was to do."""

    outcome: TurnOutcome
    summary: str
    task: str = ""


Endings = dict[str, Ending]


def recover(actor: "Actor", log: list[Recorded], turn_seq: int, ended: Endings) -> None:
    """Settle what an earlier process left unsettled, and go on with what waits. The turn that was
    running begins at `turn_seq`."""
    state = actor.state
    titles = _titles(log)
    for call in state.background:
        lost = unknown_outcome()
        actor.post(BackgroundOver(call, lost, background_news(call, titles.get(call, ""), lost)))
    for child in state.children:
        ending = ended[child.id]
        message = None
        if child.detached:
            message = child_report.news(child.id, ending.task, _news_of(child.id, ending))
        actor.post(ChildOver(child.id, ending.outcome, ending.summary, message))
    if state.turn is not None:
        kept = {pending.asked.id for pending in state.questions}
        turn_log = [each for each in log if each.seq >= turn_seq]
        actor.post(settle_crashed(state.turn, turn_log, ended, kept))
    elif state.child and state.phase is not Phase.ENDED:
        actor.post(End("crash"))
    actor.post(Wake())


def _titles(log: list[Recorded]) -> dict[str, str]:
    """What calls are about, by their ids; for one without an effect, which tool it is."""
    titles: dict[str, str] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, AssistantSaid):
            calls = (part for part in event.message.content if isinstance(part, ToolCall))
            titles.update((call.id, call.name) for call in calls)
        elif isinstance(event, CallStarted):
            titles[event.call.id] = event.title
    return titles


def ending_of(log: list[Recorded]) -> Ending:
    """How a sub-agent has ended, from its own log. Its first message is its task."""
    told = (each.event.message.text for each in log if isinstance(each.event, MessageAccepted))
    task = next(told, "")
    for recorded in reversed(log):
        event = recorded.event
        if isinstance(event, TurnSettled):
            return Ending(event.outcome, event.error or str(event.outcome), task)
    return Ending(TurnOutcome.CRASHED, "the program ended before it began", task)


def settle_crashed(
    turn: str, log: list[Recorded], ended: Endings | None = None, kept: set[str] | None = None
) -> Settled:
    """The command that settles `turn`, from its part of the log. `kept` are the questions that
    stay open: they can be answered still."""
    left = _read(log)
    closed = sorted(left.questions.keys() - (kept or set()))
    events: list[Event] = [QuestionClosed(question) for question in closed]
    notes = [CRASH_NOTE]
    asking = {left.questions[question] for question in left.questions.keys() & (kept or set())}
    for call in left.calls.values():
        result = unknown_outcome() if call.id in left.started else not_started()
        if call.id in left.children:
            result = _with_children(result, left.children[call.id], ended or {})
        elif call.id in asking:
            told = "The program ended before the user answered. An answer will come as a message."
            result = CallResult(CallStatus.NOT_STARTED, (Text(told),), "not answered")
        notes.append(f"[{call.name} ({call.id}): {result.status}]")
        events.append(CallEnded(turn, call.id, result))
    if left.text:
        said = AssistantMessage((Text(left.text),))
        events.append(AssistantSaid(turn, said, partial=True))
    if not any(isinstance(each.event, TurnStarted) and each.event.messages for each in log):
        # It was compressing, and the model knows nothing of it.
        notes = []
    return Settled(turn, TurnOutcome.CRASHED, tuple(events), note="\n".join(notes))


class _Left(msgspec.Struct):
    """What a turn had under way. `questions` are the open ones, with the calls that ask them."""

    text: str = ""
    calls: dict[str, ToolCall] = {}
    started: set[str] = set()
    questions: dict[str, str] = {}
    children: dict[str, list[str]] = {}


def _read(log: list[Recorded]) -> _Left:
    left = _Left()
    for recorded in log:
        event = recorded.event
        if isinstance(event, TextCheckpoint):
            left.text = "" if event.void else left.text + event.text
        elif isinstance(event, AssistantSaid):
            left.text = ""
            calls = (part for part in event.message.content if isinstance(part, ToolCall))
            left.calls.update((call.id, call) for call in calls)
        elif isinstance(event, CallStarted) and event.effect is not Effect.NONE:
            left.started.add(event.call.id)
        elif isinstance(event, ChildStarted) and not event.detached:
            left.children.setdefault(event.call_id, []).append(event.child)
        elif isinstance(event, CallEnded):
            left.calls.pop(event.call_id, None)
        elif isinstance(event, QuestionAsked):
            left.questions[event.id] = event.call_id
        elif isinstance(event, QuestionClosed):
            left.questions.pop(event.id, None)
    return left


def _with_children(result: CallResult, children: list[str], ended: Endings) -> CallResult:
    lines = [
        f"[Sub-agent {child}: {ended[child].outcome if child in ended else 'over before'}]"
        for child in children
    ]
    told = "\n".join(["None of its sub-agents was run again:", *lines])
    return msgspec.structs.replace(result, content=(*result.content, Text(told)))


def _news_of(child: str, ending: Ending) -> CallResult:
    told = f"[Sub-agent {child}: {ending.outcome}. The program ended; it was not run again.]"
    return CallResult(CallStatus.UNKNOWN, (Text(told),), ending.summary)


def unknown_outcome() -> CallResult:
    told = "Outcome unknown: the program ended while this ran. It was not run again."
    return CallResult(CallStatus.UNKNOWN, (Text(told),), "outcome unknown")
