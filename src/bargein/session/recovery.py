"""What is made of a turn that the program did not live to settle.

The log since the turn's start tells what is known. Its text so far is kept and marked. Calls that
had started get "outcome unknown" and are not run again; calls that had not, "not started". The
turn is settled as crashed, once: the epoch was claimed before, and the log must end where it was
read to. Its messages count as taken and unanswered; those that still wait are taken next. Its
sub-agents have been settled before, and none of them runs again. Its questions stay open. If its
stop is known though it could not be stored, the turn is settled as stopped, with that receipt:
whoever stopped it was told so.
"""

import math
from typing import TYPE_CHECKING

import msgspec

from bargein.calls import words
from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    CallStarted,
    ChildStarted,
    Event,
    MessageAccepted,
    ModelUsed,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import AssistantMessage, Text, ToolCall
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.session import child_report
from bargein.session.commands import BackgroundOver, ChildOver, End, Settled, Wake
from bargein.session.journal import TOLD
from bargein.session.settle import is_bare
from bargein.session.state import Phase

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.turn import Turn


class Ending(msgspec.Struct, frozen=True):
    """How a sub-agent of a session that crashed has ended; `task` is what it was to do."""

    outcome: TurnOutcome
    summary: str
    task: str = ""


Endings = dict[str, Ending]


class Known(msgspec.Struct, frozen=True):
    """What is known of the end of the turn that was running, beside the log: the receipt of a stop
    that could not be stored, or why nothing could be stored; the results of its calls; and what the
    model said and cost since, with the places in the log that this would have had."""

    stop: Receipt | None = None
    failure: str = ""
    results: dict[str, CallResult] = {}
    said: tuple[tuple[float, AssistantSaid | ModelUsed], ...] = ()


def known_of(actor: "Actor", turn: "Turn", failure: str) -> Known:
    """What this process knows of a turn whose end the store did not take."""
    results = {call.id: call.result for call in turn.calls.all if call.result is not None}
    said: list[tuple[float, AssistantSaid | ModelUsed]] = [
        (seq, event) for seq, event in actor.lost if event.turn == turn.id
    ]
    if not any(event is last for _, event in said for last in turn.last_events):
        # The session had left memory before the turn's end could be appended.
        last_told = (event for event in turn.last_events if isinstance(event, TOLD))
        said += [(math.inf, event) for event in last_told]
    stop = turn.receipt if turn.stopped_on_request else None
    return Known(stop, "" if stop is not None else failure, results, tuple(said))


def recover(
    actor: "Actor", log: list[Recorded], turn_seq: int, ended: Endings, known: Known
) -> None:
    """Settle what an earlier process left unsettled, and go on with what waits. The turn that was
    running begins at `turn_seq`."""
    state = actor.state
    titles = _titles(log)
    for call in state.background:
        lost = words.unknown_outcome()
        message = words.background_news(call, titles.get(call, ""), lost)
        actor.post(BackgroundOver(call, lost, message, begins_turn=False))
    for child in state.children:
        ending = ended[child.id]
        news = None
        if child.detached:
            news = child_report.news(child.id, ending.task, _news_of(child.id, ending))
        actor.post(ChildOver(child.id, ending.outcome, ending.summary, news, lost=True))
    if state.turn is not None:
        kept = {pending.asked.id for pending in state.questions}
        turn_log = [each for each in log if each.seq >= turn_seq]
        actor.post(settle_crashed(state.turn, turn_log, ended, kept, known))
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
    turn: str,
    log: list[Recorded],
    ended: Endings | None = None,
    kept: set[str] | None = None,
    known: Known | None = None,
) -> Settled:
    """The command that settles `turn`, from its part of the log. `kept` are the questions that
    stay open: they can be answered still. A turn whose stop is `known` was stopped, as whoever
    stopped it was told, and its questions are closed as a stop does."""
    left = _read(log)
    known = known or Known()
    if known.stop is not None:
        kept = set()
    closed = sorted(left.questions.keys() - (kept or set()))
    events: list[Event] = [QuestionClosed(question) for question in closed]
    notes = [words.NOT_STORED if known.failure else words.CRASHED]
    asking = {left.questions[question] for question in left.questions.keys() & (kept or set())}
    for call in left.calls.values():
        result = _result_of(call.id, left, known)
        if call.id in left.children:
            result = _with_children(result, left.children[call.id], ended or {})
        elif call.id in asking:
            result = words.not_answered()
        notes.append(f"[{call.name} ({call.id}): {result.status}]")
        events.append(CallEnded(turn, call.id, result))
    last_seq = log[-1].seq if log else 0
    unstored = [event for seq, event in known.said if seq > last_seq]
    for event in unstored:
        events.append(event)
        if isinstance(event, AssistantSaid):
            calls = (part for part in event.message.content if isinstance(part, ToolCall))
            events += [CallEnded(turn, c.id, _result_of(c.id, left, known)) for c in calls]
    if left.text and not any(isinstance(event, AssistantSaid) for event in unstored):
        said = AssistantMessage((Text(left.text),))
        events.append(AssistantSaid(turn, said, partial=True))
    if not any(isinstance(each.event, TurnStarted) and each.event.messages for each in log):
        # It was compressing, and the model knows nothing of it.
        notes = []
    if known.stop is not None:
        # Now it is stored; what is held and queued is added with that.
        receipt = msgspec.structs.replace(known.stop, scope=Scope.TURN, stored=True)
        cause = receipt.reason.root.cause if receipt.reason is not None else None
        return Settled(
            turn,
            TurnOutcome.STOPPED,
            tuple(events),
            bare_stop=is_bare(cause),
            receipt=receipt,
            note=words.stop_note(receipt) if notes else "",
        )
    crash = "\n".join(notes)
    return Settled(turn, TurnOutcome.CRASHED, tuple(events), error=known.failure, note=crash)


def _result_of(call_id: str, left: "_Left", known: Known) -> CallResult:
    """What is known of a call without an end in the log."""
    result = known.results.get(call_id)
    if result is not None and result.status is not CallStatus.DETACHED:
        return result
    for step in known.stop.steps if known.stop is not None else ():
        if step.call_id == call_id:
            return words.end_not_stored(step)
    return words.unknown_outcome() if call_id in left.started else words.never_started()


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
