"""Decides what an undo changes, before anything is changed.

An interval is a pair of snapshots around what the agent did: a call, or a turn. Its changes are the
agent's; what changed outside of all intervals was somebody else's doing. So the intervals are gone
through from the last to the first, each path on its own:

- The path is as the interval left it: it goes back to what it was when the interval began.
- It is already what it was then: nothing is to be done.
- It is something else: somebody changed it since. It is kept, and named. The user may choose to
  take it back all the same.
- Calls of other sessions were at work in the same interval: nobody knows whose doing it is. It is
  kept, and named, and the user may choose.
- A snapshot does not cover it: nobody knows what it was. It is kept, and named.

Redo is the undo of an undo. Its interval ends with what the undo itself left (`after_undo`) and not
with a look at the files, which the user may have changed while the undo worked.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bargein.checkpoints.repository import Repository, split
from bargein.checkpoints.snapshot import Snapshot, keep, with_parents

LINK = "120000"
TREE = "040000"
_FILE_MODES = {"100644": 0o644, "100755": 0o755}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What is at a path: a file with its blob and mode, or a link, whose blob is its target."""

    blob: str
    mode: int
    link: bool = False

    @property
    def git_mode(self) -> str:
        if self.link:
            return LINK
        return "100755" if self.mode & 0o100 else "100644"


class WhyKept(StrEnum):
    """Why a path is kept as it is."""

    CHANGED = "changed since"
    SHARED = "another session worked here too"
    UNCOVERED = "not covered"
    LOST = "gone, and not covered"


@dataclass(frozen=True, slots=True)
class UndoStep:
    """One path: what the plan saw there, and what is to be there. None is nothing."""

    path: bytes
    seen: FileEntry | None
    wanted: FileEntry | None


@dataclass(frozen=True, slots=True)
class FolderMode:
    """The mode of a folder: it becomes `wanted` if it still is `seen`."""

    path: bytes
    seen: int
    wanted: int


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """`make` are folders with their modes, parents first. `remove` are folders that are removed if
    they are empty by then, the deepest first."""

    steps: tuple[UndoStep, ...] = ()
    make: tuple[tuple[bytes, int], ...] = ()
    remove: tuple[bytes, ...] = ()
    modes: tuple[FolderMode, ...] = ()
    kept: tuple[tuple[bytes, WhyKept], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.steps or self.make or self.remove or self.modes)


Interval = tuple[Snapshot, Snapshot]
Entries = dict[bytes, FileEntry]


@dataclass(slots=True)
class Changes:
    """What differs between two snapshots: files with what each has there, folders that only the
    second has, folders that only the first has, and modes of folders that both have."""

    files: dict[bytes, tuple[FileEntry | None, FileEntry | None]] = field(default_factory=dict)
    made: set[bytes] = field(default_factory=set)
    gone: dict[bytes, int] = field(default_factory=dict)
    modes: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def paths(self) -> set[bytes]:
        return {*self.files, *self.made, *self.gone, *self.modes}

    def without_folders(self, paths: Collection[bytes]) -> "Changes":
        """The same without what happened to these folders."""
        return Changes(
            self.files,
            {path for path in self.made if path not in paths},
            {path: mode for path, mode in self.gone.items() if path not in paths},
            {path: modes for path, modes in self.modes.items() if path not in paths},
        )


def plan_undo(
    repository: Repository,
    intervals: Sequence[Interval],
    now: Snapshot,
    *,
    shared: Collection[Interval] = (),
    overrule: Collection[bytes] = (),
) -> UndoPlan:
    """Plans to take the intervals back; they are in the order in which they happened. `shared` are
    those in which others were at work too. `overrule` are paths that go back although somebody
    changed them since, or others may have."""
    here: Entries | None = None
    wanted: dict[bytes, FileEntry | None] = {}
    kept: dict[bytes, WhyKept] = {}
    made: set[bytes] = set()
    lost: dict[bytes, int] = {}
    modes: dict[bytes, FolderMode] = {}
    for before, after in reversed(intervals):
        if before.id == after.id:
            continue
        if here is None:
            here = entries(repository, now)
        changed = changes(repository, before, after)
        others = changed.paths.difference(overrule) if (before, after) in shared else set[bytes]()
        changed = changed.without_folders(others)
        folders = others - changed.files.keys() - kept.keys()
        kept |= dict.fromkeys(folders, WhyKept.SHARED)
        for path, (then, left) in changed.files.items():
            if path in kept:
                continue
            current = wanted.get(path, here.get(path))
            why = _why_kept(path, then, left, current, before, now, path in overrule)
            if path in others and current != then:
                why = why or WhyKept.SHARED
            if why is not None:
                kept[path] = why
                wanted.pop(path, None)
            else:
                wanted[path] = then
        made = (made | {each for each in changed.made if before.covers(each)}) - changed.gone.keys()
        lost = {path: mode for path, mode in lost.items() if path not in changed.made}
        lost |= {path: mode for path, mode in changed.gone.items() if after.covers(path)}
        for path in after.uncovered.keys() - before.uncovered.keys():
            if path in now.uncovered:
                kept.setdefault(path, WhyKept.UNCOVERED)
        gone = before.uncovered.keys() - after.uncovered.keys() - now.uncovered.keys()
        if gone:
            there = {each for path in here for each in with_parents(path)} | now.folders.keys()
            kept |= dict.fromkeys(gone - there - kept.keys() - {b""}, WhyKept.LOST)
        # A folder that was made here is another one than the folder of that name before.
        modes = {path: change for path, change in modes.items() if path not in changed.made}
        for path, (old, new) in changed.modes.items():
            later = modes.get(path)
            modes[path] = FolderMode(path, later.seen if later else new, old)
    here = here or {}
    steps = [
        UndoStep(path, here.get(path), entry)
        for path, entry in sorted(wanted.items())
        if here.get(path) != entry
    ]
    lost |= {path: change.wanted for path, change in modes.items() if path in lost}
    return UndoPlan(
        tuple(steps),
        tuple(sorted(lost.items())),
        tuple(sorted(_folders_there(made, here, now), reverse=True)),
        tuple(modes[path] for path in sorted(modes) if path not in lost),
        tuple(sorted(kept.items())),
    )


def _folders_there(folders: Collection[bytes], here: Entries, now: Snapshot) -> list[bytes]:
    """Those of the folders that are there now."""
    if not folders:
        return []
    files = sorted(here)

    def has_file(folder: bytes) -> bool:
        place = bisect_left(files, folder + b"/")
        return place < len(files) and files[place].startswith(folder + b"/")

    return [folder for folder in folders if folder in now.folders or has_file(folder)]


def _why_kept(
    path: bytes,
    then: FileEntry | None,
    left: FileEntry | None,
    current: FileEntry | None,
    before: Snapshot,
    now: Snapshot,
    overruled: bool,
) -> WhyKept | None:
    if (then is None and not before.covers(path)) or (current is None and not now.covers(path)):
        return WhyKept.UNCOVERED
    if current in (then, left) or overruled:
        return None
    return WhyKept.CHANGED


def after_undo(
    repository: Repository, now: Snapshot, plan: UndoPlan, changed: Collection[bytes]
) -> Snapshot:
    """Keeps the state that an undo left, if nobody else had changed anything since `now`. `changed`
    are the paths of the plan that it did change."""
    done = set(changed)
    index = repository.directory / "index.undo"
    lines: list[bytes] = []
    modes = dict(now.modes)
    for step in sorted(plan.steps, key=lambda step: step.wanted is not None):
        if step.path not in done:
            continue
        modes.pop(step.path, None)
        git_mode, blob = "0", "0" * 40
        if step.wanted is not None:
            git_mode, blob = step.wanted.git_mode, step.wanted.blob
            if not step.wanted.link and step.wanted.mode != _FILE_MODES[git_mode]:
                modes[step.path] = step.wanted.mode
        lines.append(b"%s %s\t%s\0" % (git_mode.encode(), blob.encode(), step.path))
    repository.git("read-tree", now.files, index=index)
    feed = b"".join(lines)
    repository.git(
        "update-index", "-z", "--add", "--replace", "--index-info", feed=feed, index=index
    )
    files = repository.git("write-tree", index=index).decode().strip()
    index.unlink()
    return keep(
        repository, files, modes, _folders_after(repository, now, plan, done), now.uncovered
    )


def _folders_after(
    repository: Repository, now: Snapshot, plan: UndoPlan, done: set[bytes]
) -> dict[bytes, int]:
    """All folders with their modes."""
    listed = split(repository.git("ls-tree", "-r", "-d", "-z", "--name-only", now.files))
    folders = {path: now.folder_mode(path) for path in (*listed, *now.folders)}
    for path in plan.remove:
        if path in done:
            folders.pop(path, None)
    folders |= {path: mode for path, mode in plan.make if path in done}
    for each in plan.modes:
        if each.path in done:
            folders[each.path] = each.wanted
    for step in plan.steps:
        if step.wanted is not None and step.path in done:
            *parents, _ = reversed(list(with_parents(step.path)))
            for folder in parents:
                folders.setdefault(folder, 0o755)
    return folders


def entries(repository: Repository, snapshot: Snapshot) -> Entries:
    """Everything that a snapshot has."""
    found: Entries = {}
    for path, (mode, blob) in _listing(repository, snapshot).items():
        entry = _entry(snapshot, path, mode, blob)
        if entry is not None:
            found[path] = entry
    return found


def _listing(repository: Repository, snapshot: Snapshot) -> dict[bytes, tuple[str, str]]:
    found: dict[bytes, tuple[str, str]] = {}
    for line in split(repository.git("ls-tree", "-r", "-z", snapshot.files)):
        head, _, path = line.partition(b"\t")
        mode, _, blob = head.decode().split()
        found[path] = mode, blob
    return found


def changes(repository: Repository, before: Snapshot, after: Snapshot) -> Changes:
    """Everything that differs between two snapshots."""
    found = Changes()
    trees_gone: set[bytes] = set()
    trees_made: set[bytes] = set()
    listing = ("diff-tree", "-r", "-t", "-z", "--no-renames", before.files, after.files)
    fields = split(repository.git(*listing)) if before.files != after.files else []
    for head, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old, new, _ = head.decode().lstrip(":").split()
        if TREE in (old_mode, new_mode):
            if old_mode != TREE:
                trees_made.add(path)
            if new_mode != TREE:
                trees_gone.add(path)
        then = _entry(before, path, old_mode, old)
        left = _entry(after, path, new_mode, new)
        if then != left:
            earlier = found.files.get(path, (None, None))
            found.files[path] = (then or earlier[0], left or earlier[1])
    then_there = trees_gone | before.folders.keys()
    left_there = trees_made | after.folders.keys()
    found.made = left_there - then_there
    found.gone = {path: before.folder_mode(path) for path in then_there - left_there}
    _add_modes(repository, before, after, found)
    return found


def _add_modes(repository: Repository, before: Snapshot, after: Snapshot, found: Changes) -> None:
    """Adds files and folders that both have, and that differ by a mode which git does not keep."""
    modes = before.modes.items() ^ after.modes.items()
    folders = {path[:-1] for path, _ in modes if path.endswith(b"/")}
    folders |= {path for path, _ in before.folders.items() ^ after.folders.items()}
    for path in folders - found.made - found.gone.keys():
        old, new = before.folder_mode(path), after.folder_mode(path)
        if old != new:
            found.modes[path] = (old, new)
    files = {path for path, _ in modes if not path.endswith(b"/")} - found.files.keys()
    if files:
        # The trees agree about these, so one listing has the blobs of both.
        listed = _listing(repository, after)
        for path in files & listed.keys():
            mode, blob = listed[path]
            found.files[path] = (
                _entry(before, path, mode, blob),
                _entry(after, path, mode, blob),
            )


def _entry(snapshot: Snapshot, path: bytes, mode: str, blob: str) -> FileEntry | None:
    if mode == LINK:
        return FileEntry(blob, 0, link=True)
    if mode not in _FILE_MODES:
        return None  # a folder, or nothing
    return FileEntry(blob, snapshot.modes.get(path, _FILE_MODES[mode]))
