"""Reads a typed word as one of our choices, by the same rules on every surface."""

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
    """Return the member of an enum that `word` names; raise `UserError` with the valid words."""
    try:
        return kind(word)
    except ValueError:
        name = kind.__name__.lower()
        raise UserError(f"there is no {name} {word!r}; it is one of {', '.join(kind)}") from None


def choice_of(line: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that the line names in full, by its number or by its first letter; None if
    it names none, or more than one."""
    line = line.strip().lower()
    if not line:
        return None
    whole = [choice for choice in choices if choice.lower() == line]
    by_number = [choice for number, choice in enumerate(choices, 1) if str(number) == line]
    by_letter = [choice for choice in choices if len(line) == 1 and choice.lower()[:1] == line]
    found = whole or by_number or by_letter
    return found[0] if len(found) == 1 else None


def answer_of(words: str, question: Question) -> str:
    """Return the choice that an answer means, or the words themselves. Any answer to an approval
    that is not one of its choices counts as a no, so a plain "yes" must become a choice here."""
    choice = choice_of(words, question.choices)
    if choice is None and question.kind is QuestionKind.APPROVAL:
        choice = _YES_AND_NO.get(words.strip().lower())
    return choice or words
