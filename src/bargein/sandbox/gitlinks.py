"""Reads from a git index which of its paths are repositories of their own.

`git status` enters each of these repositories and obeys its configuration. So a command could add
such a path to the index and make a repository there, and the user's next `git status` would run a
program. Only the index names these paths. We read it ourselves, because git would enter them.

Nothing here changes anything; any thread.
"""

import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from typing import Final

INDEX_BYTES_MAX: Final = 64 << 20
"""An index of some 600,000 files."""
LINKS_MAX: Final = 10_000
_PATH_BYTES_MAX: Final = 4096
"""Nothing is at a longer path, for us or for git."""
_SMALL_BYTES: Final = 1 << 20
_GITLINK: Final = 0o160000
_MODE_AT: Final = 24
_MODE: Final = struct.pack(">I", _GITLINK)
_SIGNATURE: Final = b"DIRC"
_HEADER: Final = 12
_EXTENDED: Final = 0x4000
_SHARED: Final = "sharedindex."


def open_regular(path: str, bytes_max: int) -> int:
    """A descriptor to read from. Raises OSError for what is larger, or is no file: commands may
    have put a FIFO there, on which we would wait for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
        os.close(handle)
        raise OSError(errno.EFBIG, "it is too large, or no file", path)
    return handle


def read_small(path: str) -> str:
    """Raises OSError or UnicodeDecodeError."""
    with open(open_regular(path, _SMALL_BYTES), encoding="utf-8") as file:
        return file.read()


def is_too_large(git: str) -> bool:
    """Its index cannot be looked through in the time that there is."""
    return any(
        os.path.getsize(path) > INDEX_BYTES_MAX
        for name in (*_shared(git), "index")
        if os.path.isfile(path := os.path.join(git, name))
    )


def gitlinks(git: str) -> set[str]:
    """The paths, relative to the working tree, of repositories in the index of this `.git`.

    There may be paths among them that are none: the caller looks what is there. If the index cannot
    be read, git cannot read it either, unless it is too large. One path more than `LINKS_MAX` means
    that there are others.
    """
    sha = 32 if _uses_sha256(git) else 20
    found: set[str] = set()
    for name in (*_shared(git), "index"):
        try:
            with open(open_regular(os.path.join(git, name), INDEX_BYTES_MAX), "rb") as file:
                if os.fstat(file.fileno()).st_size < _HEADER:
                    continue
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    is_shared = name != "index" or bool(_shared(git))
                    for path in _links(data, sha, shared=is_shared):
                        found.add(path)
                        if len(found) > LINKS_MAX:
                            return found
        except (OSError, ValueError, struct.error, IndexError):
            continue
    return found


def _shared(git: str) -> list[str]:
    """With a shared index, an entry of the index itself may have its name there."""
    try:
        return [name for name in os.listdir(git) if name.startswith(_SHARED)]
    except OSError:
        return []


def _uses_sha256(git: str) -> bool:
    try:
        return "sha256" in read_small(os.path.join(git, "config")).lower()
    except (OSError, UnicodeDecodeError):
        return False


def _links(data: mmap.mmap, sha: int, *, shared: bool) -> Iterator[str]:
    if data[:4] != _SIGNATURE:
        return
    version = int(struct.unpack(">I", data[4:8])[0])
    if shared or version == 4:
        for name, mode in _entries(data, sha, version):
            if shared or mode == _GITLINK:
                yield os.fsdecode(name)
        return
    # An index can have 100,000 entries, and hardly any of them is a repository.
    at = data.find(_MODE, _HEADER)
    while at >= 0:
        name = _name_at(data, at - _MODE_AT, sha)
        if name:
            yield os.fsdecode(name)
        at = data.find(_MODE, at + 1)


def _name_at(data: mmap.mmap, start: int, sha: int) -> bytes:
    flags_at = start + 40 + sha
    if start < _HEADER or flags_at + 2 > len(data):
        return b""
    flags = struct.unpack(">H", data[flags_at : flags_at + 2])[0]
    begin = flags_at + (4 if flags & _EXTENDED else 2)
    end = data.find(b"\0", begin)
    return data[begin:end] if 0 < end - begin <= _PATH_BYTES_MAX else b""


def _entries(data: mmap.mmap, sha: int, version: int) -> Iterator[tuple[bytes, int]]:
    """Without those whose names are too long. Reads each byte of the index a bounded number of
    times, whatever it says: it is read on the loop."""
    count = int(struct.unpack(">I", data[8:12])[0])
    at, name, length = _HEADER, b"", 0
    for _ in range(count):
        mode = int(struct.unpack(">I", data[at + _MODE_AT : at + _MODE_AT + 4])[0])
        flags_at = at + 40 + sha
        flags = struct.unpack(">H", data[flags_at : flags_at + 2])[0]
        begin = flags_at + (4 if flags & _EXTENDED else 2)
        kept = 0
        if version == 4:
            # A name begins as the one before it, of which only the beginning is remembered.
            strip, begin = _number(data, begin)
            kept = length - strip
        end = data.find(b"\0", begin)
        if end < 0 or kept < 0:
            return
        added = data[begin : min(end, begin + _PATH_BYTES_MAX)]
        name = (name[:kept] + added)[:_PATH_BYTES_MAX] if kept <= _PATH_BYTES_MAX else name
        length = kept + end - begin
        at = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8
        if length <= _PATH_BYTES_MAX:
            yield name, mode


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number of git's variable length, and where it ends."""
    byte = data[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 127)
    return value, at + 1
