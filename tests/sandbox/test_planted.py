"""What commands plant for the user's git, where no mount can protect the place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bargein.sandbox.gitlinks import gitlinks
from bargein.sandbox.planted import PlantWatch
from bargein.sandbox.protected_paths import git_folders, hidden_paths

IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@y")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
    )
    return done.stdout.strip()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    repository(folder)
    return folder


def repository(folder: Path, *settings: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    for name, value in (setting.split("=", 1) for setting in settings):
        git(folder, "config", name, value)
    return git(folder, "rev-parse", "HEAD")


def link(folder: Path, path: str, commit: str) -> None:
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")


def watch(folder: Path) -> PlantWatch:
    found = git_folders(str(folder))
    return PlantWatch(found.repository, found.watched)


def test_gitlinks_are_found_in_every_kind_of_index(work: Path) -> None:
    for number in range(300):
        (work / f"f{number}").write_text("x")
    git(work, "add", ".")
    commit = git(work, "rev-parse", "HEAD")
    assert gitlinks(str(work / ".git")) == set()
    link(work, "sub/deep", commit)
    for words in (["--index-version", "2"], ["--index-version", "4"]):
        git(work, "update-index", *words)
        assert gitlinks(str(work / ".git")) == {"sub/deep"}
    git(work, "update-index", "--split-index")
    link(work, "f11", commit)
    assert {"sub/deep", "f11"} <= gitlinks(str(work / ".git"))


def test_gitlinks_are_found_with_long_hashes_and_in_a_broken_index(tmp_path: Path) -> None:
    work = tmp_path / "long"
    work.mkdir()
    git(work, "init", "-q", "--object-format=sha256")
    link(work, "sub", "a" * 64)
    assert gitlinks(str(work / ".git")) == {"sub"}
    index = work / ".git/index"
    whole = index.read_bytes()
    for length in (0, 3, 11, 12, 40, len(whole) - 30):
        index.write_bytes(whole[:length])
        assert gitlinks(str(work / ".git")) <= {"sub"}
    index.write_bytes(b"DIRC\0\0\0\x04\xff\xff\xff\xff" + b"\xff" * 100)
    assert isinstance(gitlinks(str(work / ".git")), set)


def test_a_repository_that_a_command_links_and_configures_is_set_aside(work: Path) -> None:
    watching = watch(work)
    watching.begin()
    link(work, "evil", repository(work / "evil", "core.fsmonitor=touch ../out; false"))
    assert watching.end() == [str(work / "evil/.git.set-aside")]
    git(work, "status")
    assert not (work / "out").exists()


def test_one_that_is_configured_later_is_set_aside_then(work: Path) -> None:
    watching = watch(work)
    watching.begin()
    link(work, "evil", repository(work / "evil"))
    assert watching.end() == []  # nothing in it runs anything
    watching.begin()
    git(work / "evil", "config", "core.fsmonitor", "touch ../out; false")
    assert watching.end() == [str(work / "evil/.git.set-aside")]


def test_what_the_user_has_stays(work: Path) -> None:
    commit = repository(work / "mine", "core.fsmonitor=true", "alias.x=!true")
    watching = watch(work)
    watching.begin()
    link(work, "mine", commit)
    assert watching.end() == []
    watching.begin()
    # The user adds a submodule while a command runs, which changes the configuration.
    link(work, "new", repository(work / "new", "core.fsmonitor=true"))
    git(work, "config", "submodule.new.url", "elsewhere")
    assert watching.end() == []


def test_configurations_elsewhere_are_set_aside_and_links_restored(work: Path) -> None:
    hooks = work / ".git/hooks"
    subprocess.run(["rm", "-rf", hooks], check=True)
    (work / "shared").mkdir()
    hooks.symlink_to("../shared")
    watching = watch(work)
    watching.begin()
    (work / ".git/commondir").write_text("../evil")
    hooks.unlink()
    hooks.mkdir()
    moved = watching.end()
    assert {os.path.basename(path) for path in moved} == {"commondir.set-aside", "hooks.set-aside"}
    assert os.readlink(hooks) == "../shared"
    assert not (work / ".git/commondir").exists()


def test_commands_at_the_same_time_are_compared_with_what_was_before_the_first(work: Path) -> None:
    watching = watch(work)
    watching.begin()
    (work / ".git/commondir").write_text("../evil")
    watching.begin()
    assert len(watching.end()) == 1
    (work / ".git/commondir").write_text("../evil")
    assert watching.end() == [str(work / ".git/commondir.set-aside-1")]


def test_a_repository_for_a_submodule_that_is_checked_out_later_is_set_aside(work: Path) -> None:
    modules = work / ".git/modules"
    watching = watch(work)
    for name, settings in (("plain", ()), ("libs/evil", ("core.fsmonitor=true",)), ("hooked", ())):
        watching.begin()
        repository(work / "made", *settings)
        if name == "hooked":
            (work / "made/.git/hooks").mkdir(exist_ok=True)
            (work / "made/.git/hooks/post-checkout").write_text("#!/bin/sh")
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "made/.git").rename(modules / name)
        expected = [] if name == "plain" else [str(modules / f"{name}.set-aside")]
        assert watching.end() == expected
        assert (modules / name).exists() is (name == "plain")


def test_nothing_that_a_command_leaves_makes_us_wait(work: Path) -> None:
    """We look at these places on the loop: a FIFO would hold up everybody."""
    commit = git(work, "rev-parse", "HEAD")
    watching = watch(work)
    watching.begin()
    for number, name in enumerate((".git", ".git/config", ".git/commondir", ".git/index")):
        folder = work / f"s{number}"
        if name == ".git":
            folder.mkdir()
        else:
            repository(folder)
            (work / f"s{number}" / name).unlink(missing_ok=True)
        link(work, f"s{number}", commit)
        os.mkfifo(folder / name)
    moved = watching.end()
    assert str(work / "s1/.git.set-aside") in moved
    watching.begin()
    (work / ".git/index").unlink()
    os.mkfifo(work / ".git/index")
    assert watching.end() == []


def test_an_index_too_large_to_look_through_is_set_aside(work: Path) -> None:
    watching = watch(work)
    watching.begin()
    with (work / ".git/index").open("ab") as file:
        file.truncate(1 << 40)
    assert watching.end() == [str(work / ".git/index.set-aside")]


def test_one_among_more_than_can_be_looked_at_does_not_run(work: Path) -> None:
    watching = watch(work)
    watching.begin()
    commit = repository(work / "zz", "core.fsmonitor=touch ../out; false")
    lines = [f"160000 {commit}\t{name}" for name in (*range(10_000, 20_001), "zz")]
    subprocess.run(
        ["git", "update-index", "--index-info"],
        cwd=work,
        input="\n".join(lines).encode(),
        check=True,
    )
    assert str(work / ".git/index.set-aside") in watching.end()
    git(work, "status")
    assert not (work / "out").exists()
    assert not git_folders(str(work)).doubt
    (work / ".git/index.set-aside").rename(work / ".git/index")
    assert "more repositories than can be watched" in git_folders(str(work)).doubt


def test_one_that_is_deeper_than_can_be_looked_at_does_not_run(work: Path) -> None:
    watching = watch(work)
    watching.begin()
    above = work
    for name in "abcdefg":
        link(above, name, repository(above / name))
        above /= name
    git(above, "config", "core.fsmonitor", f"touch {work}/out; false")
    assert watching.end() == [str(work / "a/b/c/d/.git/index.set-aside")]
    git(work, "status")
    assert not (work / "out").exists()


def test_folders_that_lead_to_themselves_are_looked_at_for_a_moment(work: Path) -> None:
    commit = git(work, "rev-parse", "HEAD")
    watching = watch(work)
    watching.begin()
    for name in "abcdefghijklmnopqrst":
        link(work, name, commit)
        (work / name).symlink_to(".")
    assert watching.end() == [str(work / ".git/index.set-aside")]


@pytest.mark.parametrize("line", [" " * 500_000 + "x", "name = " + " " * 500_000 + "\\"])
def test_a_line_of_blanks_does_not_hold_up_the_loop(work: Path, line: str) -> None:
    """It took time by the square of its length: hours, in which nothing could be stopped."""
    watching = watch(work)
    watching.begin()
    link(work, "slow", repository(work / "slow"))
    with (work / "slow/.git/config").open("a") as file:
        file.write(line)
    assert watching.end() == [str(work / "slow/.git.set-aside")]


def test_an_index_without_an_end_is_read_once(work: Path) -> None:
    def entry(name: bytes, strip: int = 0) -> bytes:
        return b"\0" * 24 + b"\0\0\xe0\0" + b"\0" * 32 + b"\0\0" + bytes([strip]) + name

    head = b"DIRC\0\0\0\x04\xff\xff\xff\xff"
    index = work / ".git/index"
    index.write_bytes(head + entry(b"one\0") + entry(b"two" + b"x" * 1000))
    assert gitlinks(str(work / ".git")) == {"one"}
    # Each name begins with all of the one before, which is as long as an index may be.
    index.write_bytes(head + entry(b"y" * (30 << 20) + b"\0") + entry(b"z\0") * 400_000)
    assert gitlinks(str(work / ".git")) == set()


def test_a_repository_with_the_users_configuration_and_one_of_its_own(work: Path) -> None:
    git(work, "config", "extensions.worktreeConfig", "true")
    watching = watch(work)
    watching.begin()
    commit = repository(work / "evil")
    (work / "evil/.git/commondir").write_text(str(work / ".git"))
    (work / "evil/.git/config.worktree").write_text("[core]\nfsmonitor = touch out\n")
    link(work, "evil", commit)
    assert watching.end() == [str(work / "evil/.git.set-aside")]


def test_a_link_on_the_way_is_not_followed(work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    commit = repository(outside, "core.fsmonitor=true")
    watching = watch(work)
    watching.begin()
    link(work, "away/repo", commit)
    (tmp_path / "up").mkdir()
    outside.rename(tmp_path / "up/repo")
    (work / "away").symlink_to(tmp_path / "up")
    assert watching.end() == []
    assert (tmp_path / "up/repo/.git").is_dir()


def test_what_git_runs_is_protected_wherever_it_is_named(work: Path, tmp_path: Path) -> None:
    repository(work / "a/b/below")
    git(work, "config", "core.hooksPath", ".husky/_")
    git(work, "config", "include.path", "../shared.gitconfig")
    git(work, "worktree", "add", "-q", str(tmp_path / "other"))
    protected = git_folders(str(work)).protected
    for path in (
        "a/b/below/.git/hooks",
        ".husky/_",
        "shared.gitconfig",
        ".git/worktrees/other/commondir",
    ):
        assert str(work / path) in protected, path
    inside = git_folders(str(work / "a"))
    assert inside.writable == (str(work / ".git"),)
    assert str(work / "a/.git") in inside.watched


@pytest.mark.parametrize(
    "written",
    [
        "[core]\n\thooksPath = .husky # shared with all\n",
        "[core] hooksPath = .husky\n",
        '[core]\n\tHOOKSPATH=".hus"ky ; x',
        "[core]\n\thooksPath = .hu\\\nsky\n",
        '[a "]"]\n\tb\n[core]\r\n\thooksPath = .husky  \r\n',
        "[include]\n\tpath = ../more # and so on\n",
    ],
)
def test_configuration_is_read_as_git_reads_it(work: Path, written: str) -> None:
    (work / "more").write_text("[core]\n\thooksPath = .husky\n")
    with (work / ".git/config").open("a", newline="") as file:
        file.write(written)
    assert git(work, "config", "core.hooksPath").strip() == ".husky"
    assert str(work / ".husky") in git_folders(str(work)).protected


def test_what_includes_itself_is_read_once(work: Path) -> None:
    (work / "more").write_text("[include]\n\tpath = more\n\tpath = ./more\n")
    git(work, "config", "include.path", "../more")
    assert str(work / "more") in git_folders(str(work)).protected


def test_a_repository_that_is_a_link_makes_commands_ask(tmp_path: Path) -> None:
    repository(tmp_path / "real")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/.git").symlink_to(tmp_path / "real/.git")
    assert "is a link" in git_folders(str(tmp_path / "work")).doubt


def test_hidden_paths_may_be_relative_to_the_workspace() -> None:
    found = hidden_paths({"HOME": "/h"}, ["notes/private", "/absolute", "~x"], "/w")
    assert "/w/notes/private" in found
    assert "/absolute" in found
    assert "/h/.ssh" in found
