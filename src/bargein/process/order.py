"""What to run, in the form in which an embryo takes it."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bargein.process.errors import SpawnError, describe

_ENCODING = sys.getfilesystemencoding()
_ENCODING_ERRORS = sys.getfilesystemencodeerrors()
_DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


class Order(NamedTuple):
    argv: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes
    paths: list[bytes]
    terminal: bool


def make_order(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    terminal: bool,
) -> Order:
    """Raises ValueError for what no program could be given."""
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
    return Order(arguments, environment, directory, _paths(arguments[0], environment), terminal)


def _encode(what: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    if "\0" in text:
        raise ValueError(f"{what} {text!r} contains a null character")
    return _fsencode(text)


def _fsencode(text: str) -> bytes:
    """`os.fsencode` for what is known to be text; an environment has many."""
    return text.encode(_ENCODING, _ENCODING_ERRORS)


def _paths(command: bytes, environment: dict[bytes, bytes]) -> list[bytes]:
    if not command or b"/" in command:
        return [command]
    path = environment.get(b"PATH") or _DEFAULT_PATH
    return [(folder or b".") + b"/" + command for folder in path.split(b":")]


def failure(order: Order, stage: str, code: int) -> SpawnError:
    """Names what was wrong: the folder, the command, or the machine."""
    command = os.fsdecode(order.argv[0])
    if stage == "directory":
        directory = os.fsdecode(order.directory)
        text = f"cannot run {command!r} in {directory!r}: {describe(code)}"
    elif code == errno.ENOENT and b"/" not in order.argv[0]:
        path = os.fsdecode(order.environment.get(b"PATH", _DEFAULT_PATH))
        text = f"command {command!r} not found on PATH {path!r}"
    elif code == errno.E2BIG:
        text = f"cannot run {command!r}: its arguments and environment together are too large"
    else:
        text = f"cannot run {command!r}: {describe(code)}"
    return SpawnError(text, errno=code, command=command)
