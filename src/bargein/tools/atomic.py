"""Replaces a file atomically: at every moment its content is the old or the new one, never half.

The new content goes to a temporary file in the same directory, is synced to disk, and is renamed
into place. A stop before the rename leaves the old file; after it the write has happened. If the
process is killed at the worst moment, a hidden temporary file stays beside the old file.
"""

import os
import secrets
import stat
from dataclasses import dataclass

from bargein.cancel import Token
from bargein.tools.workspace import LISTING, PathRefused, Place, refuse_unless_regular

_CHUNK_BYTES = 1 << 20
_EFFECTIVE = os.access in os.supports_effective_ids
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies the content of a file, as far as the file system can tell."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Version":
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


def write_atomically(
    place: Place, content: bytes, token: Token, *, replaces: Version | None = None
) -> bool:
    """Writes `content`; returns True if the file is new. Raises `Cancelled` if stopped in time.

    With `replaces`, raises `PathRefused` if the file is no longer that version.
    """
    found = place.stat()
    if place.name == ".":
        raise PathRefused(f"{place.path} is a directory, not a regular file.")
    if found is not None:
        refuse_unless_regular(found, place.path)
        if not os.access(place.name, os.W_OK, dir_fd=place.directory, effective_ids=_EFFECTIVE):
            raise PathRefused(f"{place.path} is read-only.")
    temporary = f".bargein-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, _CREATE, 0o666, dir_fd=place.directory)
    try:
        try:
            _fill(descriptor, content, token)
            if found is not None:
                _dress_like(descriptor, found)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replaces is not None:
            _refuse_if_changed(place, replaces)
        # From the rename on, a stop comes too late.
        token.check()
        os.rename(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        os.unlink(temporary, dir_fd=place.directory)
        raise
    _bring_to_disk(place.directory)
    return found is None


def _fill(descriptor: int, content: bytes, token: Token) -> None:
    view = memoryview(content)
    while view:
        token.check()
        view = view[os.write(descriptor, view[:_CHUNK_BYTES]) :]


def _dress_like(descriptor: int, found: os.stat_result) -> None:
    """Copies the mode and, where permitted, the owner of the replaced file."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
        try:
            os.fchown(descriptor, found.st_uid, found.st_gid)
        except PermissionError:
            pass
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


def _refuse_if_changed(place: Place, replaces: Version) -> None:
    found = place.stat()
    if found is None or Version.of(found) != replaces:
        raise PathRefused(
            f"{place.path} was changed by something else meanwhile; read it again, then repeat."
        )


def _bring_to_disk(directory: int) -> None:
    """Syncs the directory if possible. The write has already happened, so nothing here may fail."""
    try:
        opened = os.open(".", LISTING, dir_fd=directory)
    except OSError:
        return  # the directory may be writable but not readable
    try:
        os.fsync(opened)
    except OSError:
        pass  # not every file system can sync a directory
    finally:
        os.close(opened)
