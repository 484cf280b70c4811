"""What counts as a word, so that every store finds the same.

A word is a run of letters and digits, without case or accents. A query finds a text that has each
of its words as the beginning of one. Scripts that are written without spaces, or are looked for by
parts of a word, are found anywhere.
"""

import re
import unicodedata

EXCERPT_CHARACTERS = 120

# Thai, Lao, Myanmar and Khmer; then Chinese, Japanese and Korean.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_FIRST_UNSPACED = "\u0e00"


def fold(text: str) -> str:
    """Without case and accents. Letters that are not an accented form of another stay."""
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
    """The words of a text with spaces between them, for an index that splits at spaces. Of unspaced
    script each character is a word."""
    return " ".join(" ".join(one) if is_unspaced(one) else one for one in set(words_of(text)))


def has_all(text: str, wanted: list[str]) -> bool:
    present = words_of(text)
    return all(
        any(word in one if is_unspaced(word) else one.startswith(word) for one in present)
        for word in wanted
    )


def excerpt(text: str, wanted: list[str]) -> str:
    """The first of the wanted words with a little before and after it, on one line."""
    flat = " ".join(text.split())
    if len(flat) <= EXCERPT_CHARACTERS:
        return flat
    start = max(0, _first_place(flat, wanted) - EXCERPT_CHARACTERS // 3)
    end = start + EXCERPT_CHARACTERS
    return ("… " if start else "") + flat[start:end].strip() + (" …" if end < len(flat) else "")


def _first_place(text: str, wanted: list[str]) -> int:
    """Roughly where the first match begins; folding may move it by a few characters."""
    places = [
        found.start()
        for found in _WORD.finditer(fold(text))
        if any(found.group().startswith(word) or word in found.group() for word in wanted)
    ]
    return places[0] if places else 0
