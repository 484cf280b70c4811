"""Random trees and acts of an agent, a user and an undo, checked against a model after each act.

The model is a dictionary of paths. It says what an undo leaves at each path; beside that, nothing
that the user wrote may ever be lost, whatever the undo could or could not do. The restoring process
is killed at random moments, runs out of room, and users write while it works.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from bargein.checkpoints.plan import Interval, UndoPlan, after_undo, plan_undo
from bargein.checkpoints.repository import Bounds, CheckpointFailed, Repository
from bargein.checkpoints.restore import KEPT, Restored, recover, restore
from bargein.checkpoints.snapshot import read, take

SEEDS = 2000
SEEDS_A_TEST = 25
ACTS = 7
LARGE = 64
BOUNDS = Bounds(file_bytes_max=LARGE)

NAMES = (
    "a", "b", "d", "d/x", "d/y", "d/e/z", "s/t/u", "b/w", "bad\udcff\n", "-n", ".hidden", "ä",
    "back\\slash", "nested/own", "nested/deep/er", "ig1", "d/ig2", "igd/x", ".gitignore", "G/.GIT",
)  # fmt: skip
RULES = ("ig*\n", "", "d/\n", "*\n")
COMMANDS = (
    "mv d moved", "mv moved d", "rm -rf d", "cp -a d copied", "chmod 600 a", "chmod 700 d",
    "printf more >> a", "ln -sf d b", "mkdir -p empty/er", "rmdir empty/er",
    "echo 'ig*' > .gitignore",
    "rm -f .gitignore", "mv a d/x", "git init -q nested", "rm -rf nested", "printf %0100d 1 > d/y",
)  # fmt: skip

HOOKED = ("call", "return")

Entry = tuple[str, bytes, int]
Tree = dict[str, Entry]
"""What is at each path: a file or a link with its content and mode, or a folder with its mode."""


def read_tree(root: Path, *, folders: bool = False) -> Tree:
    found: Tree = {}
    for folder, below, files in os.walk(root):
        if ".git" in below:
            below.remove(".git")
        for name in (*files, *below):
            path = Path(folder) / name
            key = str(path.relative_to(root))
            mode = stat.S_IMODE(path.lstat().st_mode)
            if path.is_symlink():
                found[key] = ("link", os.readlink(os.fsencode(path)), 0)
            elif path.is_file():
                found[key] = ("file", path.read_bytes(), mode)
            elif folders:
                found[key] = ("folder", b"", mode)
    return found


def may_be_uncovered(path: str, *entries: Entry | None) -> bool:
    """By its name or its size. `*` is a rule that an agent may write for any path."""
    return ".GIT" in path or any(entry is not None and len(entry[1]) > LARGE for entry in entries)


@dataclass
class Span:
    """An interval, and the trees at both of its ends."""

    interval: Interval
    before: Tree
    after: Tree


@dataclass
class World:
    """The workspace, the random acts on it, and what the user wrote last at each path."""

    seed: int
    root: Path
    repository: Repository
    chance: random.Random = field(init=False)
    written: int = 0
    spans: list[Span] = field(default_factory=list)
    users: Tree = field(default_factory=dict)
    rules_seen: bool = False
    _late: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def edit(self, *, user: bool, among: Sequence[bytes] = ()) -> set[str]:
        """One change, as an editor or a shell would make it, perhaps `among` these paths. Returns
        the paths it changed."""
        before = read_tree(self.root, folders=True)
        if among and self.chance.random() < 0.8:
            path = self.root / os.fsdecode(self.chance.choice(among))
            with suppress(OSError):
                if self.chance.random() < 0.2:
                    path.unlink()
                else:
                    self.written += 1
                    path.parent.mkdir(parents=True, exist_ok=True)
                    new = self.root.parent / "new"
                    new.write_text(f"late {self.written}")
                    new.replace(path)
        elif self.chance.random() < 0.1:
            command = self.chance.choice(COMMANDS)
            subprocess.run(["sh", "-c", command], cwd=self.root, capture_output=True, check=False)
        else:
            path = self.root / self.chance.choice(NAMES)
            try:
                self._change(path)
            except OSError:
                pass  # there is no such file, or a file is in the way of a folder, or the reverse
        after = read_tree(self.root, folders=True)
        touched = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        for key in touched:
            self.users.pop(key, None)
            if user and key in after and after[key][0] != "folder":
                self.users[key] = after[key]
        self.rules_seen |= any(key.endswith(".gitignore") for key in touched)
        return touched

    def _change(self, path: Path) -> None:
        what = self.chance.random()
        if what < 0.2:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif what < 0.3:
            path.chmod(
                self.chance.choice((0o700, 0o755) if path.is_dir() else (0o600, 0o644, 0o755))
            )
        elif what < 0.4:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(self.chance.choice(("a", "nowhere", "d")))
        elif what < 0.5:
            path.mkdir(parents=True)
        elif what < 0.6:
            path.rename(self.root / self.chance.choice(NAMES))
        elif not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.written += 1
            size = LARGE + 1 if self.chance.random() < 0.05 else 0
            rules = path.name == ".gitignore"
            path.write_text(self.chance.choice(RULES) if rules else f"{self.written}".rjust(size))

    def agent_works(self) -> None:
        before, tree = take(self.repository), read_tree(self.root)
        whole = read_tree(self.root, folders=True)
        for _ in range(self.chance.randint(1, 4)):
            self.edit(user=False)
        after = take(self.repository)
        self.spans.append(Span((before, after), tree, read_tree(self.root)))
        if self.chance.random() < 0.3:
            self.undo(1, how=World.plainly)
            uncovered = before.uncovered or take(self.repository).uncovered
            if not self.rules_seen and not uncovered:
                assert read_tree(self.root, folders=True) == whole, self.seed

    def undo(self, count: int, how: Callable[[World, UndoPlan], Restored | None]) -> None:
        """Undoes the last spans, `how` it may be, and checks every path."""
        chosen = self.spans[-count:]
        now, tree = take(self.repository), read_tree(self.root)
        plan = plan_undo(self.repository, [span.interval for span in chosen], now)
        users = dict(self.users)
        aside = [name for name in os.listdir(self.root) if name.startswith(KEPT)]
        done = how(self, plan)
        left = read_tree(self.root)
        if how != World.beside_an_edit:
            # Only one who writes in the very moment may find a file beside its place.
            assert aside == [n for n in os.listdir(self.root) if n.startswith(KEPT)], self.seed
        late = {path for path in users.keys() | self.users.keys()
                if users.get(path) != self.users.get(path)}  # fmt: skip
        expected = tree if done is None else expect(tree, chosen)
        kept = {os.fsdecode(path) for path, _ in done.kept} if done else set()
        for path in (expected.keys() | left.keys()) - kept - late - self._late:
            if path.startswith(KEPT):
                continue
            if left.get(path) == expected.get(path):
                continue
            now_there = tree.get(path)
            ends = [each.get(path) for span in chosen for each in (span.before, span.after)]
            free = self.rules_seen or may_be_uncovered(path, now_there, *ends)
            assert free, (self.seed, path, plan)
            assert left.get(path) == now_there, (self.seed, path, plan)
        if done is not None:
            # The undo is an act of the agent's, which can be taken back like any other.
            after = after_undo(self.repository, now, plan, done.changed)
            if not (self._late or done.kept or self.rules_seen):
                assert after == take(self.repository), (self.seed, after, take(self.repository))
            changed = {os.fsdecode(path): expected.get(os.fsdecode(path)) for path in done.changed}
            whole = {path: entry for path, entry in (tree | changed).items() if entry is not None}
            del self.spans[-count:]
            self.spans.append(Span((now, after), tree, whole))
        self._late = set()

    def plainly(self, plan: UndoPlan) -> Restored | None:
        return restore(self.repository, plan)

    def after_an_edit(self, plan: UndoPlan) -> Restored | None:
        self._late = self.edit(user=True, among=[step.path for step in plan.steps])
        return restore(self.repository, plan)

    def beside_an_edit(self, plan: UndoPlan) -> Restored | None:
        """The user writes in the midst of it: before or after a file is looked at or renamed."""
        moments = self.chance.sample(range(1, 16), self.chance.randint(1, 3))
        count = 0
        among = [step.path for step in plan.steps]

        def interfere(frame: FrameType, event: str, _: object) -> None:
            nonlocal count
            if frame.f_code.co_name in ("look", "_rename", "_parent") and event in HOOKED:
                count += 1
                if count in moments:
                    self._late |= self.edit(user=True, among=among)

        sys.setprofile(interfere)
        try:
            return restore(self.repository, plan)
        finally:
            sys.setprofile(None)

    def killed(self, plan: UndoPlan) -> Restored | None:
        """Dies half-way, and is finished by the next one, perhaps after an edit of the user's."""
        left = int(2 ** self.chance.uniform(3, 12))

        def die(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)

        def work() -> None:
            sys.setprofile(die)
            restore(self.repository, plan)

        code = in_child(work)
        if code == 9 and self.chance.random() < 0.5:
            self._late = self.edit(user=True, among=[step.path for step in plan.steps])
        found = recover(self.repository)
        assert recover(self.repository) is None
        return found if code == 9 else all_of(plan, self.root)

    def without_room(self, plan: UndoPlan) -> Restored | None:
        """The disk is full."""
        size = self.chance.choice((0, 2, 1000, 1 << 20))

        def work() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            restore(self.repository, plan)

        code = in_child(work)
        assert code in (0, 3), self.seed
        assert code == (0 if size > 1000 else 3), self.seed
        return all_of(plan, self.root) if code == 0 else None

    def check(self) -> None:
        tree = read_tree(self.root)
        aside = {entry[:2] for path, entry in tree.items() if path.startswith(KEPT)}
        lost = {
            path
            for path, entry in self.users.items()
            if tree.get(path) != entry and entry[:2] not in aside
        }
        assert lost == set(), (self.seed, lost)
        assert not [name for name in os.listdir(self.root) if name.startswith(".bargein")]


def all_of(plan: UndoPlan, root: Path) -> Restored:
    """What a plan changes if nobody comes between. A path below what is a file by now is kept."""
    removed = [path for path in plan.remove if not os.path.lexists(os.fsencode(root) + b"/" + path)]
    planned = [*(step.path for step in plan.steps), *(path for path, _ in plan.make)]
    kept = [path for path in planned if is_below_a_file(root, path)]
    changed = [path for path in planned if path not in kept]
    return Restored(
        (*changed, *removed, *(each.path for each in plan.modes)),
        tuple((path, "below a file") for path in kept),
    )


def is_below_a_file(root: Path, path: bytes) -> bool:
    folder = os.path.dirname(os.path.join(os.fsencode(root), path))
    while len(folder) > len(os.fsencode(root)):
        if os.path.lexists(folder) and (os.path.islink(folder) or not os.path.isdir(folder)):
            return True
        folder = os.path.dirname(folder)
    return False


def in_child(work: Callable[[], None]) -> int:
    """Runs it in a process of its own; 0 if it returned, 3 if it raised `CheckpointFailed`."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork beside threads; it execs or exits
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except CheckpointFailed:
            code = 3
        finally:
            sys.setprofile(None)
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def expect(tree: Tree, spans: list[Span]) -> Tree:
    """What an undo of these leaves, path by path."""
    result: dict[str, Entry | None] = dict(tree)
    kept: set[str] = set()
    for span in reversed(spans):
        for path in span.before.keys() | span.after.keys():
            then, left, now = span.before.get(path), span.after.get(path), result.get(path)
            if then == left or path in kept:
                continue
            if now == left:
                result[path] = then
            elif now != then:
                kept.add(path)
                result[path] = tree.get(path)
    return {path: entry for path, entry in result.items() if entry is not None}


WAYS: tuple[Callable[[World, UndoPlan], Restored | None], ...] = (
    World.plainly,
    World.after_an_edit,
    World.beside_an_edit,
    World.killed,
    World.without_room,
)
WEIGHTS = (4, 2, 2, 2, 1)


def play(seed: int, root: Path, kept: Path) -> None:
    root.mkdir()
    with Repository.open(kept, root, bounds=BOUNDS) as repository:
        world = World(seed, root, repository)
        if world.chance.random() < 0.3:
            (root / ".gitignore").write_text("ig*\n")
            world.rules_seen = True
        for _ in range(ACTS):
            what = world.chance.random()
            if what < 0.35:
                world.agent_works()
            elif what < 0.65 or not world.spans:
                world.edit(user=True)
            else:
                count = world.chance.randint(1, len(world.spans))
                world.undo(count, world.chance.choices(WAYS, WEIGHTS)[0])
            world.check()
        for span in world.spans[-1:]:
            assert read(repository, span.interval[0].id) == span.interval[0]


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_nothing_of_the_users_is_ever_lost(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        root = tmp_path / f"{seed}"
        play(seed, root, tmp_path / "kept")
        shutil.rmtree(root)
        shutil.rmtree(tmp_path / "kept")
