"""The data directory: made when it is first used, and owned by one process at a time.

Whoever finds it owned is told by whom, and if that is a server, where it can be reached instead.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bargein.errors import UserError

if TYPE_CHECKING:
    from bargein.stores.lock import DirectoryLock

RUNTIME_FILE = "gateway.json"
UNFINISHED = "restore.unfinished"
"""There while a restore moves files: what is in the directory then is half of one state and half
of another."""


class Runtime(msgspec.Struct, frozen=True):
    """What a server that runs has written down for this user's own programs. `sole` is the one
    principal whom it lets in, if it was started for one alone."""

    url: str
    token: str | None
    pid: int
    sole: str | None = None


def make_home(home: Path) -> None:
    """Make it if it is not there, or say why nothing can be kept in it."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(
            f"{home} cannot be made: {error.strerror}; set BARGEIN_HOME to another directory"
        ) from error
    if os.statvfs(home).f_flag & os.ST_RDONLY:
        raise UserError(
            f"{home} is on a disk that is read-only; set BARGEIN_HOME to another directory"
        )
    if not os.access(home, os.W_OK | os.X_OK):
        raise UserError(
            f"{home} may not be written by this user; set its permissions right, or set "
            "BARGEIN_HOME to another directory"
        )
    if (home / UNFINISHED).exists():
        raise UserError(
            f"a restore into {home} was interrupted, so what is in it is not whole. Run "
            "`bargein restore` with the same backup again; it deletes nothing"
        )


def is_in_home(path: Path) -> bool:
    """Whether there is such a file; it is an error not to be able to tell."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(
            f"{path} cannot be reached: {error.strerror}; set the permissions right, or set "
            "BARGEIN_HOME to another directory"
        ) from error
    return True


def with_what_to_set(words: str, home: Path) -> str:
    """A complaint about a file in the data directory, of whoever does not know why it is there."""
    if str(home) not in words or "BARGEIN_HOME" in words:
        return words
    return f"{words}. BARGEIN_HOME says where the data directory is"


def own_home(home: Path) -> "DirectoryLock":
    """Take the directory for this process."""
    from bargein.stores.lock import DirectoryInUse, DirectoryLock

    try:
        return DirectoryLock.take(home)
    except DirectoryInUse as error:
        served = _served_at(home, error.owner.pid) if error.owner is not None else None
        where = f". It is a server: open {served} in a browser" if served is not None else ""
        raise UserError(f"{error} (BARGEIN_HOME){where}") from error


def running_server(home: Path) -> Runtime | None:
    """The server that seems to run on this directory, for a hint to the user."""
    try:
        runtime = msgspec.json.decode((home / RUNTIME_FILE).read_bytes(), type=Runtime)
        os.kill(runtime.pid, 0)
    except (OSError, OverflowError, msgspec.DecodeError):
        return None
    return runtime


def _served_at(home: Path, pid: int) -> str | None:
    runtime = running_server(home)
    if runtime is None or runtime.pid != pid:
        return None
    return page_address(runtime.url, runtime.token)


def page_address(url: str, token: str | None) -> str:
    """The address to open in a browser. The token is in the fragment, which is sent to no server
    and so stands in no log of one."""
    return f"{url}#token={token}" if token is not None else url
