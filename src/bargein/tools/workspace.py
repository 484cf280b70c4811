"""Paths that cannot leave the workspace, whatever links, dots or races are brought up against them.

A path is walked one component at a time. Each directory is opened relative to the one before,
never following a link; a link is read and its words are walked in its place; `..` goes back to the
directory that was opened before, and never above the root. So at no moment is the kernel given a
path that it could resolve to somewhere else, and swapping a component for a link at any moment
leads to a refusal or to another place inside.

Some directories are hidden besides, Bargein's own among them. They are known by their identity on
the file system, and so are the files in them: no link, hard link or mount leads there either.

What is not kept out: a hard link, or a mount inside the workspace, that somebody else made to
another file outside. Only the standard library is imported here: a search in a child process uses
it too.
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
# Neither a FIFO nor a terminal that was swapped in after the look can block or take over.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class PathRefused(ModelMisbehaved):
    """The path cannot be used. The message is written for the model."""


# A file or directory, whatever its name is: the device and its number there.
Identity = tuple[int, int]


def identity_of(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory; `path` is where that is, without links, from the workspace.
    The name is `.` for the workspace itself."""

    directory: int
    name: str
    path: str
    hidden: frozenset[Identity] = frozenset()

    def stat(self) -> os.stat_result | None:
        """Of the name itself, never of what a link points to; None if there is nothing."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_to_read(self) -> int:
        """A descriptor of the regular file, or `PathRefused`. Never blocks."""
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
        """A descriptor of the directory that can be listed."""
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
        raise PathRefused(f"{path} belongs to Bargein itself, and tools have no access to it.")


class Workspace:
    """A directory that file tools are confined to. They refuse the directories `hidden`, and
    whatever has one of the identities `known_hidden`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        hidden: Iterable[str] = (),
        known_hidden: Iterable[Identity] = (),
    ) -> None:
        self.root = os.path.abspath(root)
        self._real_root = os.path.realpath(root)
        self._hidden_directories = tuple(hidden)
        self._known_hidden = frozenset(known_hidden)

    def hidden(self) -> frozenset[Identity]:
        """What is hidden now: the directories, and what is in them."""
        found = set(self._known_hidden)
        for directory in self._hidden_directories:
            try:
                identity = identity_of(os.stat(directory))
                with os.scandir(directory) as entries:
                    inside = itertools.islice(entries, _HIDDEN_FILES_MAX)
                    found.update((identity[0], entry.inode()) for entry in inside)
                found.difference_update(self._on_the_way_from(directory))
            except OSError:
                continue  # it does not exist, or nobody can read it
            found.add(identity)
        return frozenset(found)

    def _on_the_way_from(self, directory: str) -> Iterator[Identity]:
        """The directories below a hidden one that lead to a workspace inside it, and itself."""
        path = self._real_root
        while path.startswith(os.path.realpath(directory).rstrip("/") + "/"):
            yield identity_of(os.stat(path))
            path = os.path.dirname(path)

    def __repr__(self) -> str:
        return f"<Workspace {self.root}>"

    @contextmanager
    def place(self, path: str, *, make_directories: bool = False) -> Iterator[Place]:
        """Where a path leads. Raises `PathRefused` if that is outside, OSError if it is nowhere."""
        parts = self._parts(path)
        walk = _Walk(self.root, parts, path, self.hidden())
        try:
            yield walk.go(make_directories)
        finally:
            walk.close()

    def named(self, path: str) -> str:
        """A name for a path, without a look at the file system. Raises `PathRefused` for what can
        be seen to lead out of the workspace."""
        inside = os.path.normpath("/".join(self._parts(path)))
        return f"file:{self._real_root}/{inside}"

    def found(self, path: str) -> str:
        """A name for what a path leads to, the same for every path that leads there."""
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
        for root in (self.root, self._real_root):
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return path[len(root) :]
        raise PathRefused(
            f"{path} is outside the workspace {self.root}; give a path from there, such as "
            "src/main.py."
        )


class _Walk:
    """The directories that were opened on the way, outermost first, and what is left to walk."""

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
        """If it is a link, walk its words instead."""
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
                f"{target}. Only links that are relative and stay inside the workspace are "
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
                pass  # somebody else made it, or swapped something in: opening it will tell
            opened = os.open(part, _DIRECTORY, dir_fd=here)
        self._opened.append(opened)
        self._names.append(part)
        self._refuse_if_hidden(opened)
