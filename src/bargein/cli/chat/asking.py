"""A question in lines, whole: who is to allow something must be able to read all of it. Pure."""

import msgspec

from bargein.cli.chat.paint import folded
from bargein.contracts.tool import Question

LINES_MAX = 80


def asked_in_lines(question: Question, width: int) -> list[str]:
    """What is asked, and what it is about where that does not say it already. Of very many lines
    those in the middle are counted."""
    about = _about(question)
    lines = folded(question.text, width) + (folded(about, width) if about else [])
    if len(lines) > LINES_MAX:
        half = LINES_MAX // 2
        skipped = f"[{len(lines) - 2 * half} more lines]"
        lines = [*lines[:half], skipped, *lines[-half:]]
    return lines


def _about(question: Question) -> str:
    try:
        arguments = msgspec.json.decode(question.detail, type=dict[str, object])
    except msgspec.DecodeError:
        return question.detail
    told = {name: _plain(value) for name, value in arguments.items()}
    if all(value in question.text for value in told.values()):
        return ""
    return "\n".join(f"{name}: {value}" for name, value in told.items())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
