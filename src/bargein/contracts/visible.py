"""Makes deceptive characters visible in text that a person decides by.

An approval, the title of a call and a line of a receipt may contain anything a model or a stranger
wrote: characters that no screen shows, that reverse the text after them, that command a terminal,
or that look like other characters. `visible` writes each of them as its code point, `<U+202E>`.
Every surface shows the text made here, so all of them show the same.

Letters of every language, emoji, new lines and tabs stay as they are.
"""

import unicodedata
from functools import lru_cache

__all__ = ["visible"]

# Characters that show nothing or a blank, although Unicode classes them as letters or signs.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
# Signs that look like ones with a meaning in shell commands or addresses.
_LOOK_ALIKE = frozenset(
    "\u2044\u2215\u29f8\u2010\u2011\u2212\u02d0\ua789\u0589\u05c3\u2236\u037e\u066a"
)
_LOOK_ALIKE_SCRIPTS = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "GEORGIAN")
_SELECTORS = ((0xFE00, 0xFE0E), (0xE0100, 0xE01EF))
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_MARKS_MAX = 2


def visible(text: str) -> str:
    """Return the text with each character that could deceive written as its code point."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for at, character in enumerate(text):
        if character in " \n\t" or (character.isascii() and character.isprintable()):
            marks = 0
            shown.append(character)
            continue
        is_mark = unicodedata.combining(character) != 0
        marks = marks + 1 if is_mark else 0
        deceives = marks > _MARKS_MAX or _hides(character) or _is_among_ascii(text, at)
        shown.append(f"<U+{ord(character):04X}>" if deceives else character)
    return "".join(shown)


@lru_cache(maxsize=4096)
def _hides(character: str) -> bool:
    """Whether the character is invisible, moves its neighbours, or looks like an ASCII one."""
    category = unicodedata.category(character)
    if category in _HIDDEN_CATEGORIES or (category == "Zs" and character != " "):
        return True
    if character in _BLANK or character in _LOOK_ALIKE:
        return True
    if any(first <= ord(character) <= last for first, last in _SELECTORS):
        return True
    if category[0] not in "LNPS" or ord(character) < 0x100:
        return False
    # Wide, bold and other forms of ASCII: people read them as ASCII, and programs may.
    same = unicodedata.normalize("NFKC", character)
    return len(same) == 1 and same.isascii()


def _is_among_ascii(text: str, at: int) -> bool:
    """Whether the character at `at` is a letter of a look-alike script in a word with ASCII
    letters."""
    character = text[at]
    if not character.isalpha() or not _is_of_look_alike_script(character):
        return False
    return any(_is_ascii_letter(text, at, step) for step in (-1, 1))


def _is_ascii_letter(text: str, at: int, step: int) -> bool:
    """Whether an ASCII letter follows within the same word, looking in the direction of `step`."""
    for _ in range(64):
        at += step
        if not 0 <= at < len(text) or not (text[at].isalnum() or text[at] in "-._"):
            return False
        if text[at].isascii() and text[at].isalpha():
            return True
    return False


@lru_cache(maxsize=4096)
def _is_of_look_alike_script(character: str) -> bool:
    return unicodedata.name(character, "").startswith(_LOOK_ALIKE_SCRIPTS)
