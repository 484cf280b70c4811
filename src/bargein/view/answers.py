"""Rules of the picture for answers and model requests: what each event changes.

An answer first streams live and is then in the log. The two may overlap: the next answer can begin
to stream before the log has the previous one, and a reader may have missed parts of the stream.
"""

from typing import TYPE_CHECKING

from bargein.contracts.event import AnswerHeard, AssistantSaid
from bargein.contracts.live import (
    AnswerSoFar,
    AnswerVoid,
    ReasoningDelta,
    StepBegan,
    StepOver,
    TextDelta,
)
from bargein.contracts.model import Reasoning, Text, ToolCall
from bargein.contracts.receipt import StepKind
from bargein.view.calls import call_asked, call_began, call_over
from bargein.view.changes import (
    AnswerCutShort,
    AnswerEnded,
    AnswerReplaced,
    AnswerVoided,
    Change,
    Changes,
    ReasoningAdded,
    Rules,
    StepClosed,
    StepOpened,
    WordsAdded,
)
from bargein.view.shown import (
    ShownAnswer,
    ShownStep,
    ShownTurn,
    TextPieces,
)

if TYPE_CHECKING:
    from bargein.view.picture import Picture


def _step_began(picture: "Picture", event: StepBegan) -> Changes:
    if event.kind == StepKind.TOOL:
        return call_began(picture, event)
    turn = picture.turn_in_flight(event.turn)
    if turn is None:
        return ()
    step = ShownStep(event.turn, event.kind, event.name, picture.at)
    turn.steps.append(step)
    if event.kind == StepKind.MODEL:
        last = turn.saying[-1] if turn.saying else None
        if last is None or last.done or last.words or last.thought:
            turn.saying.append(ShownAnswer(turn.id, picture.at, by_model=True))
        else:
            last.by_model = True
    return (StepOpened(step),)


def _step_over(picture: "Picture", event: StepOver) -> Changes:
    if event.kind == StepKind.TOOL:
        return call_over(picture, event)
    turn = picture.turns.get(event.turn)
    step = ShownStep(event.turn, event.kind, event.name, picture.at)
    if turn is not None:
        step = next((each for each in turn.steps if each.kind == event.kind), step)
        turn.steps = [each for each in turn.steps if each is not step]
        if event.kind == StepKind.MODEL and turn.saying:
            turn.saying[-1].done = True
    step.status = event.status
    return (StepClosed(step),)


def _answer(picture: "Picture", turn: ShownTurn) -> ShownAnswer:
    """Return the answer that streams now."""
    if not turn.saying or turn.saying[-1].done:
        turn.saying.append(ShownAnswer(turn.id, picture.at))
    return turn.saying[-1]


def _text(picture: "Picture", event: TextDelta) -> Changes:
    turn = picture.turn
    if turn is None or turn.id != event.turn:
        turn = picture.turn_in_flight(event.turn)
        if turn is None:
            return ()
    saying = turn.saying
    answer = saying[-1] if saying and not saying[-1].done else _answer(picture, turn)
    answer.words.add(event.text)
    return (WordsAdded(answer, event.text),)


def _reasoning(picture: "Picture", event: ReasoningDelta) -> Changes:
    turn = picture.turn_in_flight(event.turn)
    if turn is None:
        return ()
    answer = _answer(picture, turn)
    answer.thought.add(event.text)
    return (ReasoningAdded(answer, event.text),)


def _so_far(picture: "Picture", event: AnswerSoFar) -> Changes:
    turn = picture.turn_in_flight(event.turn)
    if turn is None:
        return ()
    answer = turn.saying[-1] if turn.saying else ShownAnswer(turn.id, picture.at)
    # Earlier answers stream no more; the log brings them.
    turn.saying = [answer]
    known, thought = answer.text, answer.reasoning
    answer.words, answer.thought = TextPieces(event.text), TextPieces(event.reasoning)
    answer.stale = False
    changes: list[Change] = []
    if not event.text.startswith(known):
        changes.append(AnswerReplaced(answer))
        known = ""
    if event.reasoning.startswith(thought) and event.reasoning != thought:
        changes.append(ReasoningAdded(answer, event.reasoning[len(thought) :]))
    if event.text != known:
        changes.append(WordsAdded(answer, event.text[len(known) :]))
    return tuple(changes)


def _void(picture: "Picture", event: AnswerVoid) -> Changes:
    turn = picture.turn_in_flight(event.turn)
    if turn is None:
        return ()
    voided = ShownAnswer(turn.id, picture.at)
    if turn.saying:
        answer = turn.saying[-1]
        voided.words, answer.words = answer.words, TextPieces()
        voided.thought, answer.thought = answer.thought, TextPieces()
    return (AnswerVoided(turn.id, voided, event.cause, event.delay_s, event.model),)


def _said(picture: "Picture", event: AssistantSaid) -> Changes:
    turn = picture.turn_of(event.turn)
    parts = event.message.content
    text = "".join(part.text for part in parts if isinstance(part, Text))
    answer = _streamed(turn.saying, text, event)
    if answer is None:
        answer = ShownAnswer(turn.id, picture.at)
    else:
        # Earlier ones will not come any more: the log skips an answer of which nothing is kept.
        del turn.saying[: turn.saying.index(answer) + 1]
    changes = _complete(answer, text, event)
    answer.at = picture.at
    if turn.heard_ahead is not None:
        _hear(answer, turn.heard_ahead)
        turn.heard_ahead = None
    turn.answers.append(answer)
    changes.append(AnswerEnded(answer))
    for part in parts:
        if isinstance(part, ToolCall):
            changes += call_asked(picture, event.turn, part)
    return tuple(changes)


def _heard(picture: "Picture", event: AnswerHeard) -> Changes:
    turn = picture.turns.get(event.turn)
    if turn is None:
        return ()
    left = event.characters
    for answer in turn.answers:
        left = _hear(answer, left)
    turn.heard_ahead = left if event.streaming else None
    return (AnswerCutShort(turn, event.by),)


def _hear(answer: ShownAnswer, characters: int) -> int:
    """Mark how much of an answer was heard. Returns how many characters are left over."""
    seen = len(answer.text) if answer.heard is None else answer.heard
    if characters < seen:
        answer.heard = characters
    return max(0, characters - seen)


def _streamed(saying: list[ShownAnswer], text: str, event: AssistantSaid) -> ShownAnswer | None:
    """Find the streaming answer that the log now has. The next answer may already stream, so the
    text decides. The log has less text than was streamed if a crash cut the answer off, and more if
    this reader missed deltas."""
    for answer in saying:
        if answer.text == text:
            return answer
    for answer in saying:
        streamed = answer.text
        if event.partial and streamed and streamed.startswith(text):
            return answer
        if answer.stale and streamed and text.startswith(streamed):
            return answer
    if not event.model:
        # A user-written agent: its whole answer replaces what it emitted.
        return next((answer for answer in saying if not answer.by_model), None)
    return None


def _complete(answer: ShownAnswer, text: str, event: AssistantSaid) -> list[Change]:
    """Make the answer what the log says. Returns the changes for words that are new."""
    streamed, changes = answer.text, list[Change]()
    if event.partial and streamed.startswith(text):
        answer.unkept = streamed[len(text) :]
    elif text.startswith(streamed):
        if len(text) > len(streamed):
            changes.append(WordsAdded(answer, text[len(streamed) :], late=True))
    else:
        changes += [AnswerReplaced(answer), WordsAdded(answer, text, late=True)]
    answer.words = TextPieces(text)
    thought = [part.text for part in event.message.content if isinstance(part, Reasoning)]
    if any(thought):
        answer.thought = TextPieces("".join(thought))
    answer.said, answer.message, answer.partial = True, event.message, event.partial
    answer.model, answer.usage = event.model, event.usage
    return changes


LIVE: Rules = {
    TextDelta: _text,
    ReasoningDelta: _reasoning,
    AnswerVoid: _void,
    AnswerSoFar: _so_far,
    StepBegan: _step_began,
    StepOver: _step_over,
}

RECORDED: Rules = {
    AssistantSaid: _said,
    AnswerHeard: _heard,
}
