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
import re
import shutil
import subprocess
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

GIT_S_MAX = 600.0
LOOSE_MAX = 10_000

_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding !diff -merge\n"
# Refs must stay files of their own, because `kept` looks for these.
_CONFIG = """\
[core]
	repositoryformatversion = 0
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = false
	precomposeUnicode = false
	protectNTFS = false
	protectHFS = false
	preloadIndex = true
	looseCompression = 1
[gc]
	auto = 0
	packRefs = false
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


@dataclass(frozen=True, slots=True)
class StageFolder:
    """A copy of a workspace in which a session works instead: `tree` is its folder."""

    name: str
    tree: str


class Repository:
    """The snapshots of one workspace."""

    def __init__(
        self, directory: Path, workspace: str, bounds: Bounds, lock: int, own: Path | None = None
    ) -> None:
        """`own` has the journal and the index; without it, they are where they have always been."""
        self.directory = directory
        self.index = (own or directory) / "index"
        self.journal = (own or directory.parent) / "journal.json"
        """Where an undo is written down while it changes files."""
        self.workspace = workspace
        self.bounds = bounds
        self._lock = lock
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", ""),
            "LC_ALL": "C.UTF-8",
            "GIT_DIR": str(directory),
            "GIT_WORK_TREE": workspace,
            "GIT_INDEX_FILE": str(self.index),
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
        return cls._open_at(directory / name, root, bounds)

    @classmethod
    def open_kept(cls, own: Path) -> Self:
        """Opens a repository by where it lies, whether or not its workspace is still there."""
        try:
            root = os.fsdecode((own / "workspace").read_bytes())
        except OSError as error:
            raise CheckpointFailed(f"{own} has no snapshots: {error.strerror}") from error
        return cls._open_at(own, root, Bounds())

    @classmethod
    def _open_at(cls, own: Path, root: str, bounds: Bounds) -> Self:
        own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make(own, root)
            # Nobody but the holder of our lock uses it, so a git that was killed left this.
            (own / "git" / "index.lock").unlink(missing_ok=True)
        except BaseException:
            os.close(lock)
            raise
        return cls(own / "git", root, bounds, lock)

    def over(self, stage: StageFolder) -> "Repository":
        """The same snapshots, taken of a stage of this workspace: its files, its index and its
        journal of an undo. Valid until this repository is closed."""
        own = self.directory.parent / "stages" / stage.name
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            (own / "index.lock").unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointFailed(f"{own} cannot be made: {error.strerror}") from error
        return Repository(self.directory, stage.tree, self.bounds, self._lock, own)

    def base_of(self, stage: StageFolder) -> str:
        """The id of the snapshot that a stage began with; empty if there is none."""
        with suppress(FileNotFoundError):
            return (self._bases / stage.name).read_text().strip()
        return ""

    def set_base(self, stage: StageFolder, snapshot: str) -> None:
        """Keeps this snapshot as the stage's base, whatever its age."""
        self._write_file(self._bases / stage.name, f"{snapshot}\n".encode())

    def forget(self, stage: StageFolder) -> None:
        (self._bases / stage.name).unlink(missing_ok=True)
        shutil.rmtree(self.directory.parent / "stages" / stage.name, ignore_errors=True)

    @property
    def has_stages(self) -> bool:
        with suppress(FileNotFoundError):
            return any(True for _ in self._bases.iterdir())
        return False

    @property
    def _bases(self) -> Path:
        return self.directory / "refs" / "stages"

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
                pass_fds=(self._lock,),  # a git that outlives us still holds the lock
                umask=0o077,
                check=False,
            )
        except FileNotFoundError as error:
            raise CheckpointFailed("git is not installed: snapshots need it") from error
        except subprocess.TimeoutExpired as error:
            raise CheckpointFailed(
                f"git {arguments[0]!r} took more than {GIT_S_MAX:g} s"
            ) from error
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()[-400:]
            raise CheckpointFailed(f"git {arguments[0]!r} failed: {words or done.returncode}")
        return done.stdout

    def paths(self, *arguments: str | bytes, index: Path | None = None) -> list[bytes]:
        """The paths that a command prints, each ended by NUL."""
        return split(self.git(*arguments, index=index))

    def keep(self, files: str, texts: Mapping[str, bytes]) -> str:
        """Writes a tree that has the tree `files` as its folder and these texts beside it, and
        keeps it until it is dropped by its age. Returns its id, which only depends on what it
        holds."""
        entries = [(b"files", b"40000", files)]
        entries += [(n.encode(), b"100644", self._write("blob", text)) for n, text in texts.items()]
        tree = b"".join(
            b"%s %s\0%s" % (mode, name, bytes.fromhex(object_id))
            for name, mode, object_id in sorted(entries)
        )
        kept = self._write("tree", tree)
        self._write_file(self.directory / f"refs/kept/{time.time():.6f}", f"{kept}\n".encode())
        return kept

    def _write(self, kind: str, content: bytes) -> str:
        """Writes an object as git would, without starting a process for it."""
        whole = b"%s %d\0%s" % (kind.encode(), len(content), content)
        name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        path = self.directory / "objects" / name[:2] / name[2:]
        if not path.exists():
            self._write_file(path, zlib.compress(whole, 1))
        return name

    def _write_file(self, path: Path, content: bytes) -> None:
        new = self.directory / "new"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(new, "wb", opener=private) as file:
                file.write(content)
            new.replace(path)
        except OSError as error:
            raise CheckpointFailed(f"{path} cannot be written: {error.strerror}") from error

    def read_objects(self, names: Iterable[str]) -> Iterator[bytes]:
        """The content of each of these, in their order, one in memory at a time."""
        reader = subprocess.Popen(
            ["git", "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
            env=self._environment,
            pass_fds=(self._lock,),
        )
        with reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            for name in names:
                try:
                    reader.stdin.write(f"{name}\n".encode())
                    reader.stdin.flush()
                except BrokenPipeError as error:
                    raise CheckpointFailed("git 'cat-file' ended early") from error
                head = reader.stdout.readline().split()
                if len(head) != 3:
                    raise CheckpointFailed(f"{name} is not among the snapshots any more")
                content = reader.stdout.read(int(head[2]) + 1)
                if len(content) != int(head[2]) + 1:
                    raise CheckpointFailed(f"{name} cannot be read from the snapshots")
                yield content[:-1]

    def kept(self) -> list[tuple[float, Path]]:
        """When each snapshot was taken, with the file that keeps it, the oldest first."""
        with suppress(FileNotFoundError):
            return sorted((float(each.name), each) for each in self._refs.iterdir())
        return []

    @property
    def _refs(self) -> Path:
        return self.directory / "refs" / "kept"

    def drop_before(self, at: float) -> int:
        """Forgets the snapshots that were taken before this time; returns how many. Their objects
        stay until `tidy`."""
        old = [path for taken, path in self.kept() if taken < at]
        for path in old:
            path.unlink()
        return len(old)

    @property
    def is_untidy(self) -> bool:
        """Whether many objects are files of their own. They are spread evenly over 256 folders."""
        with suppress(FileNotFoundError):
            return len(os.listdir(self.directory / "objects" / "17")) > LOOSE_MAX // 256
        return False

    def tidy(self) -> None:
        """Packs the objects, and removes those that no snapshot has."""
        self.git("gc", "--quiet", "--prune=now")

    def held_bytes(self) -> int:
        """How much room all snapshots of this workspace take."""
        return held_bytes(self.directory)


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def held_bytes(directory: Path) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for each in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, each)).st_blocks * 512
    return total


def split(text: bytes) -> list[bytes]:
    return text.split(b"\0")[:-1] if text else []


def join(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def exclude_rules(repository: Repository) -> list[str | bytes]:
    """The user's own rules for this repository, beside the `.gitignore` files of the workspace; and
    our own data, if it lies in the workspace."""
    workspace = repository.workspace
    path = os.path.join(workspace, ".git", "info", "exclude")
    rules: list[str | bytes] = [f"--exclude-from={path}"] if os.path.isfile(path) else []
    for own in (repository.directory.parents[2], repository.directory.parents[1]):
        inside = os.path.relpath(os.path.realpath(own), workspace)
        if inside != os.curdir and not inside.startswith(os.pardir):
            literal = re.sub(r"([\\*?\[\]! ])", r"\\\1", inside)
            rules.append(os.fsencode(f"--exclude=/{literal}/"))
            break
    return rules


def _holds(path: Path, text: str) -> bool:
    with suppress(FileNotFoundError):
        return path.read_text() == text
    return False


def _make(own: Path, workspace: str) -> None:
    """Makes the repository; one that was left half made, or made by an older version, is made
    whole."""
    git = own / "git"
    git.mkdir(mode=0o700, exist_ok=True)
    for folder in ("objects", "refs", "info"):
        (git / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in (
        ("config", _CONFIG),
        ("info/attributes", _ATTRIBUTES),
        ("HEAD", "ref: refs/heads/none\n"),
    ):
        if not _holds(git / name, text):
            new = git / f"{name}.new"
            with open(new, "w", opener=private) as file:
                file.write(text)
            new.replace(git / name)
    place = own / "workspace"
    if not place.exists():
        with open(place, "wb", opener=private) as file:
            file.write(os.fsencode(workspace))
