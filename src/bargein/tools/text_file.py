"""Reads text from files of any kind and size, within a bound, for a model.

For content that cannot be shown, the error says what it is and what to do instead.
"""

import codecs
import difflib
import errno
import os
import stat
from dataclasses import dataclass

from bargein.cancel import Token
from bargein.tools.atomic import Version
from bargein.tools.workspace import LISTING, PathRefused, Place

_CHUNK_BYTES = 1 << 16
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

EDITED_BYTES_MAX = 16 << 20
ENTRIES_MAX = 200


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a file. `more`: lines follow. `exact`: all of it was UTF-8."""

    text: str
    first_line: int
    count: int
    more: bool
    exact: bool


def read_lines(
    place: Place, token: Token, *, first_line: int, lines_max: int, bytes_max: int
) -> Lines:
    """Reads lines from `first_line` on, counted from 1. Checks its token as it goes."""
    descriptor = place.open_to_read()
    try:
        chunk = os.read(descriptor, _CHUNK_BYTES)
        refuse_binary(chunk, place.path, os.fstat(descriptor).st_size)
        skipped = 0
        while skipped < first_line - 1 and chunk:
            token.check()
            at = _after_newlines(chunk, first_line - 1 - skipped)
            skipped += chunk.count(b"\n", 0, at)
            chunk = chunk[at:] or os.read(descriptor, _CHUNK_BYTES)
        kept = bytearray()
        while chunk and len(kept) <= bytes_max and kept.count(b"\n") < lines_max:
            token.check()
            kept += chunk
            chunk = os.read(descriptor, _CHUNK_BYTES)
    finally:
        os.close(descriptor)
    if skipped < first_line - 1:
        raise PathRefused(f"{place.path} has only {skipped} lines; there is no line {first_line}.")
    return _cut(bytes(kept), bool(chunk), first_line, lines_max, bytes_max)


def _after_newlines(chunk: bytes, count: int) -> int:
    """Returns the index after `count` newlines, or the end of the chunk."""
    at = 0
    for _ in range(count):
        found = chunk.find(b"\n", at)
        if found < 0:
            return len(chunk)
        at = found + 1
    return at


def _cut(kept: bytes, more: bool, first_line: int, lines_max: int, bytes_max: int) -> Lines:
    at = _after_newlines(kept, lines_max)
    shown = kept[: min(at, bytes_max)]
    if len(shown) < at and b"\n" in shown:
        shown = shown[: shown.rindex(b"\n") + 1]
    more = more or len(shown) < len(kept)
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        text, exact = decoder.decode(shown, final=not more), True
    except UnicodeDecodeError:
        text, exact = shown.decode("utf-8", "replace"), False
    return Lines(text, first_line, text.count("\n"), more, exact)


def read_whole(place: Place, token: Token) -> tuple[str, Version]:
    """Returns a text file that is small enough to edit, unaltered, and its version."""
    descriptor = place.open_to_read()
    try:
        found = os.fstat(descriptor)
        if found.st_size > EDITED_BYTES_MAX:
            raise PathRefused(
                f"{place.path} has {found.st_size} bytes, too many to edit here; use a command."
            )
        parts = []
        while chunk := os.read(descriptor, 1 << 20):
            token.check()
            parts.append(chunk)
    finally:
        os.close(descriptor)
    content = b"".join(parts)
    refuse_binary(content[:_CHUNK_BYTES], place.path, found.st_size)
    try:
        return content.decode("utf-8"), Version.of(found)
    except UnicodeDecodeError as error:
        raise PathRefused(
            f"{place.path} is not UTF-8 text (byte {error.start}), so it cannot be edited here "
            "without damage; convert it, or use a command."
        ) from error


def refuse_binary(beginning: bytes, path: str, size: int) -> None:
    if beginning.startswith(_UTF16):
        raise PathRefused(
            f"{path} is UTF-16 text; a command such as `iconv -f utf-16 -t utf-8` shows it."
        )
    if b"\0" in beginning:
        raise PathRefused(f"{path} is a binary file of {size} bytes; its text cannot be shown.")


def describe_directory(place: Place) -> str:
    """Lists a directory; subdirectories end in a slash."""
    descriptor = place.open_directory()
    try:
        names = sorted(os.listdir(descriptor))
        shown = [name + _mark(descriptor, name) for name in names[:ENTRIES_MAX]]
    finally:
        os.close(descriptor)
    more = f"\n[... {len(names) - ENTRIES_MAX} more ...]" if len(names) > ENTRIES_MAX else ""
    listed = "\n".join(shown) or "(nothing)"
    return f"{place.path} is a directory. It contains:\n{listed}{more}"


def _mark(directory: int, name: str) -> str:
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return ""
    return "/" if stat.S_ISDIR(mode) else "@" if stat.S_ISLNK(mode) else ""


def similar_names(place: Place) -> str:
    """Suggests names that a missing name may have meant."""
    try:
        descriptor = os.open(".", LISTING, dir_fd=place.directory)
    except OSError:
        return ""
    try:
        names = os.listdir(descriptor)[:2_000]
    finally:
        os.close(descriptor)
    folder = place.path.rpartition("/")[0]
    close = difflib.get_close_matches(place.name, names, n=3)
    paths = [f"{folder}/{name}" if folder else name for name in close]
    return f" Did you mean {' or '.join(paths)}?" if paths else ""


_OS_WORDS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "may not be accessed",
    errno.EPERM: "may not be changed",
    errno.ENOTDIR: "goes through something that is not a directory",
    errno.ELOOP: "goes through a link that was swapped in meanwhile",
    errno.ENAMETOOLONG: "is too long a name",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EDQUOT: "cannot be written: the quota is used up",
    errno.EROFS: "is on a read-only file system",
    errno.EISDIR: "is a directory",
}


def explain(error: OSError, path: str) -> str:
    words = _OS_WORDS.get(error.errno or 0)
    if words is None:
        words = f"cannot be used: {error.strerror or error}"
    return f"{path} {words}."
