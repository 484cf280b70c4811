"""Random trees and acts of an agent, a user and an undo, checked against a model after each act.

The model is a dictionary of paths. It says what an undo leaves at each path; beside that, nothing
that the user wrote may ever be lost, whatever the undo could or could not do.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bargein.checkpoints.plan import Interval, plan_undo
from bargein.checkpoints.repository import Repository
from bargein.checkpoints.restore import restore
from bargein.checkpoints.snapshot import take

SEEDS = 2000
SEEDS_A_TEST = 50
ACTS = 7

NAMES = ("a", "b", "d", "d/x", "d/y", "d/e/z", "s/t/u", "b/w", "bad\udcff\n", "-n", ".hidden")
Tree = dict[str, tuple[str, str | int]]
"""What is at each path: ("file CONTENT", mode) or ("link TARGET", "")."""


def read_tree(root: Path) -> Tree:
    found: Tree = {}
    for folder, folders, files in os.walk(root):
        for name in (*files, *(each for each in folders if (Path(folder) / each).is_symlink())):
            path = Path(folder) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = (f"link {os.readlink(path)}", "")
            else:
                mode = stat.S_IMODE(path.stat().st_mode)
                found[key] = (f"file {path.read_text()}", mode)
    return found


@dataclass
class World:
    """The workspace, the random acts on it, and what the user wrote last at each path."""

    seed: int
    root: Path
    repository: Repository
    chance: random.Random = field(init=False)
    written: int = 0
    intervals: list[tuple[Interval, Tree, Tree]] = field(default_factory=list)
    users: Tree = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def edit(self, *, user: bool) -> None:
        """One change of a file, as an editor or a shell would make it."""
        path = self.root / self.chance.choice(NAMES)
        before = read_tree(self.root)
        try:
            self._change(path)
        except OSError:
            pass  # there is no such file, or a file is in the way of a folder, or the reverse
        after = read_tree(self.root)
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                self.users.pop(key, None)
                if user and key in after:
                    self.users[key] = after[key]

    def _change(self, path: Path) -> None:
        what = self.chance.random()
        if what < 0.2:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif what < 0.3:
            path.chmod(self.chance.choice((0o600, 0o644, 0o755)), follow_symlinks=True)
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
            path.write_text(f"{self.written}")

    def agent_works(self) -> None:
        before, tree = take(self.repository), read_tree(self.root)
        for _ in range(self.chance.randint(1, 4)):
            self.edit(user=False)
        self.intervals.append(((before, take(self.repository)), tree, read_tree(self.root)))

    def undo(self) -> None:
        count = self.chance.randint(1, len(self.intervals))
        chosen = self.intervals[-count:]
        now, tree = take(self.repository), read_tree(self.root)
        plan = plan_undo(self.repository, [each[0] for each in chosen], now)
        done = restore(self.repository, plan)
        left = read_tree(self.root)
        stuck = {os.fsdecode(path) for path, _ in done.kept}
        expected = expect(tree, [(each[1], each[2]) for each in chosen])
        for path in expected.keys() | left.keys():
            if path not in stuck:
                assert left.get(path) == expected.get(path), (self.seed, path, plan)
        # The undo is an act of the agent's, which can be taken back like any other.
        del self.intervals[-count:]
        self.intervals.append(((now, take(self.repository)), tree, left))

    def check(self) -> None:
        tree = read_tree(self.root)
        lost = {path for path, content in self.users.items() if tree.get(path) != content}
        assert lost == set(), (self.seed, lost)
        assert not [name for name in os.listdir(self.root) if name.startswith(".bargein")]


def expect(tree: Tree, intervals: list[tuple[Tree, Tree]]) -> Tree:
    """What an undo of these intervals leaves, path by path."""
    result: dict[str, tuple[str, str | int] | None] = dict(tree)
    kept: set[str] = set()
    for before, after in reversed(intervals):
        for path in before.keys() | after.keys():
            then, left, now = before.get(path), after.get(path), result.get(path)
            if then == left or path in kept:
                continue
            if now == left:
                result[path] = then
            elif now != then:
                kept.add(path)
                result[path] = tree.get(path)
    return {path: entry for path, entry in result.items() if entry is not None}


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_nothing_of_the_users_is_ever_lost(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        root = tmp_path / f"{seed}"
        root.mkdir()
        with Repository.open(tmp_path / "kept", root) as repository:
            world = World(seed, root, repository)
            for _ in range(ACTS):
                what = world.chance.random()
                if what < 0.35:
                    world.agent_works()
                elif what < 0.7 or not world.intervals:
                    world.edit(user=True)
                else:
                    world.undo()
                world.check()
        shutil.rmtree(root)
