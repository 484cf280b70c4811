"""The child process of `search_files`. A pattern may take forever, but a process can be killed.

`child.py` starts it; it uses only the standard library. It reads the search from standard input and
prints each result as a line as soon as it finds it. It never follows links.
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bargein.tools.workspace import LISTING, Identity, PathRefused, Place, Workspace, identity_of

_SKIPPED = {".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".mypy_cache", ".tox"}
_FILE_BYTES_MAX = 16 << 20
_LINE_CHARS_MAX = 300
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


@dataclass
class _Found:
    """Counts for the closing remarks."""

    results_max: int
    results: int = 0
    files: int = 0
    too_large: list[str] = field(default_factory=list)

    def put(self, line: str) -> None:
        _say(line)
        self.results += 1
        if self.results >= self.results_max:
            raise _Enough


class _Enough(Exception):
    pass


def glob_to_pattern(glob: str) -> re.Pattern[str]:
    """`**` matches any folders, `{a,b}` either; a glob without a slash matches in any folder."""
    expression = "" if "/" in glob else "(?:.*/)?"
    depth = 0
    at = 0
    while at < len(glob):
        character = glob[at]
        if glob.startswith("**/", at):
            expression, at = expression + "(?:.*/)?", at + 3
            continue
        if glob.startswith("**", at):
            expression, at = expression + ".*", at + 2
            continue
        if character == "[" and "]" in glob[at + 2 :]:
            end = glob.index("]", at + 2)
            expression += (
                fnmatch.translate(glob[at : end + 1]).removeprefix("(?s:").rpartition(")")[0]
            )
            at = end + 1
            continue
        if character == "{" and "}" in glob[at:]:
            expression, depth = expression + "(?:", depth + 1
        elif character == "}" and depth:
            expression, depth = expression + ")", depth - 1
        elif character == "," and depth:
            expression += "|"
        else:
            expression += {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
        at += 1
    return re.compile(expression + r"\Z", re.DOTALL)


def _walk(directory: int, path: str, hidden: frozenset[Identity]) -> Iterator[tuple[int, str, str]]:
    """Yields every regular file below as (directory, name, path), sorted by name."""
    folders: list[str] = []
    with os.scandir(directory) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        inside = f"{path}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _SKIPPED:
                folders.append(entry.name)
        elif entry.is_file(follow_symlinks=False):
            yield directory, entry.name, inside
    for name in folders:
        try:
            opened = os.open(name, LISTING, dir_fd=directory)
        except OSError:
            continue
        try:
            if identity_of(os.fstat(opened)) not in hidden:
                yield from _walk(opened, f"{path}{name}/", hidden)
        except OSError:
            continue
        finally:
            os.close(opened)


def _text(
    directory: int, name: str, path: str, found: _Found, hidden: frozenset[Identity]
) -> str | None:
    try:
        descriptor = os.open(name, _READING, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or identity_of(state) in hidden:
            return None
        if state.st_size > _FILE_BYTES_MAX:
            found.too_large.append(path)
            return None
        try:
            content = file.read(_FILE_BYTES_MAX)
        except OSError:
            return None
    return None if b"\0" in content[:8192] else content.decode("utf-8", "replace")


def _show(text: str, path: str, pattern: re.Pattern[str], found: _Found) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        match = pattern.search(line)
        if match is not None:
            begin = (
                max(0, match.start() - _LINE_CHARS_MAX // 2) if len(line) > _LINE_CHARS_MAX else 0
            )
            shown = line[begin : begin + _LINE_CHARS_MAX].rstrip("\r")
            dots = ("..." if begin else "", "..." if begin + _LINE_CHARS_MAX < len(line) else "")
            found.put(f"{path}:{number}: {dots[0]}{shown}{dots[1]}")


def _fail(words: str) -> None:
    _say(words)
    sys.exit(2)


def _compile(expression: str, make: Callable[[str], re.Pattern[str]]) -> re.Pattern[str]:
    try:
        return make(expression)
    except (re.error, RecursionError, OverflowError) as error:
        _fail(f"{expression!r} is not a usable pattern: {error}.")
        raise AssertionError from error


def _search(given: dict[str, Any], found: _Found) -> None:
    flags = re.IGNORECASE if given["ignore_case"] else 0
    pattern = _compile(given["pattern"], lambda expression: re.compile(expression, flags))
    glob = _compile(given["glob"] or "**", glob_to_pattern)
    hidden = frozenset((device, number) for device, number in given["hidden"])
    workspace = Workspace(given["root"], known_hidden=hidden, shown=given["shown"])
    with workspace.place(given["path"]) as place:
        state = place.stat()
        if state is None:
            raise FileNotFoundError
        prefix = "" if place.path == "." else f"{place.path}/"
        files = _files(place, hidden, stat.S_ISDIR(state.st_mode), prefix)
        for directory, name, path in files:
            if glob.match(path) is None and glob.match(path.removeprefix(prefix)) is None:
                continue
            found.files += 1
            if not given["pattern"]:
                found.put(path)
                continue
            text = _text(directory, name, path, found, hidden)
            if text is not None:
                _show(text, path, pattern, found)


def _files(
    place: Place, hidden: frozenset[Identity], is_directory: bool, prefix: str
) -> Iterator[tuple[int, str, str]]:
    if not is_directory:
        yield place.directory, place.name, place.path
        return
    opened = place.open_directory()
    try:
        yield from _walk(opened, prefix, hidden)
    finally:
        os.close(opened)


def main() -> None:
    given = json.loads(sys.stdin.buffer.read())
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    found = _Found(given["results_max"])
    try:
        _search(given, found)
    except _Enough:
        _say(f"[the first {found.results_max}; there may be more: use a more exact pattern]")
    except RecursionError:
        _say("[folders are nested too deeply; not all were searched]")
    except PathRefused as refused:
        _fail(str(refused))
    except FileNotFoundError:
        _fail(f"{given['path']} does not exist.")
    except NotADirectoryError:
        _fail(f"{given['path']} goes through something that is not a directory.")
    if not found.results:
        _say(f"Nothing found in {found.files} files.")
    if found.too_large:
        _say(f"[too large to be searched: {', '.join(found.too_large[:10])}]")
