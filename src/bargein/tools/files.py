"""`read_file`, `write_file` and `edit_file`: confined to the workspace, and atomic.

They run in threads and check their token between steps. A stop that comes in time leaves the file
as it was; a later stop finds the change done. Two calls that change the same file, by whatever
path, run one after the other.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from bargein.cancel import Token
from bargein.contracts.permission import Reach
from bargein.contracts.tool import Effect
from bargein.tools.atomic import write_atomically
from bargein.tools.declaration import Tool, tool
from bargein.tools.text_file import (
    describe_directory,
    explain,
    read_lines,
    read_whole,
    similar_names,
)
from bargein.tools.workspace import PathRefused, Place, Workspace

READ_BYTES_MAX = 60_000
READ_LINES_MAX = 2_000
_HINTED_CHARS_MAX = 1 << 20
_AS_IT_WAS = "The file is as it was before."
_OWN_SETTINGS = ("bargein.toml", ".mcp.json")

Positive = Annotated[int, msgspec.Meta(ge=1)]


def file_tools(workspace: Workspace) -> tuple[Tool[..., Any], ...]:
    changes: dict[str, Any] = {
        "resources": lambda arguments: [workspace.named(arguments["path"])],
        "resources_found": lambda arguments: [workspace.found(arguments["path"])],
        "subject": "path",
        "when_stopped": _AS_IT_WAS,
        "asks": lambda arguments: _why_to_ask(arguments["path"]),
        "reach": lambda arguments: (
            Reach.ANYTHING if _why_to_ask(arguments["path"]) else Reach.FILES
        ),
    }

    @tool(effect=Effect.NONE, subject="path", example={"path": "src/main.py"})
    def read_file(
        path: str, token: Token, first_line: Positive = 1, lines: Positive = READ_LINES_MAX
    ) -> str:
        """Read a text file of the workspace, or list a directory of it.

        Args:
            path: The path of the file, relative to the workspace.
            first_line: The line to begin with, counted from 1.
            lines: How many lines to read at most.
        """
        with _open_place(workspace, path) as place:
            found = place.stat()
            if found is not None and stat.S_ISDIR(found.st_mode):
                return describe_directory(place)
            read = read_lines(
                place,
                token,
                first_line=first_line,
                lines_max=min(lines, READ_LINES_MAX),
                bytes_max=READ_BYTES_MAX,
            )
        if not read.text:
            return f"({path} is empty.)" if first_line == 1 else f"({path} ends before that line.)"
        notes = ""
        if not read.exact:
            notes += "\n[not all of it is UTF-8; other bytes are shown as \ufffd]"
        if read.more:
            notes += f"\n[{_more(path, first_line, read.count)}]"
        return read.text + notes

    @tool(
        name="write_file",
        effect=Effect.IDEMPOTENT,
        granted_by=("path",),
        example={"path": "notes/todo.md", "content": "- one\n"},
        title=lambda arguments: f"write {arguments['path']}",
        **changes,
    )
    def write_file(path: str, content: str, token: Token) -> str:
        """Write a whole file in the workspace. Missing directories are created.

        Args:
            path: The path of the file, relative to the workspace.
            content: The complete new content.
        """
        data = content.encode()
        with _open_to_change(workspace, path, make_directories=True) as place:
            is_new = write_atomically(place, data, token)
            kind = "a new file" if is_new else "replaced"
            return f"Wrote {place.path}: {len(data)} bytes, {kind}."

    @tool(
        name="edit_file",
        effect=Effect.UNKNOWN,
        granted_by=("path",),
        example={"path": "src/main.py", "old_text": "retries = 3", "new_text": "retries = 5"},
        title=lambda arguments: f"edit {arguments['path']}",
        **changes,
    )
    def edit_file(
        path: str, old_text: str, new_text: str, token: Token, every: bool = False
    ) -> str:
        """Replace a piece of text in a file of the workspace.

        Args:
            path: The path of the file, relative to the workspace.
            old_text: The exact text to replace, with enough around it to occur only once.
            new_text: The text to put in its place.
            every: Replace every occurrence, if there is more than one.
        """
        with _open_to_change(workspace, path) as place:
            text, version = read_whole(place, token)
            old, new = _with_line_ends_of(text, old_text, new_text)
            _refuse_unless_found(place.path, text, old, every)
            at = text.index(old)
            edited = text.replace(old, new)
            write_atomically(place, edited.encode(), token, replaces=version)
            count = text.count(old)
            times = f" in {count} places" if count > 1 else ""
            return f"Edited {place.path}{times}. It now reads:\n{_around(edited, at, len(new))}"

    return read_file, write_file, edit_file


def _why_to_ask(path: str) -> str:
    """A change of these files can run any program, or change what is asked about."""
    parts = os.path.normpath(path).casefold().split("/")
    if ".git" in parts:
        return "git runs programs that its folder names"
    return "it has settings of Bargein" if parts[-1] in _OWN_SETTINGS else ""


@contextmanager
def _open_to_change(
    workspace: Workspace, path: str, *, make_directories: bool = False
) -> Iterator[Place]:
    """A plan touches no file system, so a path was asked about by its words. It must not lead by a
    link to what would have been asked about."""
    with _open_place(workspace, path, make_directories=make_directories) as place:
        if _why_to_ask(place.path) and not _why_to_ask(path):
            raise PathRefused(
                f"{path} leads to {place.path} by a link. Give that path: the user is asked."
            )
        yield place


@contextmanager
def _open_place(
    workspace: Workspace, path: str, *, make_directories: bool = False
) -> Iterator[Place]:
    """Opens the place a path leads to; turns operating system errors into sentences."""
    place: Place | None = None
    try:
        with workspace.place(path, make_directories=make_directories) as place:
            try:
                yield place
            except FileNotFoundError as error:
                raise PathRefused(explain(error, path) + similar_names(place)) from error
    except OSError as error:
        if place is None and error.errno == errno.ENOENT:
            raise PathRefused(
                f"{path} does not exist: a directory on the way is missing."
            ) from error
        raise PathRefused(explain(error, path)) from error


def _more(path: str, first_line: int, count: int) -> str:
    if count == 0:
        return f"this is only the beginning of line {first_line} of {path}, which is very long"
    last = first_line + count - 1
    return f"lines {first_line} to {last}; there is more: first_line={last + 1} reads on"


def _with_line_ends_of(text: str, old: str, new: str) -> tuple[str, str]:
    """Converts LF to CRLF if the file uses CRLF and the given text does not."""
    if old not in text and "\r\n" in text and "\r" not in old:
        return old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    return old, new


def _refuse_unless_found(path: str, text: str, old: str, every: bool) -> None:
    if not old:
        raise PathRefused("old_text is empty; to write a whole file, use write_file.")
    count = text.count(old)
    if count == 0:
        raise PathRefused(f"old_text is not in {path}.{_nearly(text, old)}")
    if count > 1 and not every:
        lines = ", ".join(str(line) for line in _lines_of(text, old, 5))
        more = ", ..." if count > 5 else ""
        raise PathRefused(
            f"old_text is in {path} {count} times (lines {lines}{more}). Include more of the text "
            "around it, or every=true to replace all."
        )


def _lines_of(text: str, piece: str, count_max: int) -> Iterator[int]:
    at, line = 0, 1
    for _ in range(count_max):
        found = text.find(piece, at)
        if found < 0:
            return
        line += text.count("\n", at, found)
        yield line
        line += text.count("\n", found, found + len(piece))
        at = found + len(piece)


def _nearly(text: str, old: str) -> str:
    """Looks for the text ignoring whitespace, which is the most common mismatch."""
    hint = " Read the file and copy the text from there."
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    if not wanted[0] or len(text) > _HINTED_CHARS_MAX:
        return hint
    given = text.split("\n")
    lines = [" ".join(line.split()) for line in given]
    for number, line in enumerate(lines):
        if line == wanted[0] and lines[number : number + len(wanted)] == wanted:
            found = "\n".join(given[number : number + len(wanted)])
            return f" With different whitespace it is at line {number + 1}, which reads:\n{found}"
    for number, line in enumerate(lines):
        if wanted[0] in line:
            return f" Line {number + 1} resembles its beginning: {given[number].strip()}.{hint}"
    return hint


def _around(text: str, at: int, length: int, context_lines: int = 3, lines_max: int = 40) -> str:
    """Returns the changed lines with their numbers and a few lines around them."""
    lines = text.split("\n")
    first = text.count("\n", 0, at)
    last = first + text.count("\n", at, at + length)
    begin = max(0, first - context_lines)
    end = min(len(lines), last + 1 + context_lines, begin + lines_max)
    return "\n".join(f"{number + 1:6}  {lines[number]}" for number in range(begin, end))
