"""Splits Markdown that is still being written: finished blocks come off, the rest stays open.

A paragraph ends at a blank line. A list ends when something follows that does not belong to it. A
code block ends when its fence closes; before that it is split off piece by piece, so that a long
listing scrolls as it arrives. Each line is looked at once, however long the answer gets.
"""

import re
from typing import NamedTuple

FENCES = ("```", "~~~")
FENCE_LINES_MAX = 12
LIST_LINES_MAX = 24
_ITEM = re.compile(r"\s{0,3}(?:[-*+]|\d{1,9}[.)])\s")


class Block(NamedTuple):
    """`code` is None for text, else the language of a listing, possibly empty. `more`: the listing
    continues in the next block."""

    text: str
    code: str | None = None
    more: bool = False


class OpenMarkdown:
    def __init__(self) -> None:
        self._block: list[str] = []
        self._line = ""
        self._fence = ""
        self._language = ""

    @property
    def tail(self) -> Block:
        """The text since the last finished block."""
        lines = [*self._block, self._line] if self._block else [self._line]
        return Block("\n".join(lines), self._language if self._fence else None)

    def add(self, text: str) -> list[Block]:
        """Adds text; returns the blocks that it finished."""
        finished: list[Block] = []
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._add_line(line, finished)
        return finished

    def finish(self) -> list[Block]:
        """Returns everything that is left."""
        finished: list[Block] = []
        if self._line:
            line, self._line = self._line, ""
            self._add_line(line, finished)
        self._end_block(finished)
        self._fence = ""
        return finished

    def _add_line(self, line: str, finished: list[Block]) -> None:
        bare = line.lstrip()
        if self._fence:
            self._add_code(line, bare, finished)
        elif bare.startswith(FENCES) and not self._in_list(line):
            self._end_block(finished)
            self._fence, self._language = bare[:3], bare[3:].strip().partition(" ")[0]
        elif not bare:
            if self._in_list("  "):
                self._block.append("")
            else:
                self._end_block(finished)
        else:
            self._add_text(line, finished)

    def _add_code(self, line: str, bare: str, finished: list[Block]) -> None:
        if bare.startswith(self._fence) and not bare.strip().strip(self._fence[0]):
            self._end_block(finished)
            self._fence = ""
            return
        if len(self._block) >= FENCE_LINES_MAX:
            finished.append(Block("\n".join(self._block), self._language, more=True))
            self._block = []
        self._block.append(line)

    def _add_text(self, line: str, finished: list[Block]) -> None:
        after_blank = bool(self._block) and not self._block[-1]
        leaves_list = after_blank and not self._in_list(line)
        too_long = len(self._block) >= LIST_LINES_MAX and bool(_ITEM.match(line))
        if leaves_list or too_long:
            self._end_block(finished)
        self._block.append(line)

    def _in_list(self, line: str) -> bool:
        """Whether a line would belong to the open list."""
        if not self._block or not _ITEM.match(self._block[0]):
            return False
        return line.startswith(("  ", "\t")) or bool(_ITEM.match(line))

    def _end_block(self, finished: list[Block]) -> None:
        text = "\n".join(self._block).rstrip("\n")
        if text or (self._fence and self._block):
            finished.append(Block(text, self._language if self._fence else None))
        self._block = []
