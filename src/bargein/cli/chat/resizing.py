"""One copy of what is drawn at the bottom, whatever happens to the window.

What is drawn is erased by going up as many rows as it has. When a window gets narrower, most
terminals break lines that do not fit any more, so that it has more rows than were drawn; the rows
above the cursor are then counted anew. Some terminals (xterm, GNU screen) cut such lines instead.
They must be known beforehand, because going up too far would erase what was said.

What has left the window at its top cannot be erased: if what is drawn does not fit into the new
window, its first rows stay in the scrollback.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout.screen import Char
from prompt_toolkit.output.vt100 import Vt100_Output

_REFLOWING_TERMS = (
    "tmux",
    "xterm-256color",
    "xterm-kitty",
    "xterm-ghostty",
    "alacritty",
    "foot",
    "wezterm",
    "konsole",
    "vte",
    "rxvt-unicode",
    "contour",
)
_REFLOWING_SIGNS = ("TMUX", "VTE_VERSION", "KONSOLE_VERSION", "TERM_PROGRAM", "WT_SESSION")
_CUTTING_SIGNS = ("XTERM_VERSION", "STY")
# A terminal that knows these two shows everything between them at once; others ignore them.
BEGIN_AT_ONCE, END_AT_ONCE = "\x1b[?2026h", "\x1b[?2026l"


def reflows(environment: Mapping[str, str]) -> bool:
    """Whether the terminal breaks lines that do not fit into a narrower window."""
    if environment.get("TMUX"):
        return True
    if any(environment.get(name) for name in _CUTTING_SIGNS):
        return False
    term = environment.get("TERM", "")
    return term.startswith(_REFLOWING_TERMS) or any(map(environment.get, _REFLOWING_SIGNS))


def rows_above(widths: Sequence[int], cursor_x: int, columns: int) -> int:
    """How many rows there are above the cursor when lines of these widths, and the one that the
    cursor is in, are broken at `columns`."""
    return sum(max(1, -(-width // columns)) for width in widths) + cursor_x // columns


class Drawing(Application[None]):
    """Draws the bottom of the screen, below the text that scrolls.

    `take_scrolled` returns the text that is to scroll and was not printed yet. Every redraw prints
    it first, whatever caused the redraw, so that the bottom never refers to text that is not on
    the screen. `reflows`: whether the terminal does. `erased_counts`: whether it then counts cells
    at the end of a line that were written and erased again, as tmux does.
    """

    reflows = False
    erased_counts = False

    def __init__(self, *, take_scrolled: Callable[[], str], **options: Any) -> None:
        super().__init__(**options)
        self._take_scrolled = take_scrolled
        self._widths: dict[int, int] = {}

    def follow_reflow(self) -> None:
        """Know where what is drawn begins, before it is erased or drawn over."""
        renderer = self.renderer
        screen, drawn_for = renderer.last_rendered_screen, renderer._last_size
        columns = self.output.get_size().columns
        if not self.reflows or screen is None or drawn_for is None:
            return
        if not 0 < columns < drawn_for.columns:
            return
        x, y = renderer._cursor_pos
        above = rows_above([self._widths.get(row, 0) for row in range(y)], x, columns)
        renderer._cursor_pos = Point(x=x % columns, y=above)
        # It is not there any more as it was drawn.
        renderer._last_screen = None

    def _width(self, row: Mapping[int, Char]) -> int:
        """The cells of a row that were written: all but blanks without a style at its end."""
        styled = self.renderer._style_string_has_style
        used = (
            place + cell.width
            for place, cell in row.items()
            if cell.char != " " or (styled is not None and styled[cell.style])
        )
        return max(used, default=0)

    def _on_resize(self) -> None:
        self.follow_reflow()
        super()._on_resize()

    def _redraw(self, render_as_done: bool = False) -> None:
        # While an editor has the terminal, nothing is drawn until it gives it back.
        if not self._is_running or self._running_in_terminal:
            return
        self.output.write_raw(BEGIN_AT_ONCE)
        self._redraw_whole(render_as_done)
        self.output.write_raw(END_AT_ONCE)
        self.output.flush()

    def _redraw_whole(self, render_as_done: bool) -> None:
        self.follow_reflow()
        if text := self._take_scrolled():
            self._print_above(text)
        anew = self.renderer.last_rendered_screen is None
        super()._redraw(render_as_done)
        screen = self.renderer.last_rendered_screen
        if self.reflows and screen is not None:
            before = self._widths if self.erased_counts and not anew else {}
            rows = {row: self._width(screen.data_buffer[row]) for row in range(screen.height)}
            self._widths = {row: max(width, before.get(row, 0)) for row, width in rows.items()}

    def _print_above(self, text: str) -> None:
        # The terminal stays in raw mode throughout: leaving it would echo what is being typed.
        self.renderer.erase()
        self.output.enable_autowrap()
        self.output.write_raw(text.replace("\n", "\r\n"))
        self.output.flush()
        self.renderer.reset()


class ScreenOutput(Vt100_Output):
    def erase_down(self) -> None:
        """Erase from the beginning of this line. From the first cell of the window, tmux takes it
        for a clearing of the whole, and keeps a copy in its scrollback; so that cell is erased
        first, and the rest from the second on."""
        self.write_raw("\x1b[K\x1b[C\x1b[J\r")
