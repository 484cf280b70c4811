"""One process owns a data directory, by a lock that dies with the process.

The lock is an `flock` on a file in the directory. The kernel releases it when the process ends,
however it ends, so no stale lock remains; the file stays. The file names the owner for the error
message of a second process, and nothing else relies on it.

A child process does not inherit the lock, neither through `exec` nor through a bare `fork`.
"""

import fcntl
import os
import socket
import sys
import time
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Self

import msgspec

from bargein.errors import UserError

FILE_NAME = "owner.lock"
READ_BYTES_MAX = 64 * 1024
READ_TRIES = 20
READ_PAUSE_S = 0.01
COMMAND_CHARACTERS_MAX = 200


class Owner(msgspec.Struct, frozen=True):
    """The process that holds a data directory. `since` is in seconds since 1970."""

    pid: int
    command: str
    since: float
    host: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        since = datetime.fromtimestamp(self.since).astimezone()
        return f"process {self.pid}{where} (`{self.command}`, since {since:%Y-%m-%d %H:%M})"


class DirectoryInUse(UserError):
    """Another process owns the directory. `owner` is None if that process left no name."""

    def __init__(self, directory: Path, owner: Owner | None) -> None:
        super().__init__(
            f"{directory} is in use by {owner or 'another process'}. Connect to that process, end "
            "it, or choose another data directory"
        )
        self.directory = directory
        self.owner = owner

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.directory, self.owner)


class DirectoryLock:
    """Held from `take` until `release` or the end of the process. A context manager."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor
        _held[descriptor] = self
        _leave_to_the_parent()

    @classmethod
    def take(cls, directory: str | Path) -> "DirectoryLock":
        """Locks `directory`, or raises `DirectoryInUse` with its owner. Never waits."""
        directory = Path(directory).absolute()
        descriptor = _open(directory / FILE_NAME)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read_owner(descriptor)
            os.close(descriptor)
            raise DirectoryInUse(directory, owner) from None
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"{directory} cannot be locked: {error.strerror}. Choose a data directory on a "
                "local disk"
            ) from error
        lock = cls(directory, descriptor)
        lock._write_owner()
        return lock

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._descriptor >= 0:
            _overwrite(self._descriptor, b"")
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _write_owner(self) -> None:
        # Arguments that are not Unicode contain lone surrogates.
        command = " ".join(sys.argv).encode(errors="replace").decode()[:COMMAND_CHARACTERS_MAX]
        owner = Owner(os.getpid(), command, time.time(), socket.gethostname())
        _overwrite(self._descriptor, msgspec.json.encode(owner) + b"\n")

    def _close(self) -> None:
        # In a forked child this closes a copy of the descriptor: only the parent keeps the lock.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            del _held[descriptor]
            os.close(descriptor)


def owner_of(directory: Path) -> Owner | None:
    """Returns the process that holds the directory, as far as it left its name."""
    try:
        descriptor = os.open(directory / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        owner = msgspec.json.decode(os.pread(descriptor, READ_BYTES_MAX, 0), type=Owner)
        return owner if _may_live(owner) else None
    except (msgspec.MsgspecError, OSError):
        return None
    finally:
        os.close(descriptor)


_held: dict[int, DirectoryLock] = {}


@cache
def _leave_to_the_parent() -> None:
    """Registers once for all locks, because a fork handler cannot be removed."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for lock in list(_held.values()):
        lock._close()


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        raise UserError(f"there is no directory {path.parent}. Make it, or name another") from None
    except NotADirectoryError:
        raise UserError(f"{path.parent} is not a directory: name another") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be opened: {error.strerror}. Correct the permissions, or choose "
            "another data directory"
        ) from error


def _overwrite(descriptor: int, body: bytes) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, body, 0)
    except OSError:
        pass  # a full disk: the lock still holds, but the file does not name its owner


def _read_owner(descriptor: int) -> Owner | None:
    """Reads who holds the lock, with several tries: the owner writes its name just after it got
    the lock, so for a moment the file may be empty or still name a dead owner."""
    owner = None
    for _ in range(READ_TRIES):
        try:
            owner = msgspec.json.decode(os.pread(descriptor, READ_BYTES_MAX, 0), type=Owner)
        except (msgspec.MsgspecError, OSError):
            owner = None
        if owner is not None and _may_live(owner):
            return owner
        time.sleep(READ_PAUSE_S)
    return None


def _may_live(owner: Owner) -> bool:
    if owner.host != socket.gethostname():
        return True
    try:
        os.kill(owner.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process, and alive
    return True
