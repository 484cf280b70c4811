"""When the window changes during an answer, one copy of it stays, on the screen and in the
scrollback. In tmux, which wraps lines that no longer fit and keeps what leaves its top."""

import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bargein.cli.chat.resizing import reflows, rows_above
from tests.cli.screen import PROGRAM

PARAGRAPH = (
    "BEGIN of a paragraph that is longer than a line of this window, so that it takes several of "
    "them, and more of them when the window is made narrower while it is still being said, up to "
    "its END"
)
SCRIPT = """
repeat = true
[[answers]]
when = "^fill"
steps = [{ do = "say", text = "FILLED" }]
[[answers]]
steps = [
    { do = "say", text = "PARAGRAPH" },
    { do = "pause", seconds = 600 },
]
""".replace("FILLED", "\\n\\n".join(f"filling {number}" for number in range(20))).replace(
    "PARAGRAPH", PARAGRAPH
)


RESIZES_APART_S = 0.75


class Tmux:
    def __init__(self, home: Path, *, columns: int) -> None:
        self._resized_at = 0.0
        self._server = ["tmux", "-S", str(home / "tmux"), "-f", "/dev/null"]
        (home / "script.toml").write_text(SCRIPT)
        settings = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "BARGEIN_HOME": str(home / "data"),
            "BARGEIN_CHAT_HOST": "0",
            "BARGEIN_MODEL": f"scripted:{home / 'script.toml'}",
        }
        given = [word for name, value in settings.items() for word in ("-e", f"{name}={value}")]
        size = ["-x", str(columns), "-y", "24"]
        self._run("new-session", "-d", "-s", "it", *size, *given, str(PROGRAM))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._server, *arguments], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout

    @property
    def everything(self) -> str:
        """The screen and its scrollback."""
        return self._run("capture-pane", "-p", "-t", "it", "-S", "-")

    def type(self, words: str, *keys: str) -> None:
        self._run("send-keys", "-t", "it", "-l", words)
        self._run("send-keys", "-t", "it", *keys)

    def resize(self, columns: int) -> None:
        """tmux breaks the lines at once. It tells the program of the new size only after its timer
        of 250 ms since the last change, and until then the program cannot draw rightly."""
        time.sleep(max(0.0, self._resized_at + RESIZES_APART_S - time.monotonic()))
        self._run("resize-window", "-t", "it", "-x", str(columns), "-y", "24")
        self._resized_at = time.monotonic()

    def wait_until(self, holds: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + 30
        while not holds(seen := self.everything):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        return seen

    def close(self) -> None:
        self._run("kill-server")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux")
    tmux = Tmux(tmp_path, columns=100)
    yield tmux
    tmux.close()


def is_drawn(columns: int, seen: str) -> bool:
    """Whether all of it was drawn for a window of this width. tmux itself breaks the lines of the
    old drawing, the status line among them; that is drawn last, in one row."""
    lines = seen.rstrip("\n").split("\n")
    return textwrap.wrap(PARAGRAPH, columns)[0] in lines and lines[-1].startswith(" working")


def test_a_narrower_window_shows_the_open_answer_once(tmux: Tmux) -> None:
    tmux.wait_until(lambda seen: " ready" in seen)
    tmux.type("fill", "Enter")
    tmux.wait_until(lambda seen: "filling 19" in seen and " ready" in seen)
    tmux.type("go", "Enter")
    tmux.wait_until(lambda seen: "END" in seen)
    for columns in (60, 40, 90, 50, 100):
        tmux.resize(columns)
        tmux.wait_until(partial(is_drawn, columns))
    tmux.type("", "Escape")
    seen = tmux.wait_until(lambda seen: "stopped in" in seen)
    for words in ("BEGIN", "END", "> go", "filling 19", "filling 0\n"):
        assert seen.count(words) == 1, seen


def test_nothing_of_the_start_is_left_in_the_scrollback(tmux: Tmux) -> None:
    seen = tmux.wait_until(lambda seen: " ready" in seen)
    assert "starting" not in seen


@pytest.mark.parametrize(
    ("widths", "cursor_x", "columns", "rows"),
    [
        ([], 0, 80, 0),
        ([0, 100, 97, 65, 0], 2, 60, 8),
        ([60, 61, 120, 121], 0, 60, 8),
        ([10], 70, 60, 2),
    ],
)
def test_rows_are_counted_as_they_are_broken(
    widths: list[int], cursor_x: int, columns: int, rows: int
) -> None:
    assert rows_above(widths, cursor_x, columns) == rows


@pytest.mark.parametrize(
    ("environment", "does"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "screen-256color", "TMUX": "/tmp/tmux-0/default,1,0"}, True),
        ({"TERM": "xterm", "VTE_VERSION": "7600"}, True),
        ({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(390)"}, False),
        ({"TERM": "screen", "STY": "1.tty"}, False),
        ({"TERM": "xterm"}, False),
        ({"TERM": "linux"}, False),
    ],
)
def test_terminals_that_cut_lines_are_known(environment: dict[str, str], does: bool) -> None:
    assert reflows(environment) is does
