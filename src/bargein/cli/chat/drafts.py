"""Keeps unsent input through a crash, a closed window or a lost connection."""

import os
from pathlib import Path

LINE = "line"
PASTE = "paste-"


class Draft:
    """One per data directory, which one program uses at a time. Written with each change; a failed
    write costs only the draft."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "draft"
        self._pasted: set[int] = set()

    def kept(self) -> tuple[str, dict[int, str]]:
        """Returns the line and its pastes."""
        try:
            line = (self._folder / LINE).read_text(encoding="utf-8")
            pastes = {
                int(found.name.removeprefix(PASTE)): found.read_text(encoding="utf-8")
                for found in self._folder.glob(f"{PASTE}*")
            }
        except (OSError, ValueError):
            return "", {}
        self._pasted = set(pastes)
        return line, pastes

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
