"""Rules of the picture for calls, their questions and sub-agents: what each event changes."""

from typing import TYPE_CHECKING

from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    CallEnded,
    CallStarted,
    ChildEnded,
    ChildStarted,
    QuestionAsked,
    QuestionClosed,
)
from bargein.contracts.live import (
    CallOutput,
    OutputSoFar,
    StepBegan,
    StepOver,
)
from bargein.contracts.model import ToolCall
from bargein.contracts.tool import CallResult, CallStatus
from bargein.view.changes import (
    BackgroundClosed,
    CallClosed,
    CallMoved,
    CallOpened,
    CallRequested,
    CallResulted,
    Change,
    Changes,
    ChildClosed,
    ChildOpened,
    OutputAdded,
    QuestionOpened,
    QuestionSettled,
    Rules,
)
from bargein.view.shown import (
    CallState,
    ShownCall,
    ShownChild,
    ShownQuestion,
    Tail,
    title_of,
)

if TYPE_CHECKING:
    from bargein.view.picture import Picture

OPEN = (CallState.ASKED, CallState.RUNNING)


def _call(picture: "Picture", call: str, turn: str, name: str = "") -> ShownCall:
    shown = picture.calls.get(call)
    if shown is None:
        shown = picture.calls[call] = ShownCall(call, turn, name or call, picture.at)
        if turn in picture.turns:
            picture.turns[turn].calls.append(call)
    return shown


def _list(call: ShownCall) -> list[Change]:
    """Give the call its place in the conversation: where the log first mentions it."""
    if call.listed:
        return []
    call.listed = True
    return [CallRequested(call)]


def call_asked(picture: "Picture", turn: str, asked: ToolCall) -> list[Change]:
    call = _call(picture, asked.id, turn, asked.name)
    call.name, call.arguments = asked.name, asked.arguments
    if call.effect is None:
        call.title = title_of(asked) or call.title
    return _list(call)


def call_began(picture: "Picture", event: StepBegan) -> Changes:
    call = _call(picture, event.call_id, event.turn, event.name)
    if not call.title:
        call.title = event.title
    return tuple(_open_call(picture, call))


def _open_call(picture: "Picture", call: ShownCall) -> list[Change]:
    if call.state is not CallState.ASKED:
        return []
    call.state, call.began_at = CallState.RUNNING, picture.at
    return [CallOpened(call)]


def _call_started(picture: "Picture", event: CallStarted) -> Changes:
    asked = event.call
    call = _call(picture, asked.id, event.turn, asked.name)
    call.name, call.arguments, call.effect = asked.name, asked.arguments, event.effect
    call.title = event.title or call.title or title_of(asked)
    return (*_list(call), *_open_call(picture, call))


def _output(picture: "Picture", event: CallOutput) -> Changes:
    call = picture.calls.get(event.call_id)
    if call is None or call.state is CallState.OVER:
        return ()
    call.output.add(event.text)
    return (OutputAdded(call, event.text),)


def _output_so_far(picture: "Picture", event: OutputSoFar) -> Changes:
    call = _call(picture, event.call_id, event.turn)
    if call.state is CallState.ASKED:
        # Only running calls have this event. It does not say when the call began.
        call.state, call.began_at = CallState.RUNNING, call.asked_at
    before = str(call.output)
    call.output = Tail(event.text, event.skipped)
    added = event.text.removeprefix(before) if before else event.text
    return (OutputAdded(call, added),) if added else ()


def call_over(picture: "Picture", event: StepOver) -> Changes:
    call = picture.calls.get(event.call_id)
    if call is None or call.state not in OPEN:
        # For a call in the background, the log reports the end.
        return ()
    call.state, call.ended_at = CallState.OVER, picture.at
    call.name = event.name
    call.status, call.summary = CallStatus(event.status), event.summary
    call.unsuccessful = event.unsuccessful
    return (CallClosed(call),)


def _call_ended(picture: "Picture", event: CallEnded) -> Changes:
    call, result = _call(picture, event.call_id, event.turn), event.result
    changes = _list(call)
    call.result = result
    if result.status is CallStatus.DETACHED:
        changes += _move(call)
    elif call.state in OPEN:
        changes.append(CallClosed(call))
        call.state = CallState.OVER
    _note_result(picture, call, result)
    return (*changes, CallResulted(call, result))


def _note_result(picture: "Picture", call: ShownCall, result: CallResult) -> None:
    call.status, call.summary = result.status, result.summary
    call.unsuccessful = result.unsuccessful
    call.ended_at = None if call.state is CallState.BACKGROUND else picture.at


def _detached(picture: "Picture", event: CallDetached) -> Changes:
    return tuple(_move(_call(picture, event.call_id, event.turn)))


def _move(call: ShownCall) -> list[Change]:
    if call.state is CallState.BACKGROUND:
        return []
    call.state, call.ended_at = CallState.BACKGROUND, None
    return [CallMoved(call)]


def _background_ended(picture: "Picture", event: BackgroundEnded) -> Changes:
    call = _call(picture, event.call_id, "")
    listed = _list(call)
    call.state, call.background_result = CallState.OVER, event.result
    _note_result(picture, call, event.result)
    drop_output(call)
    return (*listed, BackgroundClosed(call, event.result))


def drop_output(call: ShownCall) -> None:
    """Drop the live output of a call that is over, because its result has it. Keep it for a call
    that a crash ended, whose result has none."""
    if call.state is CallState.OVER and call.status is not CallStatus.UNKNOWN:
        call.output.clear()


# Questions and sub-agents


def _question_asked(picture: "Picture", event: QuestionAsked) -> Changes:
    if event.id in picture.questions:
        return ()
    question = ShownQuestion(event.id, event.turn, event.question, picture.at, event.call_id)
    picture.questions[event.id] = question
    if event.call_id in picture.calls:
        picture.calls[event.call_id].asking = True
    return (QuestionOpened(question),)


def _question_closed(picture: "Picture", event: QuestionClosed) -> Changes:
    question = picture.questions.get(event.id)
    if question is None:
        return ()
    question.open, question.answer, question.by = False, event.answer, event.by
    if question.call_id in picture.calls:
        picture.calls[question.call_id].asking = False
    return (QuestionSettled(question),)


def _child_started(picture: "Picture", event: ChildStarted) -> Changes:
    child = ShownChild(
        event.child, event.turn, event.call_id, event.task, picture.at, event.detached
    )
    picture.children[event.child] = child
    return (ChildOpened(child),)


def _child_ended(picture: "Picture", event: ChildEnded) -> Changes:
    child = picture.children.get(event.child)
    if child is None:
        child = picture.children[event.child] = ShownChild(event.child, "", "", "", picture.at)
    child.outcome, child.summary, child.ended_at = event.outcome, event.summary, picture.at
    return (ChildClosed(child),)


LIVE: Rules = {
    CallOutput: _output,
    OutputSoFar: _output_so_far,
}

RECORDED: Rules = {
    CallStarted: _call_started,
    CallEnded: _call_ended,
    CallDetached: _detached,
    BackgroundEnded: _background_ended,
    ChildStarted: _child_started,
    ChildEnded: _child_ended,
    QuestionAsked: _question_asked,
    QuestionClosed: _question_closed,
}
