"""A terminal session as an animated SVG: `./dev python -m tests.cli.recording docs/demo.svg`.

The program is run in a PTY and its screen is looked at many times a second. Each row that stays the
same for a while becomes one text that is visible for just that while, so that the picture is small.
"""

import sys
import time
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pexpect
import pyte

from tests.cli.screen import Screen

ROWS, COLUMNS = 30, 92
LOOK_S = 0.28
QUIET_S = 0.02
LAST_S = 4.0
CHARACTER, LINE, MARGIN = 8.4, 19, 16
BACKGROUND, FOREGROUND = "#14161b", "#d7dae0"
COLOURS = {
    "default": FOREGROUND,
    "black": "#2b2f37",
    "brightblack": "#7f8794",
    "red": "#ef6b73",
    "green": "#8cc570",
    "brown": "#e3b55f",
    "blue": "#61a6ef",
    "magenta": "#c77ddb",
    "cyan": "#59b8c4",
    "white": "#d7dae0",
}
Row = tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """One row as it was from one moment to another."""

    place: int
    row: Row
    since: float
    until: float


class Camera:
    def __init__(self) -> None:
        self._open: dict[int, tuple[Row, float]] = {}
        self.shown: list[Shown] = []

    def look(self, screen: pyte.Screen, now: float) -> None:
        for place in range(ROWS):
            row = row_of(screen, place)
            before = self._open.get(place)
            if before is not None and before[0] == row:
                continue
            self._close(place, now)
            self._open[place] = (row, now)

    def end(self, now: float) -> None:
        for place in list(self._open):
            self._close(place, now)

    def _close(self, place: int, now: float) -> None:
        row, since = self._open.pop(place, ((), 0.0))
        if row:
            self.shown.append(Shown(place, row, since, now))


def row_of(screen: pyte.Screen, place: int) -> Row:
    """Pieces of text of one colour each; nothing for an empty row."""
    line = screen.buffer[place]
    cells = [line[column] for column in range(screen.columns)]
    if place == screen.cursor.y and not screen.cursor.hidden:
        column = min(screen.cursor.x, screen.columns - 1)
        cells[column] = cells[column]._replace(data="▏", fg="white")
    while cells and cells[-1].data == " ":
        cells.pop()
    pieces = groupby(cells, key=lambda cell: (cell.fg, cell.bold))
    return tuple(("".join(c.data for c in each), fg, bold) for (fg, bold), each in pieces)


def film(*arguments: str) -> tuple[list[Shown], float]:
    camera = Camera()
    with TemporaryDirectory() as folder:
        screen = Screen(*arguments, home=Path(folder), script="", rows=ROWS, columns=COLUMNS)
        began_at = looked_at = time.monotonic()
        while True:
            try:
                quiet = not screen.read(QUIET_S)
            except pexpect.EOF:
                break
            # Not in the middle of a picture that is being drawn.
            if quiet and time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                camera.look(screen.display, looked_at - began_at)
        took_s = time.monotonic() - began_at
        camera.look(screen.display, took_s)
        camera.end(took_s + LAST_S)
        screen.close()
    return camera.shown, took_s + LAST_S


def picture(shown: list[Shown], length_s: float) -> str:
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    texts = "\n".join(text_of(each, length_s) for each in shown)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" \
font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">
<title>bargein demo</title>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>
{texts}
</svg>
"""


def text_of(each: Shown, length_s: float) -> str:
    y = MARGIN + (each.place + 0.75) * LINE
    spans, column = [], 0
    for words, colour, bold in each.row:
        if words.strip():
            weight = ' font-weight="bold"' if bold else ""
            fill = COLOURS.get(colour, FOREGROUND)
            x = MARGIN + column * CHARACTER
            long = f' textLength="{len(words) * CHARACTER:.1f}"' if len(words) > 1 else ""
            spans.append(f'<tspan x="{x:.1f}"{long} fill="{fill}"{weight}>{escape(words)}</tspan>')
        column += len(words)
    since, until = each.since / length_s, min(1.0, each.until / length_s)
    # Where nothing moves, the end is seen.
    at_rest = "visible" if until >= 1.0 else "hidden"
    times = f"0;{since:.4f};{until:.4f}" if until < 1.0 else f"0;{since:.4f}"
    values = "hidden;visible;hidden" if until < 1.0 else "hidden;visible"
    return (
        f'<text y="{y:.0f}" xml:space="preserve" visibility="{at_rest}">{"".join(spans)}'
        f'<animate attributeName="visibility" calcMode="discrete" dur="{length_s:.1f}s" '
        f'values="{values}" keyTimes="{times}" repeatCount="indefinite"/></text>'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(*film("demo", *sys.argv[2:])))
