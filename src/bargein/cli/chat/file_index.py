"""Finds files of the folder for the menu after an `@`, by any of their letters.

A thread reads the list. The menu uses the list that is there, and has it read again when it is some
seconds old. In a git repository git lists the files, without running any program that the
repository's own settings name, and leaves out what it ignores. Elsewhere folders that nobody means
(`.git`, `node_modules`) are left out.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bargein.cli.chat.picking import in_order

FILES_MAX = 50_000
OLD_S = 5.0
LIST_S = 5.0
_LEFT_OUT = frozenset({"node_modules", "__pycache__", "target", "venv"})
# Git fetches what a partial clone lacks, with the program that its settings name. Not each version
# knows both.
_NO_FETCH = ("env", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none")
_GIT = (*_NO_FETCH, "git", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false")


class FileIndex:
    """`refresh` has `read` called in a thread; the names it returns count from then on."""

    def __init__(self, folder: Path, refresh: Callable[["FileIndex"], None]) -> None:
        self._folder = folder
        self._refresh = refresh
        self._names: Sequence[str] = ()
        self._asked_at = -OLD_S

    def known(self) -> Sequence[str]:
        now = time.monotonic()
        if now - self._asked_at >= OLD_S:
            self._asked_at = now
            self._refresh(self)
        return self._names

    def read(self) -> None:
        """Blocking: for a thread."""
        self._names = list_files(self._folder)


def list_files(folder: Path) -> list[str]:
    """Returns the files below a folder by their paths in it, those that git ignores left out."""
    listed = _by_git(folder)
    return listed if listed is not None else _by_walking(folder)


def _by_git(folder: Path) -> list[str] | None:
    command = [*_GIT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, timeout=LIST_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ran.returncode != 0:
        return None
    names = ran.stdout.decode(errors="replace").split("\0")
    return [name for name in dict.fromkeys(names) if name][:FILES_MAX]


def _by_walking(folder: Path) -> list[str]:
    found: list[str] = []
    until = time.monotonic() + LIST_S
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            each for each in folders if not each.startswith(".") and each not in _LEFT_OUT
        )
        inside = os.path.relpath(place, folder)
        found += [os.path.normpath(os.path.join(inside, each)) for each in sorted(files)]
        if len(found) >= FILES_MAX or time.monotonic() > until:
            break
    return found[:FILES_MAX]


def matching(typed: str, names: Sequence[str], count_max: int) -> list[str]:
    """Returns the names that contain the typed letters in order, the best first: in one piece, in
    the file's own name, at a beginning, in a short path."""
    wanted = typed.lower()
    if not wanted:
        return []
    ranked = [
        (rank, len(name), name)
        for name in names
        if (rank := _rank(wanted, name.lower())) is not None
    ]
    return [name for _, _, name in sorted(ranked)[:count_max]]


def _rank(wanted: str, name: str) -> int | None:
    last = name.rpartition("/")[2]
    if last.startswith(wanted):
        return 0
    if wanted in last:
        return 1
    if wanted in name:
        return 2
    if in_order(wanted, last):
        return 3
    return 4 if in_order(wanted, name) else None
