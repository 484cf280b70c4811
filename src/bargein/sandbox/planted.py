"""Renames files that a command planted for the user's git, at paths that no mount can protect.

A mount protects an existing file or folder. It cannot cover a path where nothing is yet, or a
symbolic link. At some such paths a file makes the user's next `git` run a program. So we look at
them when a command has ended, rename new files, and the caller tells the user. Until then the files
are in effect: a user who runs git while a command runs is not protected.

The user's own work is left alone: if git's own configuration has changed, which no command can do,
the user was at work in the repository, and its new submodules stay.

Called on the loop. Nothing here waits.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from bargein.sandbox.gitlinks import LINKS_MAX, gitlinks, is_too_large, read_small
from bargein.sandbox.protected_paths import UsersRepository, git_folder_of, modules_of

SUFFIX: Final = ".set-aside"
_NESTED_MAX: Final = 3
_PLACES_MAX: Final = 10_000
_REPOSITORIES_MAX: Final = 1000
_NAMES_MAX: Final = 1000
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Lines of a configuration, without the blanks around them, that run nothing. Whatever else there is
# may. Each line can be read in one way only: of several, each would be tried, on the loop.
_PLAIN: Final = re.compile(
    r"""(
        [#;].*
        | \[ (core | user | remote\ "[^"\\]*" | branch\ "[^"\\]*") \]
        | (repositoryformatversion | filemode | bare | logallrefupdates | ignorecase | symlinks
            | precomposeunicode | worktree | url | fetch | remote | merge | name | email)
          [ \t]* = [^\\]*
    )?""",
    re.IGNORECASE | re.VERBOSE,
)

# What is at a path: device, number, and the target of a link.
_Mark = tuple[int, int, str]
_NOTHING: Final = (0, 0, "")


@dataclass(slots=True)
class _Found:
    """`places` are where git looks, `repositories` counts those that are there. The index of the
    `crowded` ones says more than can be looked through."""

    places: list[str]
    crowded: set[str]
    repositories: int = 0


class PlantWatch:
    """For the commands of one workspace. `begin` before each, `end` after it."""

    def __init__(self, repository: UsersRepository | None, watched: tuple[str, ...]) -> None:
        """Mounts protect those `watched` paths that are there and are no links."""
        self._repository = repository
        self._paths = watched
        self._commands = 0
        self._before: dict[str, _Mark] = {}
        self._places: dict[str, object] = {}
        self._config: object = None
        self._modules: set[str] = set()
        self._crowded: set[str] = set()
        self._known_index: dict[str, tuple[object, set[str]]] = {}

    def begin(self) -> None:
        if self._commands == 0:
            marks = {path: _mark(path) for path in self._paths}
            self._before = {
                path: mark for path, mark in marks.items() if mark == _NOTHING or mark[2]
            }
            if self._repository is not None:
                self._modules = set(_modules(self._repository))
                linked, self._crowded = self._linked(self._repository)
                self._places = {path: _about_repository(path) for path in linked}
                self._config = _stamp(os.path.join(self._repository.common, "config"))
        self._commands += 1

    def end(self) -> list[str]:
        """Returns the paths that were set aside, with the names that they have now."""
        self._commands -= 1
        planted = [path for path, mark in self._before.items() if _mark(path) != mark]
        moved = [now for path in planted if (now := _set_aside(path, self._before[path][2]))]
        repository = self._repository
        if repository is None or _stamp(f"{repository.common}/config") != self._config:
            return moved
        # Where git finds the repository of a submodule that is checked out later.
        new = sorted(set(_modules(repository)) - self._modules)
        linked, crowded = self._linked(repository)
        new += [path for path in linked if _about_repository(path) != self._places.get(path)]
        running = [path for path in new if self._runs_programs(path)]
        # These may name anything. Without one, git shows every file as changed, and runs nothing.
        running += [f"{git}/index" for git in sorted(crowded - self._crowded)]
        return [*moved, *filter(None, map(_set_aside, running))]

    def _runs_programs(self, path: str) -> bool:
        """Whether the configuration of the repository there may have more than plain settings."""
        folder = git_folder_of(Path(path))
        if folder is None:
            return os.path.islink(path)
        config = _configuration(folder)
        if str(config) in self._paths and str(config) not in self._before:
            # The user's, and mounted, so no command has changed it.
            return not _is_plain(folder / "config.worktree") and folder != config.parent
        if any(each.is_file() for each in folder.glob("hooks/*") if each.suffix != ".sample"):
            return True
        return not (_is_plain(config) and _is_plain(folder / "config.worktree"))

    def _linked(self, repository: UsersRepository) -> tuple[list[str], set[str]]:
        """Where git looks for repositories because an index says that there are some, and the
        repositories whose index says more than can be looked through."""
        found = _Found([], set())
        self._follow(repository, found, depth=0)
        return found.places, found.crowded

    def _follow(self, repository: UsersRepository, found: "_Found", depth: int) -> None:
        names = self._names(repository.git)
        if len(names) > LINKS_MAX or is_too_large(repository.git):
            found.crowded.add(repository.git)
        for name in sorted(names):
            if not name or name.startswith("/") or ".." in name.split("/"):
                continue
            if len(found.places) >= _PLACES_MAX or found.repositories >= _REPOSITORIES_MAX:
                found.crowded.add(repository.git)
                return
            place = os.path.join(repository.top, name, ".git")
            found.places.append(place)
            below = git_folder_of(Path(place))
            if below is None:
                continue
            found.repositories += 1
            if depth < _NESTED_MAX:
                inner = UsersRepository(os.path.dirname(place), str(below), str(below))
                self._follow(inner, found, depth + 1)
            elif self._names(str(below)):
                found.crowded.add(str(below))

    def _names(self, git: str) -> set[str]:
        stamp = _stamp(os.path.join(git, "index"))
        known = self._known_index.get(git)
        if known is None or known[0] != stamp:
            if len(self._known_index) >= _NAMES_MAX:
                self._known_index.clear()
            known = self._known_index[git] = stamp, gitlinks(git)
        return known[1]


def _is_plain(config: Path) -> bool:
    try:
        text = read_small(str(config))
    except (OSError, UnicodeDecodeError):
        return not os.path.lexists(config)
    return all(_PLAIN.fullmatch(line.strip(" \t\r")) for line in text.split("\n"))


def _modules(repository: UsersRepository) -> list[str]:
    found = islice(modules_of(Path(repository.common)), _PLACES_MAX)
    return [str(path) for path in found if not path.name.endswith(SUFFIX)]


def _mark(path: str) -> _Mark:
    try:
        found = os.lstat(path)
        target = os.readlink(path) if os.path.islink(path) else ""
    except OSError:
        return _NOTHING
    return found.st_dev, found.st_ino, target


def _about_repository(path: str) -> object:
    folder = git_folder_of(Path(path))
    config = None if folder is None else str(_configuration(folder))
    return _mark(path), config, None if config is None else _stamp(config)


def _configuration(folder: Path) -> Path:
    try:
        return folder / read_small(str(folder / "commondir")).strip() / "config"
    except (OSError, UnicodeDecodeError):
        return folder / "config"


def _stamp(path: str) -> object:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _set_aside(path: str, link: str = "") -> str:
    """Rename it, and make the link that was there again. Empty if nothing is there any more."""
    folder, name = os.path.split(path)
    try:
        handle = _open_folder(folder)
    except OSError:
        return ""  # a link leads there now, and git does not follow those
    try:
        for number in range(_NAMES_MAX):
            other = f"{name}{SUFFIX}{f'-{number}' if number else ''}"
            if not _exists(handle, other):
                os.rename(name, other, src_dir_fd=handle, dst_dir_fd=handle)
                return os.path.join(folder, other)
        return ""
    except FileNotFoundError:
        return ""
    finally:
        if link:
            with suppress(FileExistsError):
                os.symlink(link, name, dir_fd=handle)
        os.close(handle)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _open_folder(path: str) -> int:
    """Without following any link: commands may still be running, and swap folders for links."""
    handle = os.open("/", _DIRECTORY)
    for part in path.strip("/").split("/"):
        try:
            below = os.open(part, _DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
    return handle
