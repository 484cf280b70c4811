"""Markdown that is still being written: finished blocks are split off, the rest stays open.

A block is finished at a blank line outside of a code fence; a fence is finished when it closes.
Splitting looks at each line once, however long the answer gets.
"""

FENCES = ("```", "~~~")


class OpenMarkdown:
    def __init__(self) -> None:
        self._block: list[str] = []
        self._line = ""
        self._fence = ""

    @property
    def tail(self) -> str:
        """What has been said since the last finished block."""
        return "\n".join([*self._block, self._line]) if self._block else self._line

    def add(self, text: str) -> list[str]:
        """Take more text; give the blocks that it finished."""
        finished: list[str] = []
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._add_line(line, finished)
        return finished

    def finish(self) -> str:
        """Everything that is left, as one block."""
        rest = self.tail
        self._block, self._line, self._fence = [], "", ""
        return rest

    def _add_line(self, line: str, finished: list[str]) -> None:
        bare = line.lstrip()
        if self._fence:
            self._block.append(line)
            if bare.startswith(self._fence) and not bare.strip(self._fence[0]):
                self._fence = ""
                self._end_block(finished)
        elif bare.startswith(FENCES):
            self._fence = bare[:3]
            self._block.append(line)
        elif bare:
            self._block.append(line)
        else:
            self._end_block(finished)

    def _end_block(self, finished: list[str]) -> None:
        if self._block:
            finished.append("\n".join(self._block))
            self._block = []
