"""Rules of an undo, each by itself: what goes back, what is kept, and what a moment may change.

Each was once broken on purpose; these tests are those that noticed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from bargein.checkpoints import restore as restoring
from bargein.checkpoints import snapshot as snapshots
from bargein.checkpoints.plan import (
    FileEntry,
    FolderMode,
    UndoPlan,
    WhyKept,
    after_undo,
    entries,
    plan_undo,
)
from bargein.checkpoints.repository import Bounds, CheckpointFailed, Repository
from bargein.checkpoints.restore import KEPT, LATE, STAGE, Restored, recover, restore
from bargein.checkpoints.retention import tidy
from bargein.checkpoints.snapshot import NotCovered, Snapshot, take
from tests.checkpoints.test_random_trees import in_child

ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def repository(tmp_path: Path, root: Path) -> Iterator[Repository]:
    with Repository.open(tmp_path / "kept", root, bounds=Bounds(file_bytes_max=64)) as opened:
        yield opened


def planned(repository: Repository, *taken: Snapshot, overrule: Sequence[bytes] = ()) -> UndoPlan:
    """The undo of everything between these."""
    return plan_undo(repository, list(pairwise(taken)), take(repository), overrule=overrule)


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def at(function: str, event: str, act: Callable[[], object], *, time: int = 1) -> Iterator[None]:
    """Somebody acts in the moment in which a function is called, or returns, so many times."""
    seen = 0

    def watch(frame: FrameType, happened: str, _: object) -> None:
        nonlocal seen
        if frame.f_code.co_name == function and happened == event:
            seen += 1
            if seen == time:
                act()

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert seen >= time


# --- several turns at once


def test_what_the_user_wrote_between_two_turns_is_not_passed_over(
    repository: Repository, root: Path
) -> None:
    file = root / "a"
    file.write_text("first")
    one = take(repository)
    file.write_text("agent")
    two = take(repository)
    file.write_text("user")
    three = take(repository)
    file.write_text("agent again")
    four = take(repository)
    plan = plan_undo(repository, [(one, two), (three, four)], four)
    assert plan.steps == ()
    assert plan.kept == ((b"a", WhyKept.CHANGED),)
    restore(repository, plan_undo(repository, [(three, four)], four))
    assert file.read_text() == "user"


def test_overruling_does_not_reach_what_no_snapshot_knows(
    repository: Repository, root: Path
) -> None:
    file = root / "a"
    file.write_text("first")
    one = take(repository)
    file.write_text("large" * 100)
    two = take(repository)
    file.write_text("third")
    three = take(repository)
    plan = planned(repository, one, two, three, overrule=[b"a"])
    assert plan.steps == ()
    assert plan.kept == ((b"a", WhyKept.UNCOVERED),)


def test_a_folder_that_was_made_and_removed_is_not_made(repository: Repository, root: Path) -> None:
    one = take(repository)
    (root / "d").mkdir()
    two = take(repository)
    (root / "d").rmdir()
    assert planned(repository, one, two, take(repository)).is_empty


def test_modes_go_back_through_several_turns(repository: Repository, root: Path) -> None:
    taken = [take(repository)]
    (root / "d").mkdir(mode=0o755)
    for mode in (0o755, 0o700, 0o750):
        (root / "d").chmod(mode)
        taken.append(take(repository))
    plan = planned(repository, *taken[1:])
    assert plan.modes == (FolderMode(b"d", 0o750, 0o755),)
    restore(repository, plan)
    assert mode_of(root / "d") == 0o755


def test_a_folder_comes_back_with_the_mode_it_had_at_first(
    repository: Repository, root: Path
) -> None:
    (root / "d").mkdir()
    (root / "d").chmod(0o750)
    one = take(repository)
    (root / "d").chmod(0o700)
    two = take(repository)
    (root / "d").rmdir()
    restore(repository, planned(repository, one, two, take(repository)))
    assert mode_of(root / "d") == 0o750


def test_a_folder_of_the_users_by_the_name_of_one_that_came_and_went_stays(
    repository: Repository, root: Path
) -> None:
    (root / "d").mkdir()
    (root / "d").chmod(0o750)
    one = take(repository)
    (root / "d").rmdir()
    two = take(repository)
    (root / "d").mkdir()
    (root / "d").chmod(0o700)
    three = take(repository)
    (root / "d").chmod(0o711)
    restore(repository, planned(repository, one, two, three, take(repository)))
    assert (root / "d").is_dir()


# --- what snapshots do not cover


def test_what_became_too_large_is_named(repository: Repository, root: Path) -> None:
    (root / "a").write_text("small")
    before = take(repository)
    (root / "a").write_text("x" * 100)
    assert planned(repository, before, take(repository)).kept == ((b"a", WhyKept.UNCOVERED),)


def test_a_large_file_of_the_agents_is_named_as_long_as_it_is_there(
    repository: Repository, root: Path
) -> None:
    before = take(repository)
    (root / "a").write_text("x" * 100)
    after = take(repository)
    assert planned(repository, before, after).kept == ((b"a", WhyKept.UNCOVERED),)
    (root / "a").unlink()
    assert planned(repository, before, after).kept == ()


def test_what_the_user_made_small_again_was_changed_since(
    repository: Repository, root: Path
) -> None:
    (root / "a").write_text("small")
    before = take(repository)
    (root / "a").write_text("x" * 100)
    after = take(repository)
    (root / "a").write_text("mine")
    assert planned(repository, before, after).kept == ((b"a", WhyKept.CHANGED),)


def test_an_empty_folder_that_was_ignored_is_not_taken_for_the_agents(
    repository: Repository, root: Path
) -> None:
    (root / ".gitignore").write_text("ign/\n")
    (root / "ign").mkdir()
    before = take(repository)
    (root / ".gitignore").unlink()
    restore(repository, planned(repository, before, take(repository)))
    assert names(root) == [".gitignore", "ign"]


def test_an_ignored_folder_that_is_still_there_is_not_named_as_lost(
    repository: Repository, root: Path
) -> None:
    (root / ".gitignore").write_text("ign/\n")
    (root / "ign").mkdir()
    (root / "ign/x").write_text("mine")
    before = take(repository)
    (root / ".gitignore").unlink()
    plan = planned(repository, before, take(repository))
    assert plan.kept == ((b"ign/x", WhyKept.UNCOVERED),)


def test_a_folder_that_the_agent_made_git_ignore_is_not_lost(
    repository: Repository, root: Path
) -> None:
    (root / "d").mkdir()
    before = take(repository)
    (root / ".gitignore").write_text("d/\n")
    assert planned(repository, before, take(repository)).make == ()


def test_more_uncovered_paths_than_are_named_are_said_to_be_more(
    repository: Repository, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "UNCOVERED_MAX", 2)
    for number in range(3):
        (root / f"{number}").write_text("x" * 100)
    assert take(repository).uncovered == {
        b"0": NotCovered.TOO_LARGE,
        b"1": NotCovered.TOO_LARGE,
        b"": NotCovered.TOO_MANY,
    }


@pytest.mark.skipif(not ROOT, reason="only root becomes somebody else")
def test_what_cannot_be_read_is_named() -> None:
    found: list[str] = []

    def look(top: Path) -> None:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with Repository.open(top / "kept", top / "work") as repository:
            found.extend(f"{p.decode()} {why}" for p, why in take(repository).uncovered.items())
        assert sorted(found) == ["closed unreadable", "nested unreadable", "secret unreadable"]

    with tempfile.TemporaryDirectory() as made:
        top = Path(made)
        top.chmod(0o755)
        for name in ("kept", "work"):
            (top / name).mkdir()
            os.chown(top / name, NOBODY, NOBODY)
        (top / "work/secret").write_text("x")
        (top / "work/secret").chmod(0o600)
        (top / "work/closed").mkdir(mode=0o700)
        (top / "work/nested/.git").mkdir(parents=True)
        (top / "work/nested").chmod(0o700)
        assert in_child(lambda: look(top)) == 0


# --- in the last moment


def test_an_edit_after_the_plan_is_kept(repository: Repository, root: Path) -> None:
    (root / "changed").write_text("first")
    before = take(repository)
    (root / "changed").write_text("second")
    (root / "made").write_text("second")
    after = take(repository)
    plan = planned(repository, before, after)
    for name in ("changed", "made"):
        (root / name).write_text("mine")
    done = restore(repository, plan)
    assert sorted(done.kept) == [(b"changed", LATE), (b"made", LATE)]
    assert {(root / name).read_text() for name in names(root)} == {"mine"}


def test_a_redo_knows_what_the_undo_did_not_change(repository: Repository, root: Path) -> None:
    for name in "abc":
        (root / name).write_text("first")
    (root / "a").chmod(0o600)
    before = take(repository)
    for name in "ab":
        (root / name).write_text("second")
    (root / "a").chmod(0o644)
    (root / "c").chmod(0o600)
    (root / "d").mkdir()
    now = take(repository)
    plan = planned(repository, before, now)
    (root / "b").write_text("mine")
    (root / "d/mine").write_text("mine")
    done = restore(repository, plan)
    assert done.changed == (b"a", b"c")
    after = after_undo(repository, now, plan, done.changed)
    found = entries(repository, after)
    assert found[b"b"] == entries(repository, now)[b"b"]
    assert (found[b"a"].mode, found[b"c"].mode) == (0o600, 0o644)
    assert after.folders == {b"d": 0o755}
    (root / "b").write_text("second")
    (root / "d/mine").unlink()
    assert take(repository) == after


def test_what_is_made_while_the_old_one_is_looked_at_stays(
    repository: Repository, root: Path
) -> None:
    """The first edit cannot go back to its name, which the second has: both are kept."""
    file = root / "made"
    before = take(repository)
    file.write_text("agent")
    plan = planned(repository, before, take(repository))
    file.write_text("mine")
    # Looked at where it was, and once more where it was moved to.
    with at("look", "return", lambda: file.write_text("mine too"), time=2):
        done = restore(repository, plan)
    aside = [name for name in names(root) if name.startswith(KEPT)]
    assert file.read_text() == "mine too"
    assert [path.read_text() for path in (root / aside[0]).iterdir()] == ["mine"]
    assert (os.fsencode(aside[0]), LATE) in done.kept


def test_what_is_made_in_the_place_of_what_comes_back_stays(
    repository: Repository, root: Path
) -> None:
    file = root / "deleted"
    file.write_text("first")
    before = take(repository)
    file.unlink()
    plan = planned(repository, before, take(repository))
    with at("look", "return", lambda: file.write_text("mine")):
        done = restore(repository, plan)
    assert file.read_text() == "mine"
    assert done.changed == ()
    assert names(root) == ["deleted"]


def test_a_pipe_in_the_place_of_a_file_is_kept_and_never_opened(
    repository: Repository, root: Path
) -> None:
    file = root / "a"
    file.write_text("first")
    before = take(repository)
    file.write_text("second")
    plan = planned(repository, before, take(repository))
    file.unlink()
    os.mkfifo(file)
    assert restore(repository, plan).kept == ((b"a", LATE),)
    assert stat.S_ISFIFO(file.stat().st_mode)


def test_a_file_in_the_place_of_a_folder_is_kept(repository: Repository, root: Path) -> None:
    (root / "d").mkdir()
    before = take(repository)
    (root / "d").rmdir()
    plan = planned(repository, before, take(repository))
    (root / "d").write_text("mine")
    assert restore(repository, plan).kept == ((b"d", LATE),)
    assert (root / "d").read_text() == "mine"


def test_a_folder_that_the_user_removed_is_made_for_what_comes_back_and_for_nothing_else(
    repository: Repository, root: Path
) -> None:
    for folder in ("d", "e"):
        (root / folder).mkdir()
        (root / folder / "x").write_text("first")
        (root / folder / "y").write_text("mine")
    before = take(repository)
    (root / "d/x").unlink()
    (root / "e/x").write_text("second")
    after = take(repository)
    shutil.rmtree(root / "d")
    plan = planned(repository, before, after)
    shutil.rmtree(root / "e")
    done = restore(repository, plan)
    assert (root / "d/x").read_text() == "first"
    assert names(root) == ["d"]
    assert done.kept == ((b"e/x", "its folder is gone"),)


# --- what it leaves on its way


def test_a_stage_is_private_and_leaves_room_for_renames(repository: Repository, root: Path) -> None:
    (root / "a").write_text("first")
    before = take(repository)
    (root / "a").write_text("second")
    plan = planned(repository, before, take(repository))
    seen: list[int] = []

    def look() -> None:
        (stage,) = [root / name for name in names(root) if name.startswith(STAGE)]
        seen.extend((mode_of(stage), (stage / "spare").stat().st_size))
        seen.append(mode_of(repository.journal))

    with at("_carry_out", "call", look):
        restore(repository, plan)
    assert seen == [0o700, 1 << 16, 0o600]
    assert names(root) == ["a"]


def test_an_undo_begins_only_when_the_one_before_is_finished(
    repository: Repository, root: Path
) -> None:
    repository.journal.write_text("{}")
    with pytest.raises(CheckpointFailed, match="not finished"):
        restore(repository, UndoPlan())


def test_a_snapshot_that_is_gone_changes_nothing_and_leaves_nothing(
    repository: Repository, root: Path
) -> None:
    (root / "a").write_text("first")
    before = take(repository)
    (root / "a").write_text("second")
    plan = planned(repository, before, take(repository))
    for folder in (repository.directory / "objects").iterdir():
        if len(folder.name) == 2:
            shutil.rmtree(folder)
    with pytest.raises(CheckpointFailed, match="not among the snapshots any more"):
        restore(repository, plan)
    assert names(root) == ["a"]
    assert (root / "a").read_text() == "second"


def test_modes_of_files_and_folders_come_back(repository: Repository, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d").chmod(0o750)
    (root / "kept").mkdir()
    (root / "kept").chmod(0o770)
    (root / "run").write_text("x")
    (root / "run").chmod(0o711)
    before = take(repository)
    (root / "d").rmdir()
    (root / "kept").chmod(0o700)
    (root / "run").chmod(0o755)
    now = take(repository)
    plan = planned(repository, before, now)
    done = restore(repository, plan)
    assert (mode_of(root / "d"), mode_of(root / "kept")) == (0o750, 0o770)
    assert mode_of(root / "run") == 0o711
    assert after_undo(repository, now, plan, done.changed) == take(repository) == before


def test_an_undo_works_where_the_kernel_cannot_exchange(
    repository: Repository, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    (root / "a").write_text("first")
    (root / "d").mkdir()
    before = take(repository)
    (root / "a").write_text("second")
    (root / "d").rmdir()
    (root / "made").write_text("agent")
    monkeypatch.setattr(restoring, "_renameat2", cannot)
    done = restore(repository, planned(repository, before, take(repository)))
    assert done.kept == ()
    assert names(root) == ["a", "d"]
    assert (root / "a").read_text() == "first"


def test_a_file_and_a_folder_change_places(repository: Repository, root: Path) -> None:
    (root / "a").write_text("file")
    (root / "b").mkdir()
    (root / "b/x").write_text("in a folder")
    before = take(repository)
    (root / "a").unlink()
    shutil.rmtree(root / "b")
    (root / "a").mkdir()
    (root / "a/x").write_text("in a folder")
    (root / "b").write_text("file")
    now = take(repository)
    plan = planned(repository, before, now)
    done = restore(repository, plan)
    assert take(repository) == before
    after = after_undo(repository, now, plan, done.changed)
    assert after == before
    restore(repository, plan_undo(repository, [(now, after)], take(repository)))
    assert take(repository) == now


# --- where snapshots are


def test_content_is_kept_byte_for_byte_whatever_the_workspace_says(
    repository: Repository, root: Path
) -> None:
    (root / ".gitattributes").write_text("* text eol=lf ident filter=lfs\n")
    content = b"one\r\ntwo $Id$\r\n"
    (root / "a.txt").write_bytes(content)
    before = take(repository)
    (root / "a.txt").unlink()
    restore(repository, planned(repository, before, take(repository)))
    assert (root / "a.txt").read_bytes() == content


def test_the_users_rules_for_a_repository_count_and_their_settings_do_not(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "rules").write_text("everywhere\n")
    (home / ".gitconfig").write_text(f"[core]\n\texcludesFile = {home}/rules\n")
    monkeypatch.setenv("HOME", str(home))
    (root / ".git/info").mkdir(parents=True)
    (root / ".git/info/exclude").write_text("here\n")
    for name in ("everywhere", "here"):
        (root / name).write_text("x")
    with Repository.open(tmp_path / "kept", root) as repository:
        uncovered = take(repository).uncovered
    assert uncovered == {b".git": NotCovered.REPOSITORY, b"here": NotCovered.IGNORED}


@pytest.mark.parametrize("name", ["data", "my data [1]!*"])
def test_our_own_data_in_the_workspace_is_not_covered(root: Path, name: str) -> None:
    with Repository.open(root / name / "checkpoints", root) as repository:
        (root / "a").write_text("x")
        (root / "data-of-mine").write_text("x")
        found = entries(repository, take(repository))
        assert set(found) == {b"a", b"data-of-mine"}
        again = take(repository)
        assert again == take(repository)


def test_one_process_at_a_time_uses_a_repository(tmp_path: Path, root: Path) -> None:
    opened = threading.Event()

    def open_too() -> None:
        with Repository.open(tmp_path / "kept", root):
            opened.set()

    with Repository.open(tmp_path / "kept", root):
        other = threading.Thread(target=open_too)
        other.start()
        assert not opened.wait(0.2)
    other.join(20)
    assert opened.is_set()


def test_a_repository_that_was_left_half_made_or_locked_is_mended(
    tmp_path: Path, root: Path
) -> None:
    (root / "a").write_text("x")
    with Repository.open(tmp_path / "kept", root) as repository:
        first = take(repository)
        (repository.directory / "index.lock").touch()
        (repository.directory / "config").write_text("[core]\n\tfileMode = false\n")
        (repository.directory / "info/attributes").unlink()
    (root / "a").chmod(0o755)
    with Repository.open(tmp_path / "kept", root) as repository:
        assert take(repository) != first
        assert (repository.directory / "info/attributes").exists()


def test_nobody_else_can_read_snapshots(repository: Repository, root: Path) -> None:
    (root / "a").write_text("x")
    (root / "d").mkdir()
    (root / "d/b").write_text("y")
    take(repository)
    repository.tidy()
    (root / "a").write_text("z")
    take(repository)
    top = repository.directory.parent
    found = [Path(folder) / n for folder, below, files in os.walk(top) for n in (*below, *files)]
    assert [path for path in (top, *found) if path.stat().st_mode & 0o077] == []


def test_the_users_git_is_never_touched(tmp_path: Path, root: Path) -> None:
    """Also not by an undo of calls that changed it, and not in a nested repository."""

    def git(*arguments: str, at: Path = root) -> None:
        who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_CONFIG_NOSYSTEM": "1"}
        who |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a", "HOME": str(tmp_path)}
        subprocess.run(["git", *arguments], cwd=at, check=True, env=os.environ | who)

    def everything() -> dict[str, object]:
        found: dict[str, object] = {}
        for top in (root / ".git", root / "nested/.git"):
            for folder, _, files in os.walk(top):
                for name in (*files, "."):
                    path = Path(folder) / name
                    about = path.stat()
                    content = path.read_bytes() if name != "." else b""
                    found[str(path)] = (content, about.st_mode, about.st_mtime_ns, about.st_ino)
        return found

    (root / "nested").mkdir()
    (root / "nested/inner").write_text("inner")
    (root / "a").write_text("first")
    for place in (root, root / "nested"):
        git("init", "-q", at=place)
        git("add", "-A", at=place)
        git("commit", "-q", "-m", "x", at=place)
    with Repository.open(tmp_path / "kept", root) as repository:
        start = everything()
        before = take(repository)
        assert everything() == start
        (root / "a").write_text("second")
        (root / "nested/inner").write_text("second")
        git("commit", "-q", "-am", "by the agent")
        now = everything()
        restore(repository, planned(repository, before, take(repository)))
        repository.tidy()
        assert recover(repository) is None
        assert everything() == now
    assert (root / "a").read_text() == "first"
    assert (root / "nested/inner").read_text() == "inner"


def test_what_is_dropped_gives_its_room_back(tmp_path: Path, root: Path) -> None:
    with Repository.open(tmp_path / "kept", root) as repository:
        (root / "a").write_bytes(os.urandom(1 << 20))
        take(repository)
        (old,) = [path for _, path in repository.kept()]
        old.rename(old.with_name("1000000000.000000"))
        (root / "a").write_bytes(b"small")
        newest = take(repository)
    assert tidy(tmp_path / "kept", keep_s=1e6, bytes_max=1 << 30) < 1 << 19
    with Repository.open(tmp_path / "kept", root) as repository:
        ((_, kept),) = repository.kept()
        assert kept.read_text().strip() == newest.id


def test_a_restored_link_is_a_link(repository: Repository, root: Path) -> None:
    (root / "link").symlink_to("nowhere")
    before = take(repository)
    (root / "link").unlink()
    (root / "link").write_text("agent")
    done: Restored = restore(repository, planned(repository, before, take(repository)))
    assert done.changed == (b"link",)
    assert os.readlink(root / "link") == "nowhere"
    assert entries(repository, take(repository))[b"link"] == FileEntry(
        entries(repository, before)[b"link"].blob, 0, link=True
    )
