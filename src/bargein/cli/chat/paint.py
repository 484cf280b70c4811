"""Turns words into what a terminal shows, with colours and Markdown or without."""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bargein.cli.chat.markdown import Block

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
WIDTH_MIN, WIDTH_MAX = 8, 110

STYLES = {
    "user": "1;36",
    "dim": "90",
    "good": "32",
    "bad": "31",
    "warn": "33",
    "ask": "1;33",
    "note": "36",
    "plain": "0",
    "qr": "97;40",
}
# The same colours for the bottom of the screen, which names them differently.
LINE_COLOURS = {
    "dim": "ansibrightblack",
    "good": "ansigreen",
    "busy": "ansicyan",
    "warn": "ansiyellow",
    "ask": "ansiyellow bold",
    "prompt": "ansicyan bold",
    "completion-menu": "bg:default",
    "completion-menu.completion": "bg:default ansibrightblack",
    "completion-menu.completion.current": "noreverse bg:default ansicyan bold",
    "completion-menu.meta.completion": "bg:default ansibrightblack",
    "completion-menu.meta.completion.current": "bg:default ansicyan",
}


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols for a terminal that knows more than ASCII; `ASCII` has the replacements."""

    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    good: str = "✓"
    bad: str = "✗"
    stopped: str = "■"
    child: str = "◆"
    waiting: str = "↳"
    bar: str = "│"
    dot: str = "·"
    cut: str = "…"

    def fit(self, words: str) -> str:
        """Replaces our own symbols with ones that the terminal can show."""
        return words if self.dot == "·" or words.isascii() else words.translate(STAND_INS)


ASCII = Symbols("|/-\\", "+", "x", "#", "*", ">", "|", "-", "~")
# Our own symbols, and those used to lay out Markdown.
STAND_INS = str.maketrans("✓✗■◆↳│·…•▌─━═║┃╸╺╋┼", "+x#*>|-~*|--=||--++")


def symbols_for(encoding: str, environment: Mapping[str, str]) -> Symbols:
    """Returns the symbols for a terminal. In the C locale Python claims UTF-8 unless it was told an
    encoding; a user who sets that locale gets ASCII."""
    chosen = environment.get("PYTHONUTF8") or environment.get("PYTHONIOENCODING")
    is_c = environment.get("LC_ALL") in ("C", "POSIX") and not chosen
    return Symbols() if encoding.lower().startswith("utf") and not is_c else ASCII


class Painter:
    """`colour`: whether to use colours. `symbols` fit the terminal's character set."""

    def __init__(self, *, colour: bool, symbols: Symbols | None = None) -> None:
        self.colour = colour
        self.symbols = symbols or Symbols()

    def styled(self, style: str, text: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colour and text else text

    def block(self, block: Block, width: int) -> str:
        """Lays out a block of the model's words. Nothing in them can control the terminal."""
        text = harmless(block.text)
        if not self.colour:
            width = max(WIDTH_MIN, min(width, WIDTH_MAX))
            return _indented(text, width) if block.code is not None else _broken(text, width)
        from rich.console import Console

        out = io.StringIO()
        console = Console(
            file=out,
            force_terminal=True,
            color_system="standard",
            width=max(WIDTH_MIN, min(width, WIDTH_MAX)),
            highlight=False,
            legacy_windows=False,
        )
        self._print(console, text, block.code)
        lines = [line.rstrip() for line in out.getvalue().split("\n")]
        # Blank lines of a table are coloured.
        seen = [at for at, line in enumerate(lines) if _ESCAPE.sub("", line).strip()]
        return "\n".join(lines[seen[0] : seen[-1] + 1]) if seen else ""

    def _print(self, console: "Console", text: str, code: str | None) -> None:
        shown: RenderableType
        if code is None:
            from bargein.cli.chat.headings import LeftMarkdown

            shown = LeftMarkdown(text, hyperlinks=False)
        else:
            from rich.padding import Padding
            from rich.syntax import Syntax

            listing = Syntax(
                text, code or "text", theme="ansi_dark", background_color="default", word_wrap=True
            )
            shown = Padding(listing, (0, 0, 0, 2))
        console.print(shown)


def harmless(text: str) -> str:
    """Removes escape sequences and control characters from text of models and tools."""
    return _CONTROL.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def last_lines(text: str, count: int, width: int, cut: str = "…") -> list[str]:
    """Returns the last `count` lines of a text; long lines are cut, not wrapped."""
    # Only this much of the end can be visible, however long the text is.
    text = text[-count * max(width, 200) * 2 :]
    lines = harmless(text).expandtabs(4).rstrip("\n").split("\n")[-count:]
    return [clipped(line, width, cut) for line in lines]


def folded(text: str, width: int) -> list[str]:
    """Returns a whole text in lines of `width` cells, broken at spaces where possible."""
    lines = harmless(text).expandtabs(4).rstrip("\n").split("\n")
    return [piece for line in lines for piece in _pieces(line, max(2, width))]


def _pieces(line: str, width: int) -> Iterator[str]:
    from prompt_toolkit.utils import get_cwidth

    begin = cells = space = 0
    for place, character in enumerate(line):
        wide = get_cwidth(character)
        if cells + wide > width:
            end = place if character == " " or not space else space
            yield line[begin:end].rstrip()
            begin = end + (line[end] == " ")
            cells, space = get_cwidth(line[begin:place]), 0
        if character == " ":
            space = place
        cells += wide if place >= begin else 0
    yield line[begin:]


def clipped(line: str, width: int, cut: str = "…") -> str:
    """Cuts a line to `width` cells; wide characters count as two."""
    if len(line) * 2 <= width:
        return line
    from prompt_toolkit.utils import get_cwidth

    if get_cwidth(line) <= width:
        return line
    kept, cells = [], 0
    for character in line:
        cells += get_cwidth(character)
        if cells > width - 1:
            break
        kept.append(character)
    return "".join(kept) + cut


def _broken(text: str, width: int) -> str:
    return "\n".join(folded(text, width))


def _indented(text: str, width: int) -> str:
    return "\n".join(f"  {line}".rstrip() for line in folded(text, width - 2))
