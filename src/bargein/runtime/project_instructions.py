"""`AGENTS.md`: a project's instructions to agents, added to the system text.

The files are read from the workspace upwards, to the root of its repository or to the user's home
directory. Outside of both only the workspace itself counts, so that nobody can plant instructions
in a folder that several users share. The nearest file comes last, and is the last to be cut if the
files together are too long.

Each turn checks the files when it begins, in a thread under the turn's token, and reads changed
files again. A file system that does not answer delays one turn by at most two seconds: while that
thread hangs, no other is started. Only regular files are opened.
"""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bargein.cancel import Token, run_thread

NAME = "AGENTS.md"
BYTES_MAX = 64 * 1024
READ_S = 2.0
GRACE_S = 0.1

HEADING = "Instructions of the project, from {name} files. The last one is the nearest:"
HANGS = "[The project's instructions could not be read: their file system does not answer.]"


class ReadFile(NamedTuple):
    """A file as it was read. `mark` changes when the file does."""

    mark: tuple[int, int, int]
    text: str
    size: int


Look = Callable[[Path, Path, "ReadFile | None", int], "ReadFile | str | None"]
"""Reads one file: returns None if it does not exist, a text with the reason if it cannot be read,
and `before` if the file has not changed since."""


class ProjectInstructions:
    """Called with the turn's token, returns the text. Tests replace `look`."""

    def __init__(
        self,
        workspace: Path,
        home: Path | None,
        *,
        bytes_max: int = BYTES_MAX,
        look: Look | None = None,
    ) -> None:
        self._workspace = workspace
        self._home = home
        self._bytes_max = bytes_max
        self._look = look or look_at
        self._seen: dict[Path, ReadFile] = {}
        self._hanging: list[_Reading] = []

    async def __call__(self, token: Token) -> str:
        self._hanging = [each for each in self._hanging if not each.over]
        if self._hanging:
            return HANGS
        reading = _Reading(self._read)
        with token.child(NAME, timeout_s=READ_S) as source:
            outcome = await run_thread(reading, token=source.token, grace_s=GRACE_S, name=NAME)
        if outcome.status == "abandoned":
            self._hanging.append(reading)
        token.check()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value if outcome.value is not None else HANGS

    def _read(self) -> str:
        top, folders = folders_of(self._workspace, self._home)
        pieces: list[str] = []
        room = self._bytes_max
        for folder in reversed(folders):
            path = folder / NAME
            seen = self._look(path, top, self._seen.get(path), self._bytes_max)
            if isinstance(seen, str):
                pieces.append(f"[{path}: {seen}]")
            elif seen is not None:
                self._seen[path] = seen
                pieces.append(_piece(path, seen, room))
                room = max(0, room - seen.size)
        if not pieces:
            return ""
        return "\n\n".join([HEADING.format(name=NAME), *reversed(pieces)])


class _Reading:
    """One reading of the files, in its own thread, which may never return."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self.over = False

    def __call__(self) -> str:
        try:
            return self._read()
        finally:
            self.over = True


def folders_of(workspace: Path, home: Path | None) -> tuple[Path, Sequence[Path]]:
    """Returns the top folder, and all folders from there down to the workspace."""
    workspace = workspace.resolve()
    home = home.resolve() if home is not None else None
    upwards = [workspace, *workspace.parents]
    for number, folder in enumerate(upwards):
        if folder == home or (folder / ".git").exists():
            return folder, upwards[number::-1]
    return workspace, [workspace]


def look_at(
    path: Path, top: Path, before: ReadFile | None, bytes_max: int
) -> ReadFile | str | None:
    """Reads a file. Never opens a pipe: that would wait for a writer."""
    try:
        if not path.resolve(strict=True).is_relative_to(top):
            return "not read, because it leads out of the project"
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "not read, because it is not an ordinary file"
        if before is not None and before.mark == _mark(found):
            return before
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            # Another file may have taken its place since the check above.
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return "not read, because it is not an ordinary file"
            body = file.read(bytes_max)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except RuntimeError:
        # Before Python 3.13, circular links raise this.
        return "cannot be read: it leads in a circle"
    return ReadFile(_mark(found), body.decode(errors="replace"), found.st_size)


def _mark(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _piece(path: Path, seen: ReadFile, room: int) -> str:
    body = seen.text.encode()[:room].decode(errors="ignore")
    cut = f"\n[{path} is cut here: it has {seen.size} bytes]" if seen.size > room else ""
    return f"{path}:\n{body.strip()}{cut}"
