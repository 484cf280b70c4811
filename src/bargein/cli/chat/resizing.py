"""Keeps one copy of the bottom of the screen, whatever happens to the window.

The bottom is erased by going up as many rows as it has. When a window gets narrower, most terminals
wrap lines that no longer fit, so there are more rows than were drawn; the rows above the cursor are
then counted again. Some terminals (xterm, GNU screen) cut such lines instead. They must be known in
advance, because going up too far would erase the conversation.

Rows that have left the window at its top cannot be erased: if the bottom does not fit into the new
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
# A terminal that knows these shows everything between them at once; others ignore them.
BEGIN_AT_ONCE, END_AT_ONCE = "\x1b[?2026h", "\x1b[?2026l"


def reflows(environment: Mapping[str, str]) -> bool:
    """Whether the terminal wraps lines that do not fit into a narrower window."""
    if environment.get("TMUX"):
        return True
    if any(environment.get(name) for name in _CUTTING_SIGNS):
        return False
    term = environment.get("TERM", "")
    return term.startswith(_REFLOWING_TERMS) or any(map(environment.get, _REFLOWING_SIGNS))


def rows_above(widths: Sequence[int], cursor_x: int, columns: int) -> int:
    """Returns how many rows are above the cursor when these lines and the cursor's own line wrap at
    `columns`."""
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
        """Finds where the bottom begins now, before it is erased or redrawn."""
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
        # The screen no longer shows it as it was drawn.
        renderer._last_screen = None

    def _width(self, row: Mapping[int, Char]) -> int:
        """Returns the number of written cells: all but unstyled blanks at the end of a row."""
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
        # Stay in raw mode: leaving it would echo what is being typed.
        self.renderer.erase()
        self.output.enable_autowrap()
        self.output.write_raw(text.replace("\n", "\r\n"))
        self.output.flush()
        self.renderer.reset()


class ScreenOutput(Vt100_Output):
    def erase_down(self) -> None:
        """Erases from the beginning of this line. If that is the first cell of the window, tmux
        takes it for a clearing of the whole window and keeps a copy in its scrollback. So the line
        is erased first, and the rest from its second cell on."""
        self.write_raw("\x1b[K\x1b[C\x1b[J\r")
