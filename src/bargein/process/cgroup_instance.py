"""Where this program may make cgroups, and the one directory there, its instance, that holds them.

Any thread. Nothing here waits.
"""

import fcntl
import os
import secrets
from pathlib import Path

from bargein.process.helper import cgroups

_TRIES = 10


class NoCgroup(OSError):
    """cgroup v2 cannot be used here; the message says why."""


def own_directory() -> Path:
    """The directory of the cgroup v2 that this process is in, wherever that is mounted."""
    path = _own_path(Path("/proc/self/cgroup").read_text())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, details = line.partition(" - ")
        if details.split(" ", 1)[0] != "cgroup2":
            continue
        root, mount_point = (_unescape(field) for field in fields.split(" ")[3:5])
        inside = os.path.relpath(path, root)
        if not inside.startswith(".."):
            return Path(mount_point, inside)
    raise NoCgroup("no cgroup2 file system is mounted that shows our own cgroup")


def _own_path(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise NoCgroup("this process is not in a cgroup v2")


def _unescape(field: str) -> str:
    """The kernel writes blanks and backslashes of a path as octal numbers."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, character)
    return field


class Instance:
    """One directory of ours, locked while we or our helper live.

    A note in `home` says where it is, because the next start may be in another cgroup and would
    not find it among its neighbours.
    """

    def __init__(self, base: Path, home: Path | None) -> None:
        self.directory, self.lock = _make_locked(base)
        self._note = _notes(home) / self.directory.name if home is not None else None
        if self._note is not None:
            self._note.parent.mkdir(parents=True, exist_ok=True)
            # Whole or not at all: the next start throws away a note that names no directory.
            draft = self._note.with_name(f".{self._note.name}")
            draft.write_text(f"{self.directory}\n")
            draft.replace(self._note)

    def close(self) -> None:
        if cgroups.remove(str(self.directory)) and self._note is not None:
            self._note.unlink(missing_ok=True)
        os.close(self.lock)


def _make_locked(base: Path) -> tuple[Path, int]:
    """Another start may take our new directory for that of a dead program before we have locked
    it, and remove it. Then we try again."""
    for _ in range(_TRIES):
        directory = base / f"{cgroups.INSTANCE_PREFIX}{secrets.token_hex(8)}"
        directory.mkdir()
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if directory.is_dir():
                return directory, lock
        except BlockingIOError:
            pass
        os.close(lock)
    raise NoCgroup(f"could not make and lock a cgroup of our own in {base}")


def instances_around(base: Path, home: Path | None) -> list[str]:
    """Every instance that may be of a dead program: those beside ours, and those noted in
    `home`."""
    noted = [_noted(note) for note in _all_notes(home)]
    beside = cgroups.instances_in(str(base))
    return list(dict.fromkeys([*beside, *(each for each in noted if each is not None)]))


def forget_what_is_gone(home: Path | None) -> None:
    """Remove the notes about instances that are gone."""
    for note in _all_notes(home):
        if _noted(note) is None:
            note.unlink(missing_ok=True)


def _all_notes(home: Path | None) -> list[Path]:
    return [] if home is None else sorted(_notes(home).glob(f"{cgroups.INSTANCE_PREFIX}*"))


def _noted(note: Path) -> str | None:
    try:
        directory = Path(note.read_text().strip())
    except OSError:
        return None
    return str(directory) if directory.name == note.name and directory.is_dir() else None


def _notes(home: Path) -> Path:
    return home / "cgroups"
