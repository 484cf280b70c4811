"""From words to what a terminal shows: colours and Markdown, or neither if none are wanted."""

import io
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

STYLES = {
    "user": "1;36",
    "dim": "2",
    "good": "32",
    "bad": "31",
    "warn": "33",
    "note": "36",
}


class Painter:
    """`width` is asked for each time: the window may have been resized."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def styled(self, style: str, text: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self._colour else text

    def markdown(self, text: str, width: int) -> str:
        """A block of the model's words, laid out. Nothing in it can command the terminal."""
        text = harmless(text)
        if not self._colour:
            return text
        from rich.console import Console
        from rich.markdown import Markdown

        out = io.StringIO()
        console = Console(
            file=out,
            force_terminal=True,
            color_system="standard",
            width=max(20, min(width, 120)),
            highlight=False,
        )
        console.print(Markdown(text, hyperlinks=False))
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def harmless(text: str) -> str:
    """Text from models and tools without escape sequences and control characters."""
    return _CONTROL.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def last_lines(text: str, count: int, width: int) -> list[str]:
    """The end of a text as it fits into `count` lines; long lines are cut, not wrapped."""
    lines = harmless(text).rstrip("\n").split("\n")[-count:]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
