"""A command in the form in which a spare process takes it, checked and encoded.

Pure functions; any thread.
"""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bargein.process.errors import SpawnError, describe

_ENCODING = sys.getfilesystemencoding()
_ENCODING_ERRORS = sys.getfilesystemencodeerrors()
_DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


class ExecRequest(NamedTuple):
    """`paths` are the files to try in turn. `terminal`: standard input is a terminal to take.
    `rlimits` are set just before the start."""

    argv: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes
    paths: list[bytes]
    terminal: bool
    rlimits: tuple[tuple[int, int], ...] = ()


def make_exec_request(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    terminal: bool,
) -> ExecRequest:
    """Raises ValueError or TypeError for arguments that no program can be given."""
    if isinstance(argv, str | bytes) or not argv:
        raise ValueError(f"argv must be a list of at least the command's name, not {argv!r}")
    arguments = [_encode("argument", each) for each in argv]
    environment = {}
    for name, value in env.items():
        if not name or "=" in name:
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        if "\0" in name or "\0" in value:
            raise ValueError(f"environment variable {name!r} contains a null character")
        environment[_fsencode(name)] = _fsencode(value)
    directory = os.path.abspath(_encode("cwd", os.fspath(cwd)))
    return ExecRequest(
        arguments, environment, directory, _paths(arguments[0], environment), terminal
    )


def _encode(what: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    if "\0" in text:
        raise ValueError(f"{what} {text!r} contains a null character")
    return _fsencode(text)


def _fsencode(text: str) -> bytes:
    """`os.fsencode` without its type check: an environment has many names and values."""
    return text.encode(_ENCODING, _ENCODING_ERRORS)


def _paths(command: bytes, environment: dict[bytes, bytes]) -> list[bytes]:
    if not command or b"/" in command:
        return [command]
    path = environment.get(b"PATH") or _DEFAULT_PATH
    return [(folder or b".") + b"/" + command for folder in path.split(b":")]


def spawn_error(request: ExecRequest, stage: str, code: int) -> SpawnError:
    """An error whose message names the folder or the command, and the reason.

    `stage` is how far the start came: "spare", "descriptors", "terminal", "sandbox", "directory" or
    "exec".
    """
    command = os.fsdecode(request.argv[0])
    if stage == "directory":
        directory = os.fsdecode(request.directory)
        text = f"cannot run {command!r} in {directory!r}: {describe(code)}"
    elif stage == "sandbox":
        text = f"cannot run {command!r}: its sandbox could not be made: {describe(code)}"
    elif code == errno.ENOENT and b"/" not in request.argv[0]:
        path = os.fsdecode(request.environment.get(b"PATH", _DEFAULT_PATH))
        text = f"command {command!r} not found on PATH {path!r}"
    elif code == errno.E2BIG:
        text = f"cannot run {command!r}: its arguments and environment together are too large"
    else:
        text = f"cannot run {command!r}: {describe(code)}"
    return SpawnError(text, errno=code, command=command)
