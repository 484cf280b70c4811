"""Turns a question of the agent into a form for the client, and its answer back. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from bargein.calls.words import NOBODY_ANSWERS
from bargein.contracts.tool import Approval, Question, QuestionKind

FIELD: Final = "answer"
OFFERED: Final = (Approval.ALLOW, Approval.SESSION, Approval.DENY)
"""For always is what the user says to Bargein, and not to a client of it."""


def can_elicit(capabilities: object) -> bool:
    """Whether the client shows forms to its user."""
    offered = capabilities.get("elicitation") if isinstance(capabilities, Mapping) else None
    # Before 2025-11-25 there was only one kind, and an empty table meant it.
    return isinstance(offered, Mapping) and (not offered or "form" in offered)


def elicitation(question: Question) -> dict[str, Any]:
    """The parameters of `elicitation/create`."""
    field: dict[str, Any] = {"type": "string", "title": "Answer"}
    choices = _choices(question)
    if choices:
        field["enum"] = list(choices)
    return {
        "mode": "form",
        "message": "\n\n".join(filter(None, (question.text, question.detail))),
        "requestedSchema": {"type": "object", "properties": {FIELD: field}, "required": [FIELD]},
    }


def answer_in(question: Question, result: object) -> str:
    """Read the answer from the client's result. To an approval, all but a clear yes is a no."""
    given = result if isinstance(result, Mapping) else {}
    content = given.get("content")
    answer = content.get(FIELD) if isinstance(content, Mapping) else None
    accepted = answer if given.get("action") == "accept" and isinstance(answer, str) else None
    if question.kind is QuestionKind.APPROVAL:
        return accepted if accepted in OFFERED else Approval.DENY
    return accepted or NOBODY_ANSWERS


def _choices(question: Question) -> tuple[str, ...]:
    if question.kind is QuestionKind.APPROVAL:
        return tuple(each for each in OFFERED if each in question.choices) or OFFERED
    return question.choices
