"""Copies folders of a data directory into a backup, and out of it.

What holds:

- Agents write below `people`, perhaps while it is copied, so nothing there is trusted. Each file is
  opened in the folder that holds it, and no link is followed: a link is noted in the listing, and
  made again at the end of a restore. Sockets and pipes are left out. There, a file that cannot be
  read is left out and counted; elsewhere it makes the backup fail.
- SQLite databases are copied as of one moment, except below `people`: those belong to other
  programs, and SQLite would write beside them.
- Snapshots of a workspace are copied while nobody changes them, under their own lock.
- The listing has a line for each entry. It is written and read line by line, so memory does not
  grow with the number of files. The entry of a folder comes after the entries in it.

A cancel of the current token ends a copy at its next block or file.
"""

import errno
import fcntl
import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from bargein.cancel import current_token
from bargein.contracts.store import StoreFailed
from bargein.errors import UserError
from bargein.runtime.data_directory import CHECKPOINTS, PEOPLE, STAGES
from bargein.stores.sqlite import backup
from bargein.stores.sqlite.faults import explain

BLOCK_BYTES = 1024 * 1024
DEPTH_MAX = 100
NAME_BYTES_MAX = 2000
LINE_BYTES_MAX = 64 * 1024
REPOSITORY_LOCK_S = 600.0
"""A command of git's may hold the lock of the snapshots for so long."""
REPOSITORY_PAUSE_S = 0.05
COMPANIONS = ("-wal", "-shm", "-journal")
"""SQLite keeps these files beside a database while it is in use."""
_SQLITE = b"SQLite format 3\0"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a pipe that just took the place of a file would block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LEFT_OUT = (
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    # Something else is there now.
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ENXIO,
)

Report = Callable[[str, int, int], object]
"""Receives the progress of a copy: the name of the file, the bytes copied, the bytes in all."""


class ListingLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the listing. `name` and `link`, the target of a link, are percent-encoded, because
    they may be any bytes."""

    name: str
    kind: Literal["file", "folder", "link"]
    mode: int = 0
    changed_ns: int = 0
    bytes: int = 0
    sha256: str = ""
    link: str = ""


# --- into a backup


class FolderCopy:
    """Copies folders of `home` into `part`, and writes their listing. `bytes` counts what was
    copied, `left_out` the files that were not.

    No database in these folders may be open in this process: looking into a file releases the locks
    that SQLite has on it."""

    def __init__(self, home: Path, part: Path, listing: BinaryIO, report: Report) -> None:
        self._home = home
        self._part = part
        self._listing = listing
        self._report = report
        self._encode = msgspec.json.Encoder().encode
        own = part.stat()
        self._own = (own.st_dev, own.st_ino)
        self.bytes = 0
        self.left_out = 0
        self.left_out_first = ""

    def copy(self, name: str) -> None:
        """Copies a folder at the top of the data directory. It may be a link: only the user of the
        data directory can make one there."""
        descriptor = os.open(self._home / name, _FOLDER & ~os.O_NOFOLLOW)
        try:
            self._copy_folder(descriptor, os.fsencode(name), 1)
        finally:
            os.close(descriptor)

    def _copy_folder(self, descriptor: int, name: bytes, depth: int) -> None:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == self._own:
            return
        with self._unchanged(name):
            (self._part / os.fsdecode(name)).mkdir(mode=0o700)
            with os.scandir(descriptor) as entries:
                for each in entries:
                    _check()
                    self._copy_entry(descriptor, os.fsencode(each.name), name, depth)
            self._note(ListingLine(_quoted(name), "folder", _folder_mode(name, status)))
        sync(self._part / os.fsdecode(name))

    def _copy_entry(self, folder: int, own: bytes, above: bytes, depth: int) -> None:
        name = above + b"/" + own
        if depth >= DEPTH_MAX or len(name) > NAME_BYTES_MAX:
            self._leave_out(name, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
            return
        try:
            status = os.stat(own, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                link = _quoted(os.readlink(own, dir_fd=folder))
                self._note(ListingLine(_quoted(name), "link", link=link))
                return
            if stat.S_ISDIR(status.st_mode):
                descriptor = os.open(own, _FOLDER, dir_fd=folder)
            elif stat.S_ISREG(status.st_mode):
                descriptor = os.open(own, _FILE, dir_fd=folder)
            else:
                return
        except FileNotFoundError:
            return  # it was removed meanwhile
        except OSError as error:
            self._leave_out(name, error)
            return
        try:
            if stat.S_ISDIR(status.st_mode):
                self._copy_folder(descriptor, name, depth + 1)
            else:
                self._copy_file(descriptor, folder, name)
        finally:
            os.close(descriptor)

    def _copy_file(self, descriptor: int, folder: int, name: bytes) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        target = self._part / os.fsdecode(name)
        report = partial(self._report, _quoted(name))
        if not _is_peoples(name):
            if _is_companion(name, folder):
                return
            if os.pread(descriptor, len(_SQLITE), 0) == _SQLITE:
                copy_live_database(self._home / os.fsdecode(name), target, report)
                digest, size = digest_of(target), target.stat().st_size
                self._note_file(name, status, size, digest)
                return
        with open(descriptor, "rb", closefd=False) as reading:
            # A file that somebody is writing to may grow as fast as it is copied.
            digest, size = copy_bytes(reading, target, report, bytes_max=status.st_size)
        self._note_file(name, status, size, digest)

    def _note_file(self, name: bytes, status: os.stat_result, size: int, digest: str) -> None:
        mode = status.st_mode & (0o777 if _is_peoples(name) else 0o700)
        self._note(ListingLine(_quoted(name), "file", mode, status.st_mtime_ns, size, digest))
        self.bytes += size

    def _note(self, entry: ListingLine) -> None:
        self._listing.write(self._encode(entry) + b"\n")

    def _leave_out(self, name: bytes, error: OSError) -> None:
        if not _is_peoples(name) or error.errno not in _LEFT_OUT:
            raise OSError(error.errno, error.strerror, str(self._home / os.fsdecode(name)))
        self.left_out += 1
        self.left_out_first = self.left_out_first or _quoted(name)

    @contextmanager
    def _unchanged(self, name: bytes) -> Iterator[None]:
        """Holds the lock of a repository of snapshots, so that nobody packs or removes objects."""
        if name.count(b"/") != 1 or not name.startswith(f"{CHECKPOINTS}/".encode()):
            yield
            return
        path = self._home / os.fsdecode(name) / "lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            deadline = time.monotonic() + REPOSITORY_LOCK_S
            # Polled, because flock has no timeout.
            while not _is_taken(lock):
                _check()
                if time.monotonic() > deadline:
                    raise StoreFailed(
                        f"no backup was made: another process has used {path.parent} for "
                        f"{REPOSITORY_LOCK_S:g} s; end it, and try again",
                        retryable=True,
                    )
                time.sleep(REPOSITORY_PAUSE_S)
            yield
        finally:
            os.close(lock)


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_peoples(name: bytes) -> bool:
    """Whether commands write there, which may leave anything at any moment."""
    return name.startswith((f"{PEOPLE}/".encode(), f"{STAGES}/".encode()))


def _folder_mode(name: bytes, status: os.stat_result) -> int:
    # A folder into which its own user may not write could not be moved or removed.
    return 0o700 | (status.st_mode & 0o777 if _is_peoples(name) else 0)


def _is_companion(name: bytes, folder: int) -> bool:
    own = os.path.basename(name)
    for end in COMPANIONS:
        database = own.removesuffix(end.encode())
        if database != own and is_database(database, folder):
            return True
    return False


def is_database(name: bytes | str | Path, folder: int | None = None) -> bool:
    """Returns whether this is a file that SQLite wrote."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return False
    try:
        return os.pread(descriptor, len(_SQLITE), 0) == _SQLITE
    except OSError:
        return False
    finally:
        os.close(descriptor)


# --- out of a backup


def restore_folders(
    source: Path, listing: Path, stage: Path, folders: tuple[str, ...], report: Report
) -> None:
    """Makes the folders of a listing again in `stage`, a new directory."""
    # First all files, in folders that are made here. So no file can be written through a link.
    for entry in _entries(listing, folders):
        _check()
        name = os.fsdecode(unquote_to_bytes(entry.name))
        target = stage / name
        made = target if entry.kind == "folder" else target.parent
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        if entry.kind == "file":
            _copy_checked(source, name, entry, target, report)
            os.chmod(target, entry.mode & 0o777)
            os.utime(target, ns=(entry.changed_ns, entry.changed_ns))
    for entry in _entries(listing, folders):
        _check()
        target = stage / os.fsdecode(unquote_to_bytes(entry.name))
        if entry.kind == "link":
            os.symlink(unquote_to_bytes(entry.link), os.fsencode(target))
        elif entry.kind == "folder":
            sync(target)
            os.chmod(target, 0o700 | entry.mode & 0o777)


def _entries(listing: Path, folders: tuple[str, ...]) -> Iterator[ListingLine]:
    decoder = msgspec.json.Decoder(ListingLine)
    with listing.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX):
            try:
                entry = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise UserError(f"{listing} is damaged ({error}); use another backup") from error
            parts = unquote_to_bytes(entry.name).split(b"/")
            if not {b"", b".", b".."}.isdisjoint(parts) or os.fsdecode(parts[0]) not in folders:
                raise UserError(
                    f"{listing} names a file outside of the backup: {entry.name!r}; use another "
                    "backup"
                )
            yield entry


def _copy_checked(
    source: Path, name: str, entry: ListingLine, target: Path, report: Report
) -> None:
    try:
        file = open(os.open(source / name, _FILE), "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(
            f"{source} is damaged: {entry.name} cannot be read ({error.strerror}). Use another "
            "backup"
        ) from error
    with file:
        digest, _ = copy_bytes(file, target, partial(report, entry.name), bytes_max=entry.bytes)
        if digest != entry.sha256 or file.read(1):
            raise UserError(
                f"{source} is damaged: {entry.name} is not what was backed up. Use another backup"
            )


# --- files


def connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=5.0, isolation_level=None
        )
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise explain(error, path) from error
    return connection


def copy_live_database(source: Path, target: Path, report: Callable[[int, int], object]) -> None:
    """Copies a database as it is at one moment, while others write to it."""
    with closing(connect(source)) as connection:
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise explain(error, source) from error
        make_file(target)
        backup.copy_database(connection, source, target, report)
    sync(target)


def make_file(path: Path, *, exclusive: bool = True) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
    os.close(os.open(path, flags, 0o600))


def copy_bytes(
    reading: BinaryIO,
    target: Path,
    report: Callable[[int, int], object],
    *,
    bytes_max: int,
) -> tuple[str, int]:
    """Copies at most so many bytes into a new file. Returns its SHA-256 and its size."""
    digest, done = hashlib.sha256(), 0
    make_file(target)
    with target.open("wb") as writing:
        while block := reading.read(min(BLOCK_BYTES, bytes_max - done)):
            _check()
            digest.update(block)
            writing.write(block)
            done += len(block)
            report(done, bytes_max)
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest(), done


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check() -> None:
    token = current_token()
    if token is not None:
        token.check()


def _quoted(name: bytes) -> str:
    return quote_from_bytes(name, safe="/ +,=@()[]~")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
