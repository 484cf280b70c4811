"""Decides what an undo changes, before anything is changed.

An interval is a pair of snapshots around what the agent did: a call, or a turn. Its changes are the
agent's; what changed outside of all intervals was somebody else's doing. So the intervals are gone
through from the last to the first, each path on its own:

- The path is as the interval left it: it goes back to what it was when the interval began.
- It is already what it was then: nothing is to be done.
- It is something else: somebody changed it since. It is kept, and named. The user may choose to
  take it back all the same.
- A snapshot does not cover it: nobody knows what it was. It is kept, and named.

Redo is the undo of an undo: its interval is the pair of snapshots that the undo took.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bargein.checkpoints.repository import Repository, split
from bargein.checkpoints.snapshot import Snapshot, with_parents

LINK = "120000"
_FILE_MODES = {"100644": 0o644, "100755": 0o755}


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at a path: a file with its blob and mode, or a link, whose blob is its target."""

    blob: str
    mode: int
    link: bool = False


class Why(StrEnum):
    """Why a path is kept as it is."""

    CHANGED = "changed since"
    UNCOVERED = "not covered"


@dataclass(frozen=True, slots=True)
class Step:
    """One path: what the plan saw there, and what is to be there. None is nothing."""

    path: bytes
    seen: Entry | None
    wanted: Entry | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`make` are folders with their modes, parents first. `remove` are folders that are removed if
    they are empty by then, the deepest first."""

    steps: tuple[Step, ...] = ()
    make: tuple[tuple[bytes, int], ...] = ()
    remove: tuple[bytes, ...] = ()
    kept: tuple[tuple[bytes, Why], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.steps or self.make or self.remove)


Interval = tuple[Snapshot, Snapshot]
Entries = dict[bytes, Entry]


def plan_undo(
    repository: Repository,
    intervals: Sequence[Interval],
    now: Snapshot,
    *,
    overrule: Collection[bytes] = (),
) -> Plan:
    """Plans to take the intervals back; they are in the order in which they happened. `overrule`
    are paths that go back although somebody changed them since."""
    here = entries(repository, now)
    wanted: dict[bytes, Entry | None] = {}
    kept: dict[bytes, Why] = {}
    made: set[bytes] = set()
    lost: dict[bytes, int] = {}
    for before, after in reversed(intervals):
        for path, then, left in changes(repository, before, after):
            if path in kept:
                continue
            current = wanted.get(path, here.get(path))
            why = _why_kept(path, then, left, current, before, now, path in overrule)
            if why is not None:
                kept[path] = why
                wanted.pop(path, None)
            elif current != then:
                wanted[path] = then
        new, gone = _folders(repository, before, after)
        made = (made | new) - gone.keys()
        lost = {path: mode for path, mode in lost.items() if path not in new} | gone
    steps = [
        Step(path, here.get(path), entry)
        for path, entry in sorted(wanted.items())
        if here.get(path) != entry
    ]
    return Plan(
        tuple(steps),
        tuple(sorted(lost.items())),
        tuple(sorted(made, reverse=True)),
        tuple(sorted(kept.items())),
    )


def _why_kept(
    path: bytes,
    then: Entry | None,
    left: Entry | None,
    current: Entry | None,
    before: Snapshot,
    now: Snapshot,
    overruled: bool,
) -> Why | None:
    if (then is None and not before.covers(path)) or (current is None and not now.covers(path)):
        return Why.UNCOVERED
    if current in (then, left) or overruled:
        return None
    return Why.CHANGED


def entries(repository: Repository, snapshot: Snapshot) -> Entries:
    """Everything that a snapshot has."""
    found: Entries = {}
    for line in split(repository.git("ls-tree", "-r", "-z", snapshot.files)):
        head, _, path = line.partition(b"\t")
        mode, _, blob = head.decode().split()
        found[path] = _entry(snapshot, path, mode, blob)
    return found


def changes(
    repository: Repository, before: Snapshot, after: Snapshot
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """Every path that differs between two snapshots, with what each has there."""
    fields = split(repository.git("diff-tree", "-r", "-z", "--no-renames", before.files, after.files))
    told: set[bytes] = set()
    for head, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old, new, _ = head.decode().lstrip(":").split()
        told.add(path)
        then = _entry(before, path, old_mode, old) if old.strip("0") else None
        left = _entry(after, path, new_mode, new) if new.strip("0") else None
        if then != left:
            yield path, then, left
    only_modes = {
        path
        for path in before.modes.keys() | after.modes.keys()
        if before.modes.get(path) != after.modes.get(path) and path not in told
    }
    if only_modes:
        old_entries, new_entries = entries(repository, before), entries(repository, after)
        for path in sorted(only_modes & old_entries.keys() & new_entries.keys()):
            yield path, old_entries[path], new_entries[path]


def _entry(snapshot: Snapshot, path: bytes, mode: str, blob: str) -> Entry:
    if mode == LINK:
        return Entry(blob, 0, link=True)
    return Entry(blob, snapshot.modes.get(path, _FILE_MODES[mode]))


def _folders(
    repository: Repository, before: Snapshot, after: Snapshot
) -> tuple[set[bytes], dict[bytes, int]]:
    """The folders that an interval made, and those that it removed."""
    then, left = _all_folders(repository, before), _all_folders(repository, after)
    new = {path for path in left.keys() - then.keys() if before.covers(path)}
    gone = {path: then[path] for path in then.keys() - left.keys() if after.covers(path)}
    return new, gone


def _all_folders(repository: Repository, snapshot: Snapshot) -> dict[bytes, int]:
    listed = split(repository.git("ls-tree", "-r", "-d", "-z", "--name-only", snapshot.files))
    found = {path: snapshot.modes.get(path, 0o755) for path in listed}
    for path, mode in snapshot.folders.items():
        for parent in with_parents(os.path.dirname(path)):
            found.setdefault(parent, snapshot.modes.get(parent, 0o755))
        found[path] = mode
    return found
