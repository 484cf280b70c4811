"""A word of ours that somebody else has typed, and what they mean by it; the same everywhere."""

from enum import StrEnum
from typing import TypeVar

from bargein.contracts.tool import Approval, Question, QuestionKind
from bargein.errors import UserError

E = TypeVar("E", bound=StrEnum)

_YES_AND_NO = {
    "yes": Approval.ALLOW,
    "y": Approval.ALLOW,
    "a": Approval.ALLOW,
    "once": Approval.ALLOW,
    "no": Approval.DENY,
    "n": Approval.DENY,
}


def choose(kind: type[E], word: str) -> E:
    try:
        return kind(word)
    except ValueError:
        name = kind.__name__.lower()
        raise UserError(f"there is no {name} {word!r}; it is one of {', '.join(kind)}") from None


def choice_of(line: str, choices: tuple[str, ...]) -> str | None:
    """The choice that is given whole, by its number or by its first letter."""
    line = line.strip().lower()
    if not line:
        return None
    whole = [choice for choice in choices if choice.lower() == line]
    by_number = [choice for number, choice in enumerate(choices, 1) if str(number) == line]
    by_letter = [choice for choice in choices if len(line) == 1 and choice.lower()[:1] == line]
    found = whole or by_number or by_letter
    return found[0] if len(found) == 1 else None


def answer_of(words: str, question: Question) -> str:
    """What is meant by words that are said to be an answer. For an approval anything but its
    choices is a no, so a yes must be taken for one."""
    choice = choice_of(words, question.choices)
    if choice is None and question.kind is QuestionKind.APPROVAL:
        choice = _YES_AND_NO.get(words.strip().lower())
    return choice or words
