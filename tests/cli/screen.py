"""The real program in a real terminal: a PTY, read into a screen as a person would see it."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

PROGRAM = Path(sys.executable).with_name("bargein")
ESCAPE = "\x1b"
CTRL_B, CTRL_C, CTRL_D = "\x02", "\x03", "\x04"
ALT_UP = "\x1b[1;3A"
WAIT_S = 20.0


class Screen:
    def __init__(
        self,
        *arguments: str,
        home: Path,
        script: str,
        rows: int = 30,
        columns: int = 100,
        **more: str,
    ) -> None:
        path = home / "script.toml"
        home.mkdir(exist_ok=True)
        path.write_text(script)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "BARGEIN_HOME": str(home / "data"),
            "BARGEIN_MODEL": "scripted:script.toml",
            **more,
        }
        self._child: pexpect.spawn[bytes] = pexpect.spawn(
            str(PROGRAM),
            list(arguments),
            env=environment,
            dimensions=(rows, columns),
            timeout=WAIT_S,
            cwd=str(home),
        )
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).strip("\n")

    @property
    def pid(self) -> int:
        assert self._child.pid is not None
        return self._child.pid

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def enter(self, line: str) -> None:
        self._child.send(line + "\r")

    def wait_for(self, words: str, *, gone: bool = False) -> str:
        """Read until the words are on the screen, or with `gone` until they are not."""
        return self._wait(
            lambda text: (words in text) != gone, f"{words!r} {'gone' if gone else ''}"
        )

    def _wait(self, holds: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while not holds(self.text):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; the screen is:\n{self.text}")
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=0.2))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                if holds(self.text):
                    break
                raise AssertionError(f"ended before {what}; the screen is:\n{self.text}") from None
        return self.text

    def exit_code(self) -> int:
        """Wait for the program to end."""
        while True:
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=WAIT_S))
            except pexpect.EOF:
                break
        self._child.wait()
        status, number = self._child.exitstatus, self._child.signalstatus
        return status if status is not None else -(number or 0)

    def close(self) -> None:
        self._child.close(force=True)
