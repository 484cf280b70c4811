"""Lays a question out in lines, in full: whoever approves must be able to read all of it. Pure."""

from functools import lru_cache

from bargein.cli.chat.paint import folded
from bargein.contracts.tool import Approval, Question
from bargein.contracts.visible import visible

_KEPT = 8


@lru_cache(maxsize=_KEPT)
def asked_in_lines(question: Question, width: int) -> tuple[str, ...]:
    """Returns the question and its details.

    The rest of a line that is too long is indented, so that it cannot pass for a line of its own.
    """
    about = question.detail.split("\n") if question.detail else []
    lines = folded(question.text, width)
    for line in about:
        first, *rest = folded(line, max(4, width - 2))
        lines += [first, *(f"  {piece}" for piece in rest)]
    if question.grant is not None and Approval.SESSION in question.choices:
        lines += folded(f"session, always: {visible(str(question.grant))}", width)
    return tuple(lines)
