"""A JSON file in the user's config directory that several processes read and change.

A change is one read, one pure function and one write, under an `flock` on a file beside it, so that
no process overwrites what another has just written. The new content replaces the old file whole: a
reader needs no lock. A process that dies while it holds the lock gives it back to the kernel.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bargein.errors import UserError, WorldError

T = TypeVar("T")

FILE_BYTES_MAX = 4 << 20
LOCK_S = 2.0
"""A change takes milliseconds; a process that holds the lock for longer was suspended."""
LOCK_PAUSE_S = 0.005


class UserFile(Generic[T]):
    """`empty` is the content of a file that does not exist. `mends` ends the error about a file
    that cannot be read: what the user can do."""

    def __init__(self, path: Path, kind: type[T], empty: T, *, mends: str) -> None:
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._empty = empty
        self._mends = mends
        self._seen: tuple[int, int, int] | None = None
        self._content = empty

    def read(self) -> T:
        """The content as it is now. Raises `UserError` if the file cannot be read."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._seen, self._content = None, self._empty
            return self._content
        except OSError as error:
            raise self._unreadable(error) from error
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if seen != self._seen:
            self._content = self._decoded()
            self._seen = seen
        return self._content

    def change(self, function: Callable[[T], T]) -> bool:
        """Write what `function` makes of the content. Returns False if that is the same content;
        then nothing is written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked():
                # The cache goes by time and size, which two quick changes may share.
                before = self._decoded() if self.path.exists() else self._empty
                after = function(before)
                if after == before:
                    return False
                self._write(after)
        except OSError as error:
            raise WorldError(
                f"{self.path} cannot be written: {error.strerror}; nothing was changed",
                retryable=False,
            ) from error
        self._seen = None
        return True

    def _decoded(self) -> T:
        try:
            with self.path.open("rb") as file:
                return self._decoder.decode(file.read(FILE_BYTES_MAX + 1))
        except (OSError, msgspec.MsgspecError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f"{self.path} cannot be read: {error}; {self._mends}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        name = self.path.with_name(f"{self.path.name}.lock")
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            deadline = time.monotonic() + LOCK_S
            # There is no flock with a timeout.
            while not _is_taken(lock):
                if time.monotonic() > deadline:
                    raise WorldError(
                        f"another process has been changing {self.path} for {LOCK_S:g} s; end or "
                        "resume it, then try again",
                        retryable=True,
                    )
                time.sleep(LOCK_PAUSE_S)
            yield
        finally:
            os.close(lock)

    def _write(self, content: T) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
        if len(body) > FILE_BYTES_MAX:
            raise UserError(
                f"{self.path} would be larger than {FILE_BYTES_MAX} bytes; remove some of it"
            )
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
