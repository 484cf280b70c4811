"""Splits texts into words, so that a search finds the same in every store.

A word is a run of letters and digits, without case and accents. A query finds a text if each of its
words begins a word of the text. In scripts written without spaces a word may occur anywhere. Only
the beginning of a very long text is searched.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Iterator

EXCERPT_CHARACTERS = 120

SEARCHED_CHARACTERS_MAX = 64 * 1024
"""How much of a text is searched, from its beginning."""
PIECE_CHARACTERS = 4096
"""How much is split at once. It takes a fraction of a millisecond, in which no other thread
runs."""
OVERLAP_CHARACTERS = 200

# Thai, Lao, Myanmar and Khmer; then Chinese, Japanese and Korean.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_FIRST_UNSPACED = "\u0e00"


def fold(text: str) -> str:
    """Remove case and accents. Letters that are not an accented form of another stay."""
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text)
    bare = "".join(c for c in parts if not unicodedata.combining(c))
    return unicodedata.normalize("NFKC", bare).casefold()


def words_of(text: str) -> list[str]:
    return _WORD.findall(fold(text))


def is_unspaced(word: str) -> bool:
    return word >= _FIRST_UNSPACED and re.match(f"[{_UNSPACED}]", word) is not None


def index_of(text: str) -> str:
    """Return the words of a text, separated by spaces, for an index that splits at spaces. In
    unspaced scripts each character is a word."""
    words: set[str] = set()
    add_words(words, text)
    return indexed(words)


def indexed(words: set[str]) -> str:
    return " ".join(" ".join(word) if is_unspaced(word) else word for word in words)


def add_words(
    words: set[str], text: str, begin: int = 0, *, until: Callable[[], bool] = lambda: False
) -> int:
    """Add the words of a text from `begin` on, until `until()` is true. Returns how far it came."""
    for start, end in _pieces(text, begin):
        words.update(words_of(text[start:end]))
        begin = end
        if until():
            break
    return begin


def _pieces(text: str, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of a text begin and end. A piece ends at a space if there is one;
    otherwise it cuts a word, and the next piece begins a little before the cut. Other threads may
    run between two pieces."""
    while len(text) - begin > PIECE_CHARACTERS:
        end = begin + PIECE_CHARACTERS
        space = text.rfind(" ", begin + OVERLAP_CHARACTERS + 1, end)
        if space > 0:
            yield begin, space
            begin = space
        else:
            yield begin, end
            begin = end - OVERLAP_CHARACTERS
        time.sleep(0)
    yield begin, len(text)


def has_all(text: str, wanted: list[str]) -> bool:
    missing = list(wanted)
    for start, end in _pieces(text):
        present = words_of(text[start:end])
        missing = [word for word in missing if not any(_matches(each, word) for each in present)]
        if not missing:
            return True
    return False


def _matches(present: str, wanted: str) -> bool:
    return wanted in present if is_unspaced(wanted) else present.startswith(wanted)


def excerpt(text: str, wanted: list[str]) -> str:
    """Return the first of the wanted words with some text before and after it, on one line."""
    if len(text) <= PIECE_CHARACTERS:
        return _excerpt(text, wanted, before=False, after=False)
    for start, end in _pieces(text):
        if any(_matches(each, word) for each in words_of(text[start:end]) for word in wanted):
            break
    else:
        start, end = 0, PIECE_CHARACTERS
    around = text[max(0, start - EXCERPT_CHARACTERS) : end + EXCERPT_CHARACTERS]
    return _excerpt(around, wanted, before=start > 0, after=end < len(text))


def _excerpt(text: str, wanted: list[str], *, before: bool, after: bool) -> str:
    """`before` and `after`: the text continues there."""
    flat = " ".join(text.split())
    if len(flat) <= EXCERPT_CHARACTERS and not before and not after:
        return flat
    start = max(0, _first_place(flat, wanted) - EXCERPT_CHARACTERS // 3)
    end = start + EXCERPT_CHARACTERS
    begins, ends = start == 0 and not before, end >= len(flat) and not after
    return ("" if begins else "… ") + flat[start:end].strip() + ("" if ends else " …")


def _first_place(text: str, wanted: list[str]) -> int:
    """Return roughly where the first match begins; folding may move it by a few characters."""
    places = [
        found.start()
        for found in _WORD.finditer(fold(text))
        if any(found.group().startswith(word) or word in found.group() for word in wanted)
    ]
    return places[0] if places else 0
