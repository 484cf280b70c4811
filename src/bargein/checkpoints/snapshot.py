"""Takes a snapshot of a workspace: what every covered file holds, and what is not covered.

A snapshot is one tree of git's, so that one id stands for all of it, and the same state has the
same id:

    files/       the tree of all covered files, as git keeps it
    modes        the modes that git does not keep, by path; a folder's path ends with a slash
    folders      folders without any covered file, which git does not keep, with their modes
    uncovered    what was there and is in none of these, by path, with the reason

Git's index finds out which files changed since the last snapshot, so that an unchanged file costs
one look at its inode. While a snapshot is taken others may write: a file is kept as it was at some
moment in between.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from bargein.checkpoints.repository import (
    CheckpointFailed,
    Repository,
    exclude_rules,
    join,
    split,
)

UNCOVERED_MAX = 20_000
"""So many uncovered paths are named. A snapshot with more says so, and no undo that relies on it
deletes anything."""

_PLAIN_MODES = (0o644, 0o755)
_FOLDER_MODE = 0o755
_TRIES = 3


class NotCovered(StrEnum):
    """Why a path is not covered."""

    IGNORED = "ignored"
    TOO_LARGE = "too large"
    OTHER_FILE_SYSTEM = "on another file system"
    UNREADABLE = "unreadable"
    SPECIAL = "neither a file, a folder nor a link"
    REPOSITORY = "the inside of a repository"
    TOO_MANY = "more than are named"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`id` names the whole of it, `files` its tree of files. `covers` tells whether a path that is
    not in it was certainly not there."""

    id: str
    files: str
    modes: dict[bytes, int] = field(default_factory=dict)
    folders: dict[bytes, int] = field(default_factory=dict)
    uncovered: dict[bytes, NotCovered] = field(default_factory=dict)

    def covers(self, path: bytes) -> bool:
        if b"" in self.uncovered:
            return False
        return not any(each in self.uncovered for each in with_parents(path))

    def folder_mode(self, path: bytes) -> int:
        return self.folders.get(path, self.modes.get(path + b"/", _FOLDER_MODE))


def take(repository: Repository) -> Snapshot:
    """Takes a snapshot and keeps it. Raises `CheckpointFailed`."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return _take(repository)
        except _TooMuch:
            raise
        except CheckpointFailed:
            if not tries_left:
                raise
            # A file vanished or became unreadable between two looks; or the index names an object
            # that a power failure took, and only a new index will do.
            if tries_left == 1:
                repository.index.unlink(missing_ok=True)
    raise AssertionError("unreachable")


def read(repository: Repository, name: str) -> Snapshot:
    """Reads a snapshot by its id."""
    objects = repository.read_objects(
        [f"{name}^{{tree}}", *(f"{name}:{each}" for each in ("modes", "folders", "uncovered"))]
    )
    tree, modes, folders, uncovered = objects
    place = tree.index(b"40000 files\0") + len(b"40000 files\0")
    files = tree[place : place + 20].hex()
    reasons = {path: NotCovered(reason.decode()) for path, reason in _pairs(uncovered)}
    return Snapshot(name, files, _numbers(modes), _numbers(folders), reasons)


class _TooMuch(CheckpointFailed):
    """The workspace is larger than the bounds."""


def _take(repository: Repository) -> Snapshot:
    root = os.fsencode(repository.workspace)
    sorting = _Sorting(repository, root)
    covered = sorting.bring_up_to_date()
    if len(covered) > repository.bounds.files_max:
        raise _TooMuch(
            f"{repository.workspace} has {len(covered)} files that are not ignored; snapshots are "
            f"taken of {repository.bounds.files_max} at most. Ignore more, or choose a folder below"
        )
    modes = _modes_of(root, covered)
    folders, uncovered = _rest(repository, root, frozenset(covered))
    uncovered |= sorting.uncovered
    if len(uncovered) > UNCOVERED_MAX:
        named = sorted(uncovered)[:UNCOVERED_MAX]
        uncovered = {path: uncovered[path] for path in named} | {b"": NotCovered.TOO_MANY}
    files = repository.git("write-tree").decode().strip()
    return keep(repository, files, modes, folders, uncovered, covered=covered)


def keep(
    repository: Repository,
    files: str,
    modes: dict[bytes, int],
    folders: dict[bytes, int],
    uncovered: dict[bytes, NotCovered],
    *,
    covered: Iterable[bytes] | None = None,
) -> Snapshot:
    """Keeps a snapshot of the tree `files`. `modes` are those of files and `folders` has all
    folders; `covered` spares to list the tree."""
    if covered is None:
        covered = repository.paths("ls-tree", "-r", "-z", "--name-only", files)
    with_files: set[bytes] = set()
    for path in covered:
        folder = os.path.dirname(path)
        while folder and folder not in with_files:
            with_files.add(folder)
            folder = os.path.dirname(folder)
    modes = {path: mode for path, mode in modes.items() if not path.endswith(b"/")}
    for path in with_files & folders.keys():
        if folders[path] != _FOLDER_MODE:
            modes[path + b"/"] = folders[path]
    bare = {path: mode for path, mode in folders.items() if path not in with_files}
    texts = {"modes": _lines(modes), "folders": _lines(bare), "uncovered": _reasons(uncovered)}
    return Snapshot(repository.keep(files, texts), files, modes, bare, uncovered)


class _Sorting:
    """Decides for every path that changed since the last snapshot whether it is covered, and brings
    the index up to date with those that are."""

    def __init__(self, repository: Repository, root: bytes) -> None:
        self._repository = repository
        self._root = root
        self._device = os.lstat(root).st_dev
        self._new_bytes = 0
        self.uncovered: dict[bytes, NotCovered] = {}

    def bring_up_to_date(self) -> list[bytes]:
        """Returns the covered paths."""
        covered, changed = self._list()
        add: list[bytes] = []
        remove: list[bytes] = []
        for path in self._whole(changed):
            found = self._look(path)
            if isinstance(found, NotCovered):
                self.uncovered[path] = found
            if found is True:
                add.append(path)
            elif path in covered:
                remove.append(path)
        if not add and not remove:
            return list(covered)
        git = self._repository.git
        if remove:
            git("update-index", "-z", "--force-remove", "--stdin", feed=join(remove))
        if add:
            git("update-index", "-z", "--add", "--replace", "--stdin", feed=join(add))
        return self._repository.paths("ls-files", "-z")

    def _list(self) -> tuple[dict[bytes, None], dict[bytes, None]]:
        """The paths in the index, and those that are new, changed or gone."""
        rules = exclude_rules(self._repository)
        listing = ("ls-files", "-z", "-t", "-c", "-o", "-m", "-d", "--exclude-standard")
        covered: dict[bytes, None] = {}
        changed: dict[bytes, None] = {}
        for line in self._repository.paths(*listing, *rules):
            (covered if line[:1] == b"H" else changed)[line[2:]] = None
        return covered, changed

    def _whole(self, listed: Iterable[bytes]) -> Iterator[bytes]:
        """Git shows a repository inside the workspace as one path; its files are listed for it."""
        waiting = list(listed)
        while waiting:
            path = waiting.pop()
            if path.endswith(b"/"):
                waiting += self._inside(path)
            else:
                yield path

    def _inside(self, folder: bytes) -> list[bytes]:
        repository = self._repository
        none = repository.directory / "index.none"
        inside = os.path.join(self._root, folder)
        listing = ("ls-files", "-z", "-o", "--exclude-standard")
        try:
            found = split(repository.git(*listing, index=none, work_tree=inside))
        except (CheckpointFailed, OSError):
            self.uncovered[folder.rstrip(b"/")] = NotCovered.UNREADABLE
            return []
        return [folder + each for each in found]

    def _look(self, path: bytes) -> NotCovered | bool:
        """Whether the path is there, or the reason for which it is not covered."""
        full = os.path.join(self._root, path)
        try:
            found = os.lstat(full)
        except OSError:
            return False
        parts = path.lower().split(b"/")
        if b".git" in parts:
            return NotCovered.REPOSITORY  # git keeps no such name, in whatever case
        if stat.S_ISLNK(found.st_mode):
            return NotCovered.SPECIAL if parts[-1] == b".gitmodules" else True
        if stat.S_ISDIR(found.st_mode):
            return False  # a file became a folder: the files in it are listed by themselves
        if not stat.S_ISREG(found.st_mode):
            return NotCovered.SPECIAL
        if found.st_dev != self._device:
            return NotCovered.OTHER_FILE_SYSTEM
        if found.st_size > self._repository.bounds.file_bytes_max:
            return NotCovered.TOO_LARGE
        if not os.access(full, os.R_OK):
            return NotCovered.UNREADABLE
        self._new_bytes += found.st_size
        if self._new_bytes > self._repository.bounds.new_bytes_max:
            raise _TooMuch(
                f"more than {self._repository.bounds.new_bytes_max >> 20} MiB changed in "
                f"{self._repository.workspace} since the last snapshot; ignore more, or choose a "
                "folder below"
            )
        return True


def _modes_of(root: bytes, paths: Iterable[bytes]) -> dict[bytes, int]:
    """The modes of files that differ from what git would restore."""
    modes: dict[bytes, int] = {}
    for path in paths:
        mode = _mode(root, path)
        if mode is not None and mode not in _PLAIN_MODES:
            modes[path] = mode
    return modes


def _mode(root: bytes, path: bytes) -> int | None:
    try:
        found = os.lstat(os.path.join(root, path))
    except OSError:
        return None
    return None if stat.S_ISLNK(found.st_mode) else stat.S_IMODE(found.st_mode)


def _rest(
    repository: Repository, root: bytes, covered: frozenset[bytes]
) -> tuple[dict[bytes, int], dict[bytes, NotCovered]]:
    """All folders with their modes, and what is there beside the covered files. Looks into no
    folder of which everything is ignored."""
    listing = ("ls-files", "-z", "-o", "-i", "--directory", "--exclude-standard")
    listed = repository.paths(*listing, *exclude_rules(repository))
    uncovered = {path.rstrip(b"/"): NotCovered.IGNORED for path in listed}
    folders: dict[bytes, int] = {}
    device = os.lstat(root).st_dev
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                found = list(entries)
            mode = os.lstat(os.path.join(root, folder))
        except OSError:
            uncovered[folder] = NotCovered.UNREADABLE
            continue
        if mode.st_dev != device:
            uncovered[folder] = NotCovered.OTHER_FILE_SYSTEM
            continue
        if folder:
            folders[folder] = stat.S_IMODE(mode.st_mode)
        for entry in found:
            path = os.path.join(folder, entry.name)
            if path in uncovered or path in covered:
                continue
            if entry.name.lower() == b".git":
                uncovered[path] = NotCovered.REPOSITORY
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                is_plain = entry.is_file(follow_symlinks=False) or entry.is_symlink()
                uncovered[path] = NotCovered.IGNORED if is_plain else NotCovered.SPECIAL
    return folders, uncovered


def with_parents(path: bytes) -> Iterator[bytes]:
    while path:
        yield path
        path = os.path.dirname(path)


def _lines(numbers: dict[bytes, int]) -> bytes:
    return b"".join(b"%o %s\0" % (number, path) for path, number in sorted(numbers.items()))


def _reasons(uncovered: dict[bytes, NotCovered]) -> bytes:
    return b"".join(
        reason.replace(" ", "_").encode() + b" " + path + b"\0"
        for path, reason in sorted(uncovered.items())
    )


def _pairs(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in split(text):
        head, _, path = line.partition(b" ")
        yield path, head.replace(b"_", b" ")


def _numbers(text: bytes) -> dict[bytes, int]:
    return {path: int(head, 8) for path, head in _pairs(text)}
