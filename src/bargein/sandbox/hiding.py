"""Chooses the directories that commands must not see.

These are the data directory (every conversation, the tokens, the address and key that a server
leaves for its owner's programs) and the folder of the user's settings, which has the rules of
approval: an agent that could write there could approve its own calls.

`bargein.process` hides them. Nothing here changes anything; any thread.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from bargein.errors import UserError
from bargein.process import Hiding


def hiding_for(
    home: Path,
    *,
    own: Iterable[Path] = (),
    workspaces: Iterable[Path] = (),
    kept: Iterable[Path] = (),
) -> Hiding:
    """The data directory `home` and the folders `own`, those of them that exist, as a `Hiding`.

    A workspace inside one of them stays visible, and so do the interpreter that runs us and the
    folders `kept`, if they exist when the first command starts. Raises `UserError` if a workspace
    is one of the hidden directories: its commands would have to see it.
    """
    directories = [real for real in map(_real, (home, *own)) if real is not None]
    folders = [real for real in map(_real, workspaces) if real is not None]
    for folder in folders:
        if folder in directories:
            raise UserError(
                f"{folder} is both the workspace and a directory of Bargein's own, which commands "
                "must not see; start in another folder, or set BARGEIN_HOME to another directory"
            )
    others = [*kept, Path(sys.prefix), Path(sys.base_prefix)]
    needed = [*folders, *(os.path.realpath(path) for path in others)]
    below = [path for path in needed if any(_is_below(path, each) for each in directories)]
    ways = [way for directory in directories for way in (directory, *_other_ways(directory))]
    # Only the outermost: a directory below a covered one cannot be covered.
    ways = [way for way in dict.fromkeys(ways) if not any(_is_below(way, each) for each in ways)]
    return Hiding(tuple(ways), tuple(dict.fromkeys(below)))


def _real(path: Path) -> str | None:
    real = os.path.realpath(path)
    return real if os.path.isdir(real) and real != "/" else None


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory + "/")


def _other_ways(directory: str) -> Iterator[str]:
    """Other paths to the same directory, through other mounts of its file system."""
    mounts = list(_mounts())
    here = [each for each in mounts if f"{directory}/".startswith(each[2].rstrip("/") + "/")]
    if not here:
        return
    device, root, point = max(here, key=lambda each: len(each[2]))
    inside = os.path.normpath(os.path.join(root, os.path.relpath(directory, point)))
    for other_device, other_root, other_point in mounts:
        if other_device != device or not f"{inside}/".startswith(other_root.rstrip("/") + "/"):
            continue
        way = os.path.normpath(os.path.join(other_point, os.path.relpath(inside, other_root)))
        if way != directory and _is_same(way, directory):
            yield way


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _mounts() -> Iterator[tuple[str, str, str]]:
    """For each mount: the device, the directory of it that is mounted, and the mount point."""
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        _, _, device, root, point, *_ = line.split(" ")
        yield device, _plain(root), _plain(point)


def _plain(text: str) -> str:
    """The kernel writes blanks and backslashes as octal numbers."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text
