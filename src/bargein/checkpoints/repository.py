"""Runs git's plumbing over a repository of our own: one for each workspace, in the data directory.

The agent can write anything into the workspace, so nothing in it may decide what git does here:

- git is given our directory by name and never looks for a repository. It reads no configuration but
  ours.
- Our attributes come before those of the workspace: content is kept byte for byte.
- Filters, hooks and file system monitors are configured in our directory, which has none.

One process at a time uses a repository: `Repository.open` waits for a lock that dies with its
holder.
"""

import fcntl
import hashlib
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

GIT_S_MAX = 600.0

_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding -diff -merge\n"
_CONFIG = """\
[core]
	repositoryformatversion = 0
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = false
	precomposeUnicode = false
	preloadIndex = true
	looseCompression = 1
[gc]
	auto = 0
[index]
	version = 4
	skipHash = true
"""


class CheckpointFailed(Exception):
    """A snapshot or an undo could not be made. The message is for people."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a snapshot covers at most."""

    file_bytes_max: int = 16 << 20
    files_max: int = 250_000
    new_bytes_max: int = 2 << 30


class Repository:
    """The snapshots of one workspace."""

    def __init__(self, directory: Path, workspace: str, bounds: Bounds, lock: int) -> None:
        self.directory = directory
        self.workspace = workspace
        self.bounds = bounds
        self._lock = lock
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", ""),
            "LC_ALL": "C.UTF-8",
            "GIT_DIR": str(directory),
            "GIT_WORK_TREE": workspace,
            "GIT_INDEX_FILE": str(directory / "index"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CEILING_DIRECTORIES": "/",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
        }

    @classmethod
    def open(
        cls,
        directory: Path,
        workspace: str | os.PathLike[str],
        *,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    ) -> Self:
        """Opens the repository for this workspace below `directory`, and makes it if there is
        none. Waits while another process uses it; the caller bounds the wait."""
        root = os.path.realpath(workspace)
        if not os.path.isdir(root):
            raise CheckpointFailed(f"{root} is no folder: there is nothing to keep")
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
        own = directory / name
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make(own, root)
        except BaseException:
            os.close(lock)
            raise
        return cls(own / "git", root, bounds, lock)

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def git(
        self,
        *arguments: str | bytes,
        feed: bytes = b"",
        index: Path | None = None,
        work_tree: bytes | None = None,
    ) -> bytes:
        """Runs one command of git's and returns what it prints. Raises `CheckpointFailed`."""
        environment: dict[str, str | bytes] = dict(self._environment)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        if work_tree is not None:
            environment["GIT_WORK_TREE"] = work_tree
        try:
            done = subprocess.run(
                ["git", *arguments],
                input=feed,
                capture_output=True,
                cwd=work_tree or self.workspace,
                env=environment,
                timeout=GIT_S_MAX,
                check=False,
            )
        except FileNotFoundError as error:
            raise CheckpointFailed("git is not installed: snapshots need it") from error
        except subprocess.TimeoutExpired as error:
            raise CheckpointFailed(f"git {arguments[0]!r} took more than {GIT_S_MAX:g} s") from error
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()[-400:]
            raise CheckpointFailed(f"git {arguments[0]!r} failed: {words or done.returncode}")
        return done.stdout

    def paths(self, *arguments: str | bytes, index: Path | None = None) -> list[bytes]:
        """The paths that a command prints, each ended by NUL."""
        return split(self.git(*arguments, index=index))

    def keep(self, tree: str, files: Mapping[str, bytes]) -> str:
        """Writes a commit that has `tree` as its folder `files` and the given files beside it, and
        keeps it until it is dropped by its age. Returns its id."""
        now = time.time()
        lines = [
            b"commit refs/kept/%.6f-%d\n" % (now, os.getpid()),
            b"mark :1\ncommitter bargein <> %d +0000\ndata 0\n" % now,
            b"M 040000 %s files\n" % tree.encode(),
        ]
        for name, content in files.items():
            lines.append(b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(content), content))
        lines.append(b"\nget-mark :1\ndone\n")
        made = self.git("fast-import", "--quiet", "--done", "--date-format=raw", feed=b"".join(lines))
        return made.decode().strip()

    def read_blobs(self, names: Sequence[str]) -> Iterator[bytes]:
        """The content of each of these, in their order."""
        text = self.git("cat-file", "--batch", feed="".join(f"{name}\n" for name in names).encode())
        place = 0
        for name in names:
            end = text.index(b"\n", place)
            head = text[place:end].split()
            if head[-1] == b"missing":
                raise CheckpointFailed(f"{name} is not among the snapshots any more")
            size = int(head[2])
            yield text[end + 1 : end + 1 + size]
            place = end + size + 2

    @property
    def journal(self) -> Path:
        """Where an undo is written down while it changes files."""
        return self.directory.parent / "journal.json"

    def drop_before(self, at: float) -> int:
        """Forgets the snapshots that were taken before this time; returns how many. Their objects
        go if no other snapshot has them."""
        old = [
            name
            for name in self.git("for-each-ref", "--format=%(refname)", "refs/kept/").split()
            if float(name.rsplit(b"/", 1)[1].split(b"-")[0]) < at
        ]
        if old:
            self.git("update-ref", "--stdin", feed=b"".join(b"delete %s\n" % name for name in old))
            self.git("gc", "--quiet", "--prune=now")
        return len(old)

    def held_bytes(self) -> int:
        """How much room all snapshots of this workspace take."""
        total = 0
        for folder, _, files in os.walk(self.directory):
            for each in files:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, each)).st_size
        return total


def split(text: bytes) -> list[bytes]:
    return text.split(b"\0")[:-1] if text else []


def join(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def exclude_files(workspace: str) -> Sequence[str]:
    """The user's own rules for this repository, beside the `.gitignore` files of the workspace."""
    path = os.path.join(workspace, ".git", "info", "exclude")
    return (f"--exclude-from={path}",) if os.path.isfile(path) else ()


def _make(own: Path, workspace: str) -> None:
    """Makes the repository; one that was left half made is made whole."""
    git = own / "git"
    for folder in ("objects", "refs", "info"):
        (git / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in (
        ("config", _CONFIG),
        ("info/attributes", _ATTRIBUTES),
        ("HEAD", "ref: refs/heads/none\n"),
    ):
        if not (git / name).exists():
            new = git / f"{name}.new"
            new.write_text(text)
            new.replace(git / name)
    place = own / "workspace"
    if not place.exists():
        place.write_bytes(os.fsencode(workspace))
