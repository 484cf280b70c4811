"""The real program in a real terminal: a PTY, read into a screen as a person would see it."""

import os
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pexpect
import pyte

PROGRAM = Path(sys.executable).with_name("bargein")
# Put before a command that is to heed modes: root passes over them unless it gives that right up.
OBEDIENT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if not os.geteuid() else []
ESCAPE = "\x1b"
CTRL_B, CTRL_C, CTRL_D, CTRL_G, CTRL_L = "\x02", "\x03", "\x04", "\x07", "\x0c"
CTRL_R, CTRL_U, CTRL_X, CTRL_Z = "\x12", "\x15", "\x18", "\x1a"
ALT_UP = "\x1b[1;3A"
UP, DOWN = "\x1b[A", "\x1b[B"
WAIT_S = 40.0
RAW_BYTES_MAX = 4 * 1024 * 1024
# Around a picture that a terminal is to show at once, when all of it is there.
BEGIN_AT_ONCE, END_AT_ONCE = b"\x1b[?2026h", b"\x1b[?2026l"


class Screen:
    """`command` is what is run instead of the program; `config` is the user's own settings,
    `project` what the project's bargein.toml has."""

    def __init__(
        self,
        *arguments: str,
        home: Path,
        script: str,
        rows: int = 30,
        columns: int = 100,
        command: Sequence[str] = (str(PROGRAM),),
        config: str = "",
        project: str = "",
        **more: str,
    ) -> None:
        home.mkdir(exist_ok=True)
        (home / "script.toml").write_text(script)
        if config:
            own = home / ".config" / "bargein" / "config.toml"
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(config)
        if project:
            (home / "bargein.toml").write_text(project)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            # The screen here cuts lines that do not fit into a narrower window, as xterm does.
            "XTERM_VERSION": "pyte",
            "BARGEIN_HOME": str(home / "data"),
            "BARGEIN_MODEL": "scripted:script.toml",
            # Most tests are about one terminal, with the engine in it.
            "BARGEIN_CHAT_HOST": "0",
            **more,
        }
        self._child: pexpect.spawn[bytes] = pexpect.spawn(
            command[0],
            [*command[1:], *arguments],
            env={name: value for name, value in environment.items() if value},
            dimensions=(rows, columns),
            timeout=WAIT_S,
            cwd=str(home),
        )
        # Otherwise each key waits a moment, for passwords that are typed before their prompt.
        self._child.delaybeforesend = None
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._is_drawing = False
        self.raw = bytearray()

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).strip("\n")

    @property
    def display(self) -> pyte.Screen:
        """The screen itself, with colours and cursor."""
        return self._screen

    def read(self, wait_s: float) -> bool:
        """Take what there is, False if nothing; raises `pexpect.EOF` at the end."""
        try:
            self._feed(self._child.read_nonblocking(65536, timeout=wait_s))
        except pexpect.TIMEOUT:
            return False
        return True

    @property
    def line(self) -> str:
        """What is in the input line: the prompt that the cursor stands behind."""
        lines = [line.rstrip() for line in self._screen.display[: self._screen.cursor.y + 1]]
        found = next((line for line in reversed(lines) if line.startswith(">")), ">")
        return found.removeprefix(">").strip()

    @property
    def text_before_cursor(self) -> str:
        """The line that the cursor is in, up to it, with blanks that were typed."""
        cursor = self._screen.cursor
        return self._screen.display[cursor.y][: cursor.x]

    @property
    def pid(self) -> int:
        assert self._child.pid is not None
        return self._child.pid

    @property
    def alive(self) -> bool:
        return bool(self._child.isalive())

    @property
    def is_cooked(self) -> bool:
        """Whether the terminal echoes and edits lines, as a shell expects to find it."""
        local_modes: int = termios.tcgetattr(self._child.child_fd)[3]
        return bool(local_modes & termios.ICANON) and bool(local_modes & termios.ECHO)

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def enter(self, line: str) -> None:
        self._child.send(line + "\r")

    def paste(self, text: str) -> None:
        """As a terminal does it that brackets what is pasted."""
        self._child.send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def wait_for(self, words: str, *, gone: bool = False, within_s: float = WAIT_S) -> str:
        """Read until the words are on the screen, or with `gone` until they are not."""
        return self.wait_until(
            lambda: (words in self.text) != gone,
            f"{words!r} {'gone' if gone else ''}",
            within_s=within_s,
        )

    def wait_ready(self) -> str:
        """Until nothing runs and the line is empty."""
        return self.wait_until(lambda: " ready" in self.status and not self.line, "ready")

    @property
    def status(self) -> str:
        """The last line that has anything in it."""
        return self.text.rpartition("\n")[2]

    def wait_status(self, words: str) -> None:
        """Until the words are in the last line, which is drawn after what it is about."""
        self.wait_until(lambda: words in self.status, f"{words!r} in the last line")

    def wait_until(self, holds: Callable[[], bool], what: str, *, within_s: float = WAIT_S) -> str:
        """Looks only at whole pictures. What else a test wants to see of the same one, it should
        name here too: another picture may follow at any moment."""
        deadline = time.monotonic() + within_s
        while self._is_drawing or not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; the screen is:\n{self.text}")
            try:
                self._feed(self._child.read_nonblocking(65536, timeout=0.2))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                if holds():
                    break
                raise AssertionError(f"ended before {what}; the screen is:\n{self.text}") from None
        return self.text

    def exit_code(self) -> int:
        """Wait for the program to end. One that goes on drawing does not end."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                self._feed(self._child.read_nonblocking(65536, timeout=WAIT_S))
            except pexpect.EOF:
                break
            assert time.monotonic() < deadline, f"it does not leave; the screen is:\n{self.text}"
        self._child.wait()
        status, number = self._child.exitstatus, self._child.signalstatus
        return status if status is not None else -(number or 0)

    def close(self) -> None:
        try:
            self._child.close(force=True)
        except pexpect.ExceptionPexpect:
            # It was killed at last, and pexpect looks once, 0.1 s later. A busy machine may take
            # longer to end it.
            self._child.wait()
            self._child.close()

    def _feed(self, read: bytes) -> None:
        recent = self.raw[-len(BEGIN_AT_ONCE) :] + read
        began, ended = recent.rfind(BEGIN_AT_ONCE), recent.rfind(END_AT_ONCE)
        if began != ended:
            self._is_drawing = began > ended
        self.raw = (self.raw + read)[-RAW_BYTES_MAX:]
        self._stream.feed(read)


def typed_late(screen: Screen, key: str, hint: str) -> bool:
    """Type into an empty line until it counts for an answer, which the hint says: the question must
    have been there for a moment."""
    if hint in screen.text:
        return True
    screen.type(CTRL_U + key)
    time.sleep(0.1)
    return False
