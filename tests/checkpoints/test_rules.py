"""Rules of snapshots and undo that random trees seldom meet, each by itself."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bargein.checkpoints.plan import WhyKept, plan_undo
from bargein.checkpoints.repository import Bounds, CheckpointFailed, Repository
from bargein.checkpoints.restore import (
    _EXCHANGE,
    _NOREPLACE,
    LATE,
    STAGE,
    Restored,
    _rename_in_steps,
    recover,
    restore,
)
from bargein.checkpoints.retention import tidy
from bargein.checkpoints.snapshot import NotCovered, Snapshot, take

ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def repository(tmp_path: Path, root: Path) -> Iterator[Repository]:
    with Repository.open(tmp_path / "kept", root) as opened:
        yield opened


def undo(repository: Repository, *spans: tuple[Snapshot, Snapshot]) -> Restored:
    return restore(repository, plan_undo(repository, spans, take(repository)))


# --- what is covered


def test_a_snapshot_that_does_not_name_all_uncovered_paths_covers_nothing() -> None:
    """A path that is missing from it may have been there, so nothing may be deleted."""
    full = Snapshot("a", "b", uncovered={b"": NotCovered.TOO_MANY, b"x": NotCovered.IGNORED})
    assert not full.covers(b"anything")
    assert Snapshot("a", "b").covers(b"anything")
    assert not Snapshot("a", "b", uncovered={b"d": NotCovered.IGNORED}).covers(b"d/e/f")


def test_what_was_made_beside_unnamed_paths_is_kept(repository: Repository, root: Path) -> None:
    before = take(repository)
    (root / "made").write_text("by the agent")
    after = take(repository)
    unnamed = Snapshot(before.id, before.files, uncovered={b"": NotCovered.TOO_MANY})
    plan = plan_undo(repository, [(unnamed, after)], after)
    assert plan.steps == ()
    assert plan.kept == ((b"made", WhyKept.UNCOVERED),)


def test_pipes_and_devices_are_named_and_never_opened(repository: Repository, root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "file").write_text("x")
    assert take(repository).uncovered == {b"pipe": NotCovered.SPECIAL}
    (root / "file").unlink()
    os.mkfifo(root / "file")
    special = dict.fromkeys([b"file", b"pipe"], NotCovered.SPECIAL)
    assert take(repository).uncovered == special


def test_a_link_that_git_refuses_is_named(repository: Repository, root: Path) -> None:
    (root / ".gitmodules").symlink_to("x")
    assert take(repository).uncovered == {b".gitmodules": NotCovered.SPECIAL}


def test_the_inside_of_a_repository_is_named_in_any_case(
    repository: Repository, root: Path
) -> None:
    (root / "d/.GiT").mkdir(parents=True)
    (root / "d/.GiT/config").write_text("x")
    uncovered = take(repository).uncovered
    assert set(uncovered.values()) == {NotCovered.REPOSITORY}
    assert set(uncovered) == {b"d/.GiT", b"d/.GiT/config"}


@pytest.mark.parametrize(
    ("bounds", "words"),
    [(Bounds(files_max=2), "has 3 files"), (Bounds(new_bytes_max=1 << 20), "1 MiB changed")],
)
def test_a_workspace_beyond_the_bounds_gets_no_snapshot(
    tmp_path: Path, root: Path, bounds: Bounds, words: str
) -> None:
    for name in "abc":
        (root / name).write_bytes(b"x" * (400 << 10))
    with (
        Repository.open(tmp_path / "kept", root, bounds=bounds) as repository,
        pytest.raises(CheckpointFailed, match=words),
    ):
        take(repository)


def test_a_file_that_became_too_large_is_named_and_kept(tmp_path: Path, root: Path) -> None:
    (root / "a").write_text("small")
    with Repository.open(tmp_path / "kept", root, bounds=Bounds(file_bytes_max=8)) as repository:
        before = take(repository)
        (root / "a").write_text("larger than that")
        after = take(repository)
        assert after.uncovered == {b"a": NotCovered.TOO_LARGE}
        undone = undo(repository, (before, after))
    assert undone.changed == ()
    assert (root / "a").read_text() == "larger than that"


def test_an_uncovered_file_in_the_place_of_a_deleted_one_is_kept(
    tmp_path: Path, root: Path
) -> None:
    (root / "a").write_text("small")
    with Repository.open(tmp_path / "kept", root, bounds=Bounds(file_bytes_max=8)) as repository:
        before = take(repository)
        (root / "a").unlink()
        after = take(repository)
        (root / "a").write_text("the user's, and larger than that")
        plan = plan_undo(repository, [(before, after)], take(repository))
    assert plan.steps == ()
    assert plan.kept == ((b"a", WhyKept.UNCOVERED),)


def test_an_uncovered_file_that_is_gone_is_named_as_lost(
    repository: Repository, root: Path
) -> None:
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("x")
    before = take(repository)
    (root / "ignored").unlink()
    after = take(repository)
    plan = plan_undo(repository, [(before, after)], after)
    assert plan.kept == ((b"ignored", WhyKept.LOST),)


def test_an_index_that_names_lost_objects_is_made_anew(repository: Repository, root: Path) -> None:
    (root / "a").write_text("before")
    take(repository)
    for folder in (repository.directory / "objects").iterdir():
        if len(folder.name) == 2:
            shutil.rmtree(folder)
    (root / "b").write_text("new")
    assert take(repository).id


# --- what an undo does


def test_an_undo_goes_through_no_link(tmp_path: Path, repository: Repository, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/x").write_text("first")
    before = take(repository)
    (root / "d/x").write_text("second")
    after = take(repository)
    plan = plan_undo(repository, [(before, after)], after)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("second")
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(elsewhere)
    undone = restore(repository, plan)
    assert undone.changed == ()
    assert undone.kept == ((b"d/x", "d is no folder any more"),)
    assert (elsewhere / "x").read_text() == "second"


@pytest.mark.skipif(not ROOT, reason="only root restores files of others")
def test_what_root_restores_belongs_to_whom_it_belonged(repository: Repository, root: Path) -> None:
    for name in ("changed", "deleted"):
        (root / name).write_text("first")
        os.chown(root / name, NOBODY, NOBODY)
        (root / name).chmod(0o4755)
    os.chown(root, NOBODY, NOBODY)
    before = take(repository)
    (root / "changed").write_text("second")
    (root / "changed").chmod(0o644)
    (root / "deleted").unlink()
    undo(repository, (before, take(repository)))
    for name in ("changed", "deleted"):
        found = (root / name).stat()
        assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)
        assert stat.S_IMODE(found.st_mode) == 0o4755


def test_a_folder_that_the_user_filled_is_not_removed(repository: Repository, root: Path) -> None:
    before = take(repository)
    (root / "made").mkdir()
    (root / "made/by-agent").write_text("x")
    after = take(repository)
    (root / "made/by-user").write_text("mine")
    undone = undo(repository, (before, after))
    assert undone.changed == (b"made/by-agent",)
    assert [path.name for path in (root / "made").iterdir()] == ["by-user"]


def test_a_mode_that_the_user_changed_since_stays(repository: Repository, root: Path) -> None:
    (root / "d").mkdir(mode=0o755)
    before = take(repository)
    (root / "d").chmod(0o700)
    after = take(repository)
    plan = plan_undo(repository, [(before, after)], after)
    (root / "d").chmod(0o750)
    assert restore(repository, plan).changed == ()
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o750


def test_what_the_user_deletes_in_the_last_moment_stays_deleted(
    repository: Repository, root: Path
) -> None:
    (root / "a").write_text("first")
    before = take(repository)
    (root / "a").write_text("second")
    after = take(repository)
    plan = plan_undo(repository, [(before, after)], after)
    (root / "a").unlink()
    undone = restore(repository, plan)
    assert undone.kept == ((b"a", LATE),)
    assert not (root / "a").exists()


def test_a_stage_without_a_journal_is_removed(repository: Repository, root: Path) -> None:
    """Its undo died before it had changed anything."""
    (root / f"{STAGE}1").mkdir()
    (root / f"{STAGE}1/0").write_text("staged")
    (root / "mine").write_text("x")
    assert recover(repository) is None
    assert [path.name for path in root.iterdir()] == ["mine"]


# --- where the kernel cannot exchange


def test_a_rename_in_steps_replaces_nothing(root: Path) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    folder = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(FileExistsError):
            _rename_in_steps(folder, b"a", folder, b"b", _NOREPLACE)
        assert (root / "b").read_text() == "b"
        _rename_in_steps(folder, b"a", folder, b"c", _NOREPLACE)
        assert sorted(path.name for path in root.iterdir()) == ["b", "c"]
        _rename_in_steps(folder, b"b", folder, b"c", _EXCHANGE)
        assert ((root / "b").read_text(), (root / "c").read_text()) == ("a", "b")
    finally:
        os.close(folder)


# --- retention


def test_old_snapshots_go_and_an_unfinished_undo_stays(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "kept"
    with Repository.open(home, root) as repository:
        take(repository)
        repository.journal.write_text("{}")
        own = repository.directory.parent
    tidy(home, keep_s=-1, bytes_max=1 << 30)
    assert own.is_dir()
    with Repository.open_kept(own) as repository:
        assert repository.kept() == []
        repository.journal.unlink()
    tidy(home, keep_s=-1, bytes_max=1 << 30)
    assert not own.exists()


def test_the_newest_snapshot_stays_however_large_it_is(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "kept"
    with Repository.open(home, root) as repository:
        taken: list[Snapshot] = []
        for _ in range(4):
            (root / "a").write_bytes(os.urandom(1 << 14))
            taken.append(take(repository))
        own = repository.directory.parent
    tidy(home, keep_s=1e6, bytes_max=1)
    with Repository.open_kept(own) as repository:
        ((_, kept),) = repository.kept()
        assert kept.read_text().strip() == taken[-1].id
