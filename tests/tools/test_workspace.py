"""No path leads out of the workspace: not with dots, links, devices or races."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path

import pytest

from bargein.tools.workspace import PathRefused, Workspace

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace `inside` next to a folder `outside` that has a secret."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    inside = tmp_path / "inside"
    (inside / "sub/deep").mkdir(parents=True)
    (inside / "file").write_text("ours")
    (inside / "sub/file").write_text("ours, deeper")
    return inside


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace(folder)


@pytest.fixture(autouse=True)
def leaves_no_descriptor() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert len(set(os.listdir("/proc/self/fd"))) == len(before)


def read(workspace: Workspace, path: str) -> str:
    with workspace.place(path) as place, os.fdopen(place.open_to_read(), "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("file", "ours"),
        ("./file", "ours"),
        ("sub/../file", "ours"),
        ("sub//file", "ours, deeper"),
        ("sub/deep/../../sub/./file", "ours, deeper"),
    ],
)
def test_paths_inside_lead_where_they_say(workspace: Workspace, path: str, content: str) -> None:
    assert read(workspace, path) == content
    assert read(workspace, f"{workspace.root}/{path}") == content


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/secret",
        "sub/../../outside/secret",
        "sub/deep/../../../outside/secret",
        "/etc/passwd",
        "/",
        "~/secret",
        "~root/x",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd",
        "/dev/stdin",
        "file\0/../x",
    ],
)
def test_paths_outside_are_refused(workspace: Workspace, path: str) -> None:
    with pytest.raises(PathRefused):
        read(workspace, path)


def test_an_absolute_path_that_only_begins_like_the_workspace_is_refused(
    workspace: Workspace, folder: Path
) -> None:
    sibling = folder.parent / "inside-out"
    sibling.mkdir()
    (sibling / "secret").write_text("secret")
    with pytest.raises(PathRefused, match="outside the workspace"):
        read(workspace, str(sibling / "secret"))
    with pytest.raises(PathRefused, match="leads out"):
        read(workspace, f"{folder}/../outside/secret")


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("escape", "../outside/secret"),
        ("escape", "sub/../../outside/secret"),
        ("escape", "/etc/passwd"),
        ("escape", "/proc/self/root/etc/passwd"),
        ("sub/escape", "../../outside/secret"),
    ],
)
def test_links_that_lead_out_are_refused(
    workspace: Workspace, folder: Path, link: str, target: str
) -> None:
    (folder / link).symlink_to(target)
    with pytest.raises(PathRefused):
        read(workspace, link)


def test_a_directory_that_is_a_link_out_is_refused(workspace: Workspace, folder: Path) -> None:
    (folder / "way").symlink_to("../outside")
    with pytest.raises(PathRefused):
        read(workspace, "way/secret")
    with pytest.raises(PathRefused):
        read(workspace, "sub/../way/secret")
    (folder / "absolute").symlink_to(folder.parent / "outside")
    with pytest.raises(PathRefused, match="Only relative links"):
        read(workspace, "absolute/secret")


def test_links_that_stay_inside_are_followed(workspace: Workspace, folder: Path) -> None:
    (folder / "way").symlink_to("sub/deep")
    (folder / "sub/deep/back").symlink_to("../../file")
    assert read(workspace, "way/back") == "ours"
    assert workspace.found("way/back") == workspace.found("file")
    assert workspace.found(f"{folder}/sub/../file") == workspace.found("file")
    assert workspace.found("sub/new") == workspace.found("way/../new")
    assert workspace.found("nowhere/new").endswith("/inside/nowhere/new")
    # By its words alone, a path has a name that is no other's.
    assert workspace.named(f"{folder}/sub/../file") == workspace.named("file")
    assert workspace.named("way/back") != workspace.named("file")


def test_links_that_go_round_in_circles_are_refused(workspace: Workspace, folder: Path) -> None:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    with pytest.raises(PathRefused, match="too many links"):
        read(workspace, "one")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_directory])
def test_what_is_no_regular_file_is_refused_at_once(
    workspace: Workspace, folder: Path, make: Callable[[Path], None]
) -> None:
    make(folder / "odd")
    with pytest.raises(PathRefused, match="not a regular file"):
        read(workspace, "odd")


def test_devices_are_refused() -> None:
    with pytest.raises(PathRefused, match="zero is a character device"):
        read(Workspace("/dev"), "zero")


def test_a_workspace_named_through_a_link_takes_both_names(folder: Path) -> None:
    (folder.parent / "alias").symlink_to("inside")
    workspace = Workspace(folder.parent / "alias")
    assert read(workspace, "file") == "ours"
    assert read(workspace, str(folder.parent / "alias/file")) == "ours"
    assert read(workspace, str(folder / "file")) == "ours"


class Flipper:
    """A thread that swaps a name between a harmless thing and a link out, as fast as it can."""

    def __init__(self, name: Path, harmless: Callable[[Path], None], target: str) -> None:
        self._name = name
        self._harmless = harmless
        self._target = target
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_s)

    def _run(self) -> None:
        numbers, turns = count(), cycle((True, False))
        new = self._name.with_name("flip.new")
        while not self._over.is_set():
            if next(turns):
                self._harmless(new)
            else:
                new.symlink_to(self._target)
            while os.path.lexists(new):
                # What is walked meanwhile may make the directory anew.
                with suppress(OSError):
                    self._name.rename(self._name.with_name(f"flip.{next(numbers)}"))
                with suppress(OSError):
                    new.rename(self._name)


def harmless_file(path: Path) -> None:
    path.write_text("ours")


def harmless_directory(path: Path) -> None:
    path.mkdir()
    (path / "secret").write_text("ours")


def read_while_it_flips(workspace: Workspace, path: str) -> set[str]:
    """What was seen, until both what is harmless and a refusal were seen often."""
    seen: Counter[str] = Counter()
    while seen["ours"] < 50 or seen["PathRefused"] < 50:
        try:
            seen[read(workspace, path)] += 1
        except (PathRefused, OSError) as error:
            seen[type(error).__name__] += 1
    return set(seen)


@pytest.mark.parametrize("target", ["../outside/secret", "/etc/passwd"])
def test_a_file_swapped_for_a_link_while_it_is_read(
    workspace: Workspace, folder: Path, target: str
) -> None:
    with Flipper(folder / "flip", harmless_file, target):
        seen = read_while_it_flips(workspace, "flip")
    # A file may be met before it was written to.
    assert seen <= {"ours", "", "PathRefused", "FileNotFoundError", "OSError"}


@pytest.mark.parametrize("target", ["../outside", "/etc"])
def test_a_directory_swapped_for_a_link_while_it_is_walked(
    workspace: Workspace, folder: Path, target: str
) -> None:
    with Flipper(folder / "flip", harmless_directory, target):
        seen = read_while_it_flips(workspace, "flip/secret")
    assert seen <= {"ours", "", "PathRefused", "FileNotFoundError", "NotADirectoryError"}


def test_directories_are_made_inside_and_never_through_a_swapped_link(
    workspace: Workspace, folder: Path
) -> None:
    with workspace.place("new/er/file", make_directories=True) as place:
        assert place.path == "new/er/file"
    assert (folder / "new/er").is_dir()

    made, refused = 0, 0
    with Flipper(folder / "flip", Path.mkdir, "../outside"):
        while made < 40 or refused < 40:
            try:
                with workspace.place(f"flip/made{made}/file", make_directories=True):
                    made += 1
            except (PathRefused, OSError):
                refused += 1
    assert os.listdir(folder.parent / "outside") == ["secret"]


def swapped_in_after(
    monkeypatch: pytest.MonkeyPatch, look: str, name: Path, make: Callable[[Path], None]
) -> None:
    """Right after the next `os.<look>` of that name, something else is there."""
    real = getattr(os, look)

    def looking(path: object, *args: object, **more: object) -> object:
        try:
            return real(path, *args, **more)
        finally:
            if path == name.name:
                monkeypatch.undo()
                name.rename(name.with_name("moved"))
                make(name)

    monkeypatch.setattr(os, look, looking)


def link_out(path: Path) -> None:
    path.symlink_to("../outside/secret")


def link_to_folder_out(path: Path) -> None:
    path.symlink_to("../outside")


@pytest.mark.parametrize("make", [link_out, make_fifo])
def test_a_file_swapped_right_after_the_look_is_not_read(
    workspace: Workspace,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
) -> None:
    swapped_in_after(monkeypatch, "stat", folder / "file", make)
    with pytest.raises((PathRefused, OSError)):
        read(workspace, "file")
    assert (folder / "moved").exists()


def test_a_folder_swapped_right_after_the_look_is_not_entered(
    workspace: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub/secret").write_text("ours")
    swapped_in_after(monkeypatch, "readlink", folder / "sub", link_to_folder_out)
    with pytest.raises((PathRefused, OSError)):
        read(workspace, "sub/secret")
    assert (folder / "moved").exists()


# --- directories of Bargein's own


@pytest.fixture
def home(folder: Path) -> Path:
    """A data directory inside the workspace, with ways that lead to it."""
    home = folder / "sub/home"
    (home / "below").mkdir(parents=True)
    (home / "gateway.json").write_text("token")
    (folder / "link").symlink_to("sub/home")
    (folder / "link to file").symlink_to("sub/home/gateway.json")
    os.link(home / "gateway.json", folder / "hard link")
    return home


@pytest.mark.parametrize(
    "path",
    [
        "sub/home/gateway.json",
        "sub/home",
        "sub/home/.",
        "sub/home/below",
        "sub/home/new",
        "sub/home/below/new",
        "sub/deep/../home/gateway.json",
        "link/gateway.json",
        "link",
        "link to file",
        "hard link",
    ],
)
def test_a_hidden_directory_is_refused_by_whatever_path(
    folder: Path, home: Path, path: str
) -> None:
    workspace = Workspace(folder, [str(home)])
    for given in (path, str(folder / path)):
        with (
            pytest.raises(PathRefused, match="belongs to Bargein itself"),
            workspace.place(given, make_directories=True) as place,
        ):
            os.close(place.open_to_read())
    assert sorted(os.listdir(home)) == ["below", "gateway.json"]
    assert read(workspace, "sub/file") == "ours, deeper"


def test_hidden_when_it_is_made_later_and_under_another_name(folder: Path) -> None:
    home = folder / "later"
    workspace = Workspace(folder, [str(home)])
    home.mkdir()
    (home / "file").write_text("secret")
    with pytest.raises(PathRefused, match="belongs to Bargein itself"):
        read(workspace, "later/file")
    # It is known by what it is: the name can be changed only by whoever could read it anyway.
    identities = workspace.hidden()
    home.rename(folder / "renamed")
    with pytest.raises(PathRefused, match="belongs to Bargein itself"):
        read(Workspace(folder, known_hidden=identities), "renamed/file")


def test_a_workspace_that_is_hidden_itself_is_refused(folder: Path) -> None:
    with pytest.raises(PathRefused, match="belongs to Bargein itself"):
        read(Workspace(folder, [str(folder)]), "file")


def test_the_whole_file_system_as_workspace_has_no_way_around(tmp_path: Path) -> None:
    (tmp_path / "gateway.json").write_text("token")
    workspace = Workspace("/", [str(tmp_path)])
    for path in (
        f"{tmp_path}/gateway.json",
        f"/proc/self/root{tmp_path}/gateway.json",
        f"/proc/{os.getpid()}/root{tmp_path}/gateway.json",
        f"/proc/thread-self/root{tmp_path}/gateway.json",
    ):
        with pytest.raises(PathRefused):
            read(workspace, path)


@pytest.mark.parametrize("name", ["work", "deep/work"])
def test_a_workspace_inside_a_hidden_directory_works(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    work = home / name
    work.mkdir(parents=True)
    (home / "gateway.json").write_text("token")
    (work / "file").write_text("ours")
    os.link(home / "gateway.json", work / "hard link")
    workspace = Workspace(work, [str(home)])
    assert read(workspace, "file") == "ours"
    with workspace.place("new/file", make_directories=True) as place:
        assert place.path == "new/file"
    with pytest.raises(PathRefused, match="belongs to Bargein itself"):
        read(workspace, "hard link")
