"""What the input line remembers: the unsent draft, large pastes, and the history.

`Draft` keeps unsent input through a crash, a closed window or a lost connection. `Pastes` shows a
large paste as one short placeholder in the line; it is sent in full. `KeptHistory` is for the Up
key.
"""

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory

LINE = "line"
LOCK = "lock"
TERMINALS_MAX = 100
PASTE = "paste-"


class Draft:
    """One for each terminal on a data directory: the first folder that no other terminal has
    locked. So a terminal finds what one that is gone left behind, and never what somebody else is
    writing. Written with each change; a failed write costs only the draft."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = home / "draft"
        self._lock = -1
        self._pasted: set[int] = set()

    def kept(self) -> tuple[str, dict[int, str]]:
        """Returns the line and its pastes."""
        try:
            self._take_folder()
            line = (self._folder / LINE).read_text(encoding="utf-8")
            pastes = {
                int(found.name.removeprefix(PASTE)): found.read_text(encoding="utf-8")
                for found in self._folder.glob(f"{PASTE}*")
            }
        except (OSError, ValueError):
            return "", {}
        self._pasted = set(pastes)
        return line, pastes

    def _take_folder(self) -> None:
        for number in range(1, TERMINALS_MAX + 1):
            self._folder = self._home / ("draft" if number == 1 else f"draft-{number}")
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
            else:
                self._lock = lock
                return

    def keep(self, line: str, pastes: dict[int, str]) -> None:
        try:
            if not line:
                self._forget()
                return
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for number in pastes.keys() - self._pasted:
                # Written once: they are large and do not change.
                self._write(f"{PASTE}{number}", pastes[number])
                self._pasted.add(number)
            self._write(LINE, line)
        except (OSError, UnicodeError):
            return

    def _write(self, name: str, text: str) -> None:
        new = self._folder / f"new-{name}"
        new.write_text(text, encoding="utf-8")
        os.replace(new, self._folder / name)

    def _forget(self) -> None:
        for name in (LINE, *(f"{PASTE}{number}" for number in self._pasted)):
            (self._folder / name).unlink(missing_ok=True)
        self._pasted.clear()


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


class KeptHistory(FileHistory):
    """Kept in a file; if that cannot be read or written, only the history is lost."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError, UnicodeError):
            super().store_string(string)
