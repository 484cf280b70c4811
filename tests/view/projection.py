"""What the picture and the page's state have in common, as plain data."""

from __future__ import annotations

from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult
from bargein.view import (
    AnswerEnded,
    CallRequested,
    CallState,
    MessageTaken,
    MessageTakenBack,
    Picture,
    QuestionOpened,
    Shortened,
    ShownCall,
    TurnClosed,
)

OUTPUT_CHARACTERS = 1000


def words(content: tuple[Text | Image, ...]) -> str:
    parts = ["[image]" if isinstance(part, Image) else part.text for part in content]
    return "\n".join(part for part in parts if part)


def project(picture: Picture) -> dict[str, object]:
    turn = picture.turn
    return {
        "title": picture.title,
        "ended": picture.ended,
        "turn": turn.id if turn is not None else None,
        "stopping": turn is not None and turn.state == "stopping",
        "held": picture.held,
        "inbox": [[each.id, str(each.waits_for)] for each in picture.waiting],
        "messages": {
            each.id: [words(each.message.content), str(each.fate), each.turn]
            for each in picture.messages.values()
        },
        "turns": {
            each.id: [each.outcome, each.error, each.hidden, len(each.interrupts)]
            for each in picture.turns.values()
        },
        "calls": {each.id: call(each) for each in picture.calls.values() if each.listed},
        "questions": {
            each.id: [each.open, each.answer, each.by, each.turn, each.call_id]
            for each in picture.questions.values()
        },
        "children": {
            each.id: [each.running, each.outcome, each.summary, each.task, each.detached]
            for each in picture.children.values()
        },
        "used": [picture.used.requests, picture.used.input_tokens, picture.used.output_tokens],
        "saying": saying(picture),
        "items": items(picture),
    }


def call(shown: ShownCall) -> list[object]:
    """The page learns from the log alone that a call is over."""
    result = shown.background_result or shown.result
    status = "running"
    if shown.state is CallState.BACKGROUND:
        status = "background"
    elif result is not None:
        status = "failed" if result.unsuccessful else str(result.status)
    over = result is not None and shown.state is CallState.OVER
    output = "" if over else str(shown.output)[-OUTPUT_CHARACTERS:]
    told = _told(result) if result is not None else ["", ""]
    return [shown.name, shown.turn, status, *told, shown.asking, output]


def _told(result: CallResult) -> list[object]:
    return [words(result.content), result.summary]


def saying(picture: Picture) -> list[object]:
    open_ = [each for turn in picture.turns.values() for each in turn.saying]
    return [[each.turn, each.text] for each in open_ if each.words]


def items(picture: Picture) -> list[object]:
    found: list[object] = []
    for item in picture.items:
        match item:
            case MessageTaken(message=message):
                found.append(["message", message.id])
            case MessageTakenBack(message=message):
                found.append(["withdrawn", message.text])
            case AnswerEnded(answer=answer) if answer.words or answer.thought or answer.unkept:
                found.append(["answer", answer.turn, answer.text, answer.partial, answer.unkept])
            case CallRequested(call=shown):
                found.append(["call", shown.id])
            case QuestionOpened(question=question):
                found.append(["question", question.id])
            case TurnClosed(turn=turn) if turn.outcome != "completed":
                found.append(["settled", turn.id])
            case Shortened():
                found.append(["notice"])
            case _:
                pass
    return found


def as_logged(projection: dict[str, object]) -> dict[str, object]:
    """Without what only a reader of live events has: what the log did not keep of an answer."""
    kept = []
    for item in projection["items"]:  # type: ignore[attr-defined]
        if item[0] != "answer":
            kept.append(item)
        elif item[2]:
            kept.append([*item[:4], ""])
    calls = {key: each[:-1] for key, each in projection["calls"].items()}  # type: ignore[attr-defined]
    return {**projection, "items": kept, "calls": calls}
