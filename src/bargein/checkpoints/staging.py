"""A stage: a copy of the workspace in which a session works, until its changes are accepted.

Three snapshots decide everything. The *base* is what the stage began with; it is kept as a ref of
our repository. The *stage* and the *workspace* are what both have now.

- What differs between base and stage is staged. To accept it is the undo of an interval that
  begins with the stage and ends with the base: a path of the workspace that still is as in the base
  becomes as in the stage, and one that somebody changed meanwhile is kept and named.
- To refresh is the same in the other direction: a path of the stage that still is as in the base
  becomes as in the workspace.
- Where stage and workspace have the same, that is the base from then on (`_settled`). So nothing
  has to be written down about what was accepted, and a crash half-way is finished by the journal of
  the undo and by this rule.

A path that snapshots do not cover is copied when the stage is made, and never accepted. `.git` of
the workspace is not copied: commands see the real one, read only.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from bargein.checkpoints.plan import (
    Changes,
    FolderMode,
    UndoPlan,
    UndoStep,
    WhyKept,
    after_undo,
    changes,
    plan_undo,
)
from bargein.checkpoints.repository import CheckpointFailed, Repository, StageFolder
from bargein.checkpoints.restore import STAGE, restore
from bargein.checkpoints.snapshot import Snapshot, read, take, with_parents

ENTRIES_MAX = 1_000_000
_FICLONE = 0x40049409
_PIECE_BYTES = 1 << 20
_NOT_COVERED = "not covered by snapshots"
_OTHER_REASONS = {WhyKept.UNCOVERED: _NOT_COVERED, WhyKept.LOST: _NOT_COVERED}


class NothingStaged(CheckpointFailed):
    """At none of the paths that were named."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What an acceptance or a discarding does, or would do. `kept` are paths that it leaves as they
    are, with the reason. `before` and `after` are the snapshots around it."""

    plan: UndoPlan
    kept: tuple[tuple[bytes, str], ...] = ()
    before: str = ""
    after: str = ""


class StagedCopy:
    """The stage of one workspace. `repository` is the workspace's."""

    def __init__(self, repository: Repository, stage: StageFolder) -> None:
        self._repository = repository
        self._stage = stage
        self._view = repository.over(stage)

    # Making and removing it

    def open(self, *, bytes_max: int, left_out: str) -> bool:
        """Makes the stage if there is none. Returns whether it was made. `left_out` is a folder
        that is never copied."""
        if self._repository.base_of(self._stage):
            if not os.path.isdir(self._stage.tree):
                self._repository.forget(self._stage)
                raise CheckpointFailed(
                    f"the files of the stage are gone from {self._stage.tree}, and what was staged "
                    "with them; stage the session anew"
                )
            return False
        # Without a base nobody has worked in it yet.
        self.make(bytes_max=bytes_max, left_out=left_out)
        return True

    def make(self, *, bytes_max: int, left_out: str) -> None:
        """Copies the workspace. What was staged is dropped. The folder stays the same, because
        commands that are about to start may have it already."""
        self._repository.forget(self._stage)
        tree = self._stage.tree
        try:
            os.makedirs(tree, mode=0o700, exist_ok=True)
            _empty(tree)
            _Copy(self._repository.workspace, tree, bytes_max, left_out).run()
        except OSError as error:
            _empty(tree)
            raise CheckpointFailed(
                f"the workspace cannot be copied to {tree}: {error.strerror}"
            ) from error
        except CheckpointFailed:
            _empty(tree)
            raise
        self._view = self._repository.over(self._stage)
        self._repository.set_base(self._stage, take(self._view).id)

    def drop(self) -> None:
        """Its folder stays, empty, for the same reason. Without a base nothing that is missing in
        it counts as removed, should this be interrupted."""
        self._repository.forget(self._stage)
        _empty(self._stage.tree)

    # Looking, accepting, discarding

    def look(self) -> StageOutcome:
        """What an acceptance of everything would do."""
        base, staged, here = self._look()
        plan = plan_undo(self._repository, [(staged, base)], here)
        return StageOutcome(plan, _reasons(plan), base.files, staged.files)

    def accept(self, paths: Collection[str], overrule: Collection[str]) -> StageOutcome:
        """Changes the workspace. No paths are all; `overrule` are paths that somebody changed
        since, and that become as in the stage all the same. Paths are as `shown` shows them."""
        base, staged, here = self._look()
        plan = plan_undo(self._repository, [(staged, base)], here)
        if chosen := [path for path, _ in plan.kept if shown(path) in overrule]:
            plan = plan_undo(self._repository, [(staged, base)], here, overrule=chosen)
        plan = _only(plan, paths)
        if plan.is_empty:
            _refuse_unless_named(plan, paths)
            return StageOutcome(plan, _reasons(plan))
        done = restore(self._repository, plan)
        after = after_undo(self._repository, here, plan, done.changed)
        self._settle(base, staged, after)
        kept = (*_reasons(plan), *((path, why) for path, why in done.kept))
        return StageOutcome(_without(plan, done.kept), kept, here.id, after.id)

    def take_back(self, before: Snapshot, after: Snapshot) -> StageOutcome:
        """Takes an acceptance back: what it changed in the workspace is staged again."""
        base, _, here = self._look()
        plan = plan_undo(self._repository, [(before, after)], here)
        if plan.is_empty:
            return StageOutcome(plan, _reasons(plan))
        done = restore(self._repository, plan)
        then = after_undo(self._repository, here, plan, done.changed)
        again = after_undo(self._repository, base, plan, done.changed)
        self._repository.set_base(self._stage, again.id)
        kept = (*_reasons(plan), *((path, why) for path, why in done.kept))
        return StageOutcome(_without(plan, done.kept), kept, here.id, then.id)

    def discard(self, paths: Collection[str]) -> StageOutcome:
        """Takes these paths of the stage back to its base."""
        base, staged, _ = self._look()
        plan = _only(plan_undo(self._repository, [(base, staged)], staged), paths)
        if plan.is_empty:
            _refuse_unless_named(plan, paths)
            return StageOutcome(plan, _reasons(plan))
        done = restore(self._view, plan)
        kept = (*_reasons(plan), *((path, why) for path, why in done.kept))
        return StageOutcome(_without(plan, done.kept), kept)

    def refresh(self) -> int:
        """Brings to the stage what somebody changed in the workspace and the session did not.
        Returns how many paths changed."""
        base, staged, here = self._look()
        plan = plan_undo(self._repository, [(here, base)], staged)
        if plan.is_empty:
            return 0
        done = restore(self._view, plan)
        self._settle(base, after_undo(self._repository, staged, plan, done.changed), here)
        return len(done.changed)

    def _look(self) -> tuple[Snapshot, Snapshot, Snapshot]:
        name = self._repository.base_of(self._stage)
        if not name or not os.path.isdir(self._stage.tree):
            raise CheckpointFailed(
                f"there is no stage in {self._stage.tree}; discard everything to begin anew"
            )
        staged, here = take(self._view), take(self._repository)
        return self._settle(read(self._repository, name), staged, here), staged, here

    def _settle(self, base: Snapshot, staged: Snapshot, here: Snapshot) -> Snapshot:
        settled = _settled(self._repository, base, staged, here)
        if settled is not base:
            self._repository.set_base(self._stage, settled.id)
        return settled


def _settled(repository: Repository, base: Snapshot, staged: Snapshot, here: Snapshot) -> Snapshot:
    """The base with what the stage and the workspace both have."""
    ours, theirs = changes(repository, base, staged), changes(repository, base, here)
    steps = [
        UndoStep(path, then, now)
        for path, (then, now) in ours.files.items()
        if path in theirs.files and theirs.files[path][1] == now and _known(path, now, staged, here)
    ]
    modes = [
        FolderMode(path, old, new)
        for path, (old, new) in ours.modes.items()
        if theirs.modes.get(path, (0, -1))[1] == new
    ]
    made = [(path, staged.folder_mode(path)) for path in sorted(ours.made & theirs.made)]
    gone = sorted(_both_gone(ours, theirs, staged, here), reverse=True)
    plan = UndoPlan(tuple(steps), tuple(made), tuple(gone), tuple(modes))
    if plan.is_empty:
        return base
    every = [*(each.path for each in steps), *(each.path for each in modes)]
    every += [*(path for path, _ in made), *gone]
    return after_undo(repository, base, plan, every)


def _known(path: bytes, now: object, staged: Snapshot, here: Snapshot) -> bool:
    return now is not None or (staged.covers(path) and here.covers(path))


def _both_gone(ours: Changes, theirs: Changes, staged: Snapshot, here: Snapshot) -> Iterator[bytes]:
    for path in ours.gone.keys() & theirs.gone.keys():
        if staged.covers(path) and here.covers(path):
            yield path


def shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _only(plan: UndoPlan, paths: Collection[str]) -> UndoPlan:
    """The part of a plan that is about these paths and what is below them; no paths are all."""
    if not paths:
        return plan
    chosen = {path.rstrip("/") for path in paths}

    def is_chosen(path: bytes) -> bool:
        return any(shown(each) in chosen for each in with_parents(path))

    steps = tuple(each for each in plan.steps if is_chosen(each.path))
    above = {folder for step in steps for folder in with_parents(step.path)}
    return UndoPlan(
        steps,
        tuple(each for each in plan.make if is_chosen(each[0]) or each[0] in above),
        tuple(path for path in plan.remove if is_chosen(path) or path in above),
        tuple(each for each in plan.modes if is_chosen(each.path)),
        tuple(each for each in plan.kept if is_chosen(each[0])),
    )


def _refuse_unless_named(plan: UndoPlan, paths: Collection[str]) -> None:
    if paths and not plan.kept:
        raise NothingStaged(f"nothing is staged at {', '.join(sorted(paths))}")


def _reasons(plan: UndoPlan) -> tuple[tuple[bytes, str], ...]:
    return tuple((path, _OTHER_REASONS.get(why, str(why))) for path, why in plan.kept)


def _without(plan: UndoPlan, kept: Collection[tuple[bytes, str]]) -> UndoPlan:
    late = {path for path, _ in kept}
    return replace(plan, steps=tuple(step for step in plan.steps if step.path not in late))


# --- copying


class _Copy:
    """Copies a folder with modes, times, links and, as root, owners. Leaves out what is on another
    file system, what is neither file, folder nor link, and what cannot be read."""

    def __init__(self, source: str, target: str, bytes_max: int, left_out: str) -> None:
        self._source = source
        self._target = target
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries = 0
        self._device = os.lstat(source).st_dev
        self._is_root = os.geteuid() == 0
        self._left_out = _identity(left_out)

    def run(self) -> None:
        folders = [("", os.lstat(self._source))]
        for path, _ in folders:
            folders += self._copy_entries(path)
        # The inmost first: a folder that may not be written gets its mode when it is full.
        for path, found in reversed(folders[1:]):
            self._finish(os.path.join(self._target, path), found)

    def _copy_entries(self, folder: str) -> list[tuple[str, os.stat_result]]:
        below: list[tuple[str, os.stat_result]] = []
        try:
            with os.scandir(os.path.join(self._source, folder)) as listed:
                entries = list(listed)
        except (PermissionError, FileNotFoundError):
            return below
        for entry in entries:
            path = os.path.join(folder, entry.name)
            try:
                found = entry.stat(follow_symlinks=False)
                if self._copy_entry(path, entry.path, found):
                    below.append((path, found))
            except (PermissionError, FileNotFoundError):
                continue  # it cannot be read, or is gone by now
        return below

    def _copy_entry(self, path: str, source: str, found: os.stat_result) -> bool:
        """Returns whether it is a folder whose entries are to be copied."""
        self._count(found)
        target = os.path.join(self._target, path)
        if path == ".git":
            self._stand_in_for_git(source, target, found)
        elif path.startswith(STAGE) or (found.st_dev, found.st_ino) == self._left_out:
            return False
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), target)
            self._give_to_owner(target, found)
        elif stat.S_ISDIR(found.st_mode):
            if found.st_dev != self._device:
                return False
            os.mkdir(target, 0o700)
            return True
        elif stat.S_ISREG(found.st_mode):
            _copy_file(source, target)
            self._finish(target, found)
        return False

    def _count(self, found: os.stat_result) -> None:
        self._entries += 1
        self._bytes += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
        if self._bytes > self._bytes_max or self._entries > ENTRIES_MAX:
            raise CheckpointFailed(
                f"{self._source} is too large for a stage, which may have "
                f"{self._bytes_max >> 20} MiB and {ENTRIES_MAX} files. Raise "
                "sandbox.stage_megabytes_max, or work in a folder below"
            )

    def _stand_in_for_git(self, source: str, target: str, found: os.stat_result) -> None:
        """Commands see the real one at its place. Which files are ignored is known here, too."""
        if not stat.S_ISDIR(found.st_mode):
            with open(target, "xb"):
                return
        os.makedirs(os.path.join(target, "info"), mode=0o700)
        with suppress(PermissionError, FileNotFoundError):
            inside = os.path.join("info", "exclude")
            _copy_file(os.path.join(source, inside), os.path.join(target, inside))

    def _finish(self, target: str, found: os.stat_result) -> None:
        self._give_to_owner(target, found)
        os.chmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _give_to_owner(self, target: str, found: os.stat_result) -> None:
        if self._is_root and (found.st_uid, found.st_gid) != (0, 0):
            os.chown(target, found.st_uid, found.st_gid, follow_symlinks=False)


def _copy_file(source: str, target: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    reading = os.open(source, flags)
    try:
        with open(target, "xb") as file:
            try:
                fcntl.ioctl(file.fileno(), _FICLONE, reading)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                while piece := os.read(reading, _PIECE_BYTES):
                    file.write(piece)
    finally:
        os.close(reading)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (-1, -1)
    return found.st_dev, found.st_ino


def _empty(folder: str) -> None:
    """Removes everything in it, also what a command made unwritable."""
    if not os.path.isdir(folder):
        return
    os.chmod(folder, 0o700)
    for above, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(above, name)
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)
    with os.scandir(folder) as entries:
        found = [(each.path, each.is_dir(follow_symlinks=False)) for each in entries]
    for path, is_folder in found:
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
