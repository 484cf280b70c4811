"""Paths that cannot leave the workspace, in spite of links, dots and races.

A path is walked one component at a time. Each directory is opened relative to the one before,
without following links. A link is read, and its components are walked instead. `..` returns to the
directory opened before, never above the root. So the kernel is never given a path that could
resolve to somewhere else, and swapping a component for a link at any moment leads to a refusal or
to another place inside the workspace.

Some directories are hidden as well, among them Bargein's own. They and the files in them are
recognized by their identity on the file system, so no link, hard link or mount leads there.

Not prevented: a hard link, or a mount inside the workspace, that somebody else made to another file
outside. This module imports only the standard library, because the search child uses it too.
"""

import errno
import itertools
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bargein.errors import ModelMisbehaved

_LINKS_MAX = 40
_HIDDEN_FILES_MAX = 10_000
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO or terminal swapped in after the check can neither block us nor become our terminal.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class PathRefused(ModelMisbehaved):
    """The path cannot be used. The message is for the model."""


# Identifies a file or directory whatever its name: device and inode.
Identity = tuple[int, int]


def identity_of(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory. `path` is its path without links, relative to the workspace.
    The name is `.` for the workspace itself."""

    directory: int
    name: str
    path: str
    hidden: frozenset[Identity] = frozenset()

    def stat(self) -> os.stat_result | None:
        """Stats the name itself, never the target of a link; None if it does not exist."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_to_read(self) -> int:
        """Returns a descriptor of the regular file, or raises `PathRefused`. Never blocks."""
        found = self.stat()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        refuse_unless_regular(found, self.path)
        descriptor = os.open(self.name, _READING, dir_fd=self.directory)
        try:
            opened = os.fstat(descriptor)
            refuse_unless_regular(opened, self.path)
            refuse_if_hidden(opened, self.path, self.hidden)
        except PathRefused:
            os.close(descriptor)
            raise
        return descriptor

    def open_directory(self) -> int:
        """Returns a descriptor that the directory can be listed with."""
        return os.open(self.name, LISTING, dir_fd=self.directory)


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


def refuse_unless_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "no file")
        raise PathRefused(f"{path} is {kind}, not a regular file.")


def refuse_if_hidden(found: os.stat_result, path: str, hidden: frozenset[Identity]) -> None:
    if identity_of(found) in hidden:
        raise PathRefused(f"{path} belongs to Bargein itself; tools may not access it.")


class Workspace:
    """The directory that file tools are confined to. They refuse the `hidden` directories and
    everything with an identity in `known_hidden`. `shown` is the path under which the model knows
    it, if that is another: that of the workspace, for a stage."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        hidden: Iterable[str] = (),
        known_hidden: Iterable[Identity] = (),
        shown: str | os.PathLike[str] = "",
    ) -> None:
        self.root = os.path.abspath(root)
        self.shown = os.path.abspath(shown) if shown else self.root
        self._real_root = os.path.realpath(root)
        self._hidden_directories = tuple(hidden)
        self._known_hidden = frozenset(known_hidden)

    def hidden(self) -> frozenset[Identity]:
        """Identities of the hidden directories and of the entries in them, as of now."""
        found = set(self._known_hidden)
        for directory in self._hidden_directories:
            try:
                identity = identity_of(os.stat(directory))
                with os.scandir(directory) as entries:
                    inside = itertools.islice(entries, _HIDDEN_FILES_MAX)
                    found.update((identity[0], entry.inode()) for entry in inside)
                found.difference_update(self._on_the_way_from(directory))
            except OSError:
                continue  # it does not exist or cannot be read
            found.add(identity)
        return frozenset(found)

    def _on_the_way_from(self, directory: str) -> Iterator[Identity]:
        """Yields a workspace inside a hidden directory, and the directories between the two."""
        path = self._real_root
        while path.startswith(os.path.realpath(directory).rstrip("/") + "/"):
            yield identity_of(os.stat(path))
            path = os.path.dirname(path)

    def __repr__(self) -> str:
        return f"<Workspace {self.root}>"

    @contextmanager
    def place(self, path: str, *, make_directories: bool = False) -> Iterator[Place]:
        """Opens where a path leads. Raises `PathRefused` if that is outside, OSError if nowhere."""
        parts = self._parts(path)
        walk = _Walk(self.root, parts, path, self.hidden())
        try:
            yield walk.go(make_directories)
        finally:
            walk.close()

    def named(self, path: str) -> str:
        """Returns a resource name for a path without I/O. Raises `PathRefused` if the path plainly
        leads out of the workspace."""
        inside = os.path.normpath("/".join(self._parts(path)))
        return f"file:{self._real_root}/{inside}"

    def found(self, path: str) -> str:
        """Returns a resource name for the file itself: the same for every path that leads there."""
        try:
            with self.place(path) as place:
                return f"real file:{self._real_root}/{place.path}"
        except OSError:
            return f"real {self.named(path)}"

    def _parts(self, path: str) -> list[str]:
        if "\0" in path:
            raise PathRefused("a path cannot contain a NUL character.")
        if path.startswith("~"):
            raise PathRefused(
                f"{path}: the home directory is not reachable; give a path from the workspace."
            )
        if path.startswith("/"):
            path = self._inside(path)
        return [part for part in path.split("/") if part not in ("", ".")]

    def _inside(self, path: str) -> str:
        roots = (self.shown, os.path.realpath(self.shown), self.root, self._real_root)
        for root in roots:
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return path[len(root) :]
        raise PathRefused(
            f"{path} is outside the workspace {self.shown}; give a path from there, such as "
            "src/main.py."
        )


class _Walk:
    """The directories opened on the way, outermost first, and the components left to walk."""

    def __init__(
        self, root: str, parts: list[str], given: str, hidden: frozenset[Identity]
    ) -> None:
        self._left = deque(parts)
        self._given = given
        self._hidden = hidden
        self._opened: list[int] = []
        self._names: list[str] = []
        self._links = 0
        self._opened.append(os.open(root, _DIRECTORY & ~os.O_NOFOLLOW))

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())

    def go(self, make_directories: bool) -> Place:
        self._refuse_if_hidden(self._opened[-1])
        while self._left:
            part = self._left.popleft()
            if part == "..":
                self._back()
            elif self._follow(part):
                continue
            elif not self._left:
                return self._place(part)
            else:
                self._enter(part, make_directories)
        path = "/".join(self._names) or "."
        return Place(self._opened[-1], ".", path, self._hidden)

    def _place(self, name: str) -> Place:
        place = Place(self._opened[-1], name, "/".join([*self._names, name]), self._hidden)
        found = place.stat() if self._hidden else None
        if found is not None:
            refuse_if_hidden(found, self._given, self._hidden)
        return place

    def _refuse_if_hidden(self, directory: int) -> None:
        if self._hidden:
            refuse_if_hidden(os.fstat(directory), self._given, self._hidden)

    def _back(self) -> None:
        if not self._names:
            raise PathRefused(f"{self._given} leads out of the workspace.")
        self._names.pop()
        os.close(self._opened.pop())

    def _follow(self, part: str) -> bool:
        """If the component is a link, queues its components instead and returns True."""
        try:
            target = os.readlink(part, dir_fd=self._opened[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return False
            raise
        self._links += 1
        if target.startswith("/"):
            raise PathRefused(
                f"{self._given} goes through {'/'.join([*self._names, part])}, a link to "
                f"{target}. Only relative links that stay inside the workspace are "
                "followed."
            )
        if self._links > _LINKS_MAX:
            raise PathRefused(f"{self._given} goes through too many links.")
        words = [word for word in target.split("/") if word not in ("", ".")]
        self._left.extendleft(reversed(words))
        return True

    def _enter(self, part: str, make: bool) -> None:
        here = self._opened[-1]
        try:
            opened = os.open(part, _DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            if not make:
                raise
            try:
                os.mkdir(part, dir_fd=here)
            except FileExistsError:
                pass  # opening it shows whether it was created or something was swapped in
            opened = os.open(part, _DIRECTORY, dir_fd=here)
        self._opened.append(opened)
        self._names.append(part)
        self._refuse_if_hidden(opened)
