"""Shows a large paste as one short placeholder in the line, and sends it in full."""

import re

FOLD_LINES = 6
FOLD_CHARACTERS = 1000
_PLACEHOLDER = re.compile(r"\[pasted #(\d+): [^\]]*\]")


class Pastes:
    def __init__(self, kept: dict[int, str] | None = None) -> None:
        self.texts: dict[int, str] = dict(kept or {})

    def fold(self, text: str) -> str:
        """Returns what to put into the line for a paste."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines < FOLD_LINES and len(text) < FOLD_CHARACTERS:
            return text
        number = max(self.texts, default=0) + 1
        self.texts[number] = text
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        return f"[pasted #{number}: {size}]"

    def unfold(self, line: str) -> str:
        """Returns the line with its pastes in full."""
        return _PLACEHOLDER.sub(lambda found: self.texts.get(int(found[1]), found[0]), line)

    def placeholder_before(self, text: str) -> str:
        """Returns the placeholder at the end of a text, or an empty string."""
        for found in _PLACEHOLDER.finditer(text):
            if found.end() == len(text) and int(found[1]) in self.texts:
                return found[0]
        return ""
