"""Cuts long texts into pieces that a platform accepts: at paragraphs, else lines, else words.

A fence of code that is cut is closed in one piece and opened again, with its language, in the next.
Nothing but the blank at a cut is lost.
"""

import re

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$")
_CUTS = ("\n\n", "\n", " ")
CHARACTERS_MIN = 64


def split(text: str, limit: int, *, fences: bool = True) -> list[str]:
    """At least one piece; none is longer than `limit` characters. Without `fences` a fence is text
    like any other, and nothing is added."""
    if limit < CHARACTERS_MIN:
        raise ValueError(f"a limit of {limit} characters is too small: {CHARACTERS_MIN} at least")
    pieces: list[str] = []
    opening = ""
    while True:
        text = opening + text
        if len(text) <= limit:
            return [*pieces, text]
        closing_room = len(_fence_of(opening)) + 1
        at, skip = _cut(text, limit - max(closing_room, 16), len(opening))
        piece, text = text[:at], text[at + skip :]
        opening = _open_fence(piece) if fences else ""
        if opening:
            piece += ("" if piece.endswith("\n") else "\n") + _fence_of(opening)
        pieces.append(piece)


def _cut(text: str, limit: int, opened: int) -> tuple[int, int]:
    """Where to cut, and how many characters to leave out there."""
    for cut in _CUTS:
        at = text.rfind(cut, max(opened, limit // 2), limit)
        if at > opened:
            return at, len(cut)
    return limit, 0


def _open_fence(text: str) -> str:
    """The line that opened the fence that is still open at the end of this text; empty if none."""
    mark = opening = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        if not mark:
            mark, opening = found[1], f"{found[1]}{found[2]}\n"
        elif found[1][0] == mark[0] and len(found[1]) >= len(mark) and not found[2]:
            mark = opening = ""
    return opening if len(opening) <= CHARACTERS_MIN // 4 else ""


def _fence_of(opening: str) -> str:
    found = _FENCE.match(opening.rstrip("\n"))
    return found[1] if found is not None else ""
