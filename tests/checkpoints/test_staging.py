"""Stages against a model: random acts of a session in its stage and of a user in the workspace,
with acceptances, discardings and refreshes in between; and acceptances that are killed half-way."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bargein.checkpoints.repository import CheckpointFailed, Repository, StageFolder
from bargein.checkpoints.restore import recover
from bargein.checkpoints.snapshot import read
from bargein.checkpoints.staging import NothingStaged, StagedCopy, shown

SEEDS = 60
ACTS = 10
NAMES = ("a", "b", "d/x", "d/e/y", "bad\udcff", "sp ace")
TEXTS = ("one", "two", "three")
BYTES_MAX = 1 << 20

Files = dict[str, str | None]


def files_in(root: Path) -> Files:
    return {name: _read(root / name) for name in NAMES}


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def put(root: Path, name: str, text: str | None) -> None:
    path = root / name
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Model:
    """What the rules say, with a dictionary for each of the three states."""

    def __init__(self) -> None:
        self.base: Files = dict.fromkeys(NAMES)
        self.stage: Files = dict.fromkeys(NAMES)
        self.here: Files = dict.fromkeys(NAMES)
        self.accepted: list[tuple[Files, Files]] = []

    def settle(self) -> None:
        for name in NAMES:
            if self.stage[name] == self.here[name]:
                self.base[name] = self.stage[name]

    def accept(self, chosen: list[str], overrule: list[str]) -> None:
        self.settle()
        before = dict(self.here)
        for name in chosen or NAMES:
            is_theirs = self.here[name] != self.base[name] and name not in overrule
            if self.stage[name] != self.base[name] and not is_theirs:
                self.here[name] = self.stage[name]
        if before != self.here:
            self.accepted.append((before, dict(self.here)))
        self.settle()

    def take_back(self) -> None:
        self.settle()
        before, after = self.accepted.pop()
        for name in NAMES:
            if before[name] != after[name] and self.here[name] == after[name]:
                self.here[name] = self.base[name] = before[name]

    def discard(self, chosen: list[str]) -> None:
        self.settle()
        for name in chosen:
            self.stage[name] = self.base[name]

    def refresh(self) -> None:
        self.settle()
        for name in NAMES:
            if self.stage[name] == self.base[name]:
                self.stage[name] = self.here[name]
        self.settle()


class Played:
    """The real thing and the model, side by side."""

    def __init__(self, chance: random.Random, repository: Repository, tree: Path) -> None:
        self._chance = chance
        self._repository = repository
        self._work, self._tree = Path(repository.workspace), tree
        self._files = StagedCopy(repository, StageFolder("s", str(tree)))
        self._model = Model()
        self._spans: list[tuple[str, str]] = []
        self._history: list[str] = []
        for name in chance.sample(NAMES, 3):
            self._put(self._work, self._model.here, name, chance.choice(TEXTS))
        self._files.open(bytes_max=BYTES_MAX, left_out="")
        self._model.stage, self._model.base = dict(self._model.here), dict(self._model.here)

    def _put(self, root: Path, side: Files, name: str, text: str | None) -> None:
        side[name] = text
        put(root, name, text)
        self._history.append(f"{root.name} {name!r} {text}")

    def act(self) -> None:
        chance = self._chance
        for root, side in ((self._tree, self._model.stage), (self._work, self._model.here)):
            for name in chance.sample(NAMES, chance.randrange(3)):
                self._put(root, side, name, chance.choice((*TEXTS, None)))
        some = chance.sample(NAMES, 2)
        act = chance.choice((self.accept, self.part, self.overrule, self.back, self.discard))
        self._history.append(f"{act.__name__} {some}")
        act(some)
        self._files.refresh()
        self._model.refresh()
        assert files_in(self._work) == self._model.here, self._history
        assert files_in(self._tree) == self._model.stage, self._history

    def accept(self, some: list[str]) -> None:
        self._accept([], [])

    def part(self, some: list[str]) -> None:
        self._accept(some, [])

    def overrule(self, some: list[str]) -> None:
        self._accept(some, some)

    def _accept(self, chosen: list[str], overrule: list[str]) -> None:
        count = len(self._model.accepted)
        self._model.accept(chosen, overrule)
        with suppress(NothingStaged):
            outcome = self._files.accept(as_shown(chosen), as_shown(overrule))
            if outcome.before != outcome.after:
                self._spans.append((outcome.before, outcome.after))
        assert len(self._model.accepted) - count in (0, 1)
        assert len(self._model.accepted) == len(self._spans), self._history

    def back(self, some: list[str]) -> None:
        if self._spans:
            before, after = (read(self._repository, each) for each in self._spans.pop())
            self._files.take_back(before, after)
            self._model.take_back()

    def discard(self, some: list[str]) -> None:
        self._model.discard(some)
        with suppress(NothingStaged):
            self._files.discard(as_shown(some))


def as_shown(names: list[str]) -> list[str]:
    return [shown(os.fsencode(name)) for name in names]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_acts_leave_what_the_rules_say(seed: int, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with Repository.open(tmp_path / "data/checkpoints", work) as repository:
        played = Played(random.Random(seed), repository, tmp_path / "data/stages/s/tree")
        for _ in range(ACTS):
            played.act()


KILLED = """
import os, sys
from bargein.checkpoints import restore
from bargein.checkpoints.repository import Repository, StageFolder
from bargein.checkpoints.staging import StagedCopy
data, work, tree, moves = sys.argv[1:]
left, rename = int(moves), restore._rename
def dying(*given):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    rename(*given)
restore._rename = dying
with Repository.open(__import__("pathlib").Path(data), work) as repository:
    StagedCopy(repository, StageFolder("s", tree)).accept([], [])
"""


@pytest.mark.parametrize("moves", range(4))
def test_an_acceptance_that_is_killed_is_finished_later(moves: int, tmp_path: Path) -> None:
    work, tree, data = tmp_path / "work", tmp_path / "data/stages/s/tree", tmp_path / "data/c"
    work.mkdir()
    for name in ("a", "b", "d/x"):
        put(work, name, "one")
    stage = StageFolder("s", str(tree))
    with Repository.open(data, work) as repository:
        StagedCopy(repository, stage).open(bytes_max=BYTES_MAX, left_out=str(tmp_path / "data"))
    for name, text in (("a", "two"), ("b", None), ("d/x", "two"), ("d/e/y", "new")):
        put(tree, name, text)
    command = [sys.executable, "-c", KILLED, str(data), str(work), str(tree), str(moves)]
    died = subprocess.run(command, timeout=60, check=False)
    assert died.returncode == 9
    put(work, "users", "mine")
    with Repository.open(data, work) as repository:
        assert recover(repository) is not None
        expected = {**files_in(tree)}
        assert files_in(work) == expected
        files = StagedCopy(repository, stage)
        seen = files.look()
        assert not seen.plan.steps
        assert not seen.kept
        # What was accepted is the base now: the session may go on from there.
        put(tree, "a", "three")
        assert [step.path for step in files.accept([], []).plan.steps] == [b"a"]
    assert (work / "a").read_text() == "three"
    assert (work / "users").read_text() == "mine"


def test_modes_links_folders_and_the_folders_of_git_are_copied_or_left(tmp_path: Path) -> None:
    work, tree = tmp_path / "work", tmp_path / "work/.data/stages/s/tree"
    put(work, "run", "#!/bin/sh\n")
    (work / "run").chmod(0o750)
    (work / "link").symlink_to("run")
    (work / "empty").mkdir(mode=0o700)
    put(work, ".git/config", "secret")
    put(work, ".git/info/exclude", "local\n")
    put(work, "local", "ignored")
    put(work, "below/.git/HEAD", "ref")
    os.mkfifo(work / "pipe")
    with Repository.open(work / ".data/checkpoints", work) as repository:
        files = StagedCopy(repository, StageFolder("s", str(tree)))
        files.open(bytes_max=BYTES_MAX, left_out=str(work / ".data"))
        assert sorted(os.listdir(tree)) == [".git", "below", "empty", "link", "local", "run"]
        assert os.listdir(tree / ".git") == ["info"]
        assert (tree / "run").stat().st_mode & 0o777 == 0o750
        assert (tree / "run").stat().st_mtime_ns == (work / "run").stat().st_mtime_ns
        assert os.readlink(tree / "link") == "run"
        assert (tree / "empty").stat().st_mode & 0o777 == 0o700
        assert not files.look().plan.steps
        (tree / "run").chmod(0o755)
        (tree / "link").unlink()
        (tree / "empty").rmdir()
        (tree / "made/deep").mkdir(parents=True)
        put(tree, "local", "changed")
        files.accept([], [])
        assert (work / "run").stat().st_mode & 0o777 == 0o755
        assert sorted(os.listdir(work)) == [
            ".data", ".git", "below", "local", "made", "pipe", "run",
        ]  # fmt: skip
        assert (work / "local").read_text() == "ignored"
        files.drop()
        assert os.listdir(tree) == []
        with pytest.raises(CheckpointFailed, match="there is no stage"):
            files.look()


def test_a_stage_whose_making_failed_is_made_again(tmp_path: Path) -> None:
    work, tree = tmp_path / "work", tmp_path / "data/stages/s/tree"
    put(work, "a", "x" * 5000)
    with Repository.open(tmp_path / "data/checkpoints", work) as repository:
        files = StagedCopy(repository, StageFolder("s", str(tree)))
        with pytest.raises(CheckpointFailed, match=r"sandbox\.stage_megabytes_max"):
            files.open(bytes_max=1, left_out="")
        assert os.listdir(tree) == []
        assert files.open(bytes_max=BYTES_MAX, left_out="")
        assert not files.open(bytes_max=BYTES_MAX, left_out="")
        assert (tree / "a").exists()
