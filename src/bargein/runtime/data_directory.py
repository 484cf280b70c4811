"""The data directory: Bargein makes it when it first needs it, and one process owns it at a time.

If another process owns it, `own_data_directory` raises a `UserError` that names the owner and, if
the owner is a server, its address.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bargein.errors import UserError

if TYPE_CHECKING:
    from bargein.runtime.directory_lock import DirectoryLock

CHECKPOINTS = "checkpoints"
PEOPLE = "people"
"""The folders of those who use a server together, for their commands."""
STAGES = "stages"
"""The copies of workspaces in which staged sessions work."""
DATABASES = "databases"
"""Has a directory for each PostgreSQL database that a program of this machine was given."""
SESSIONS_FILE = "sessions.sqlite3"
RUNNING_SERVER_FILE = "gateway.json"
DOOR_FILE = "host.sock"
"""Where the owner of the directory can be reached, if it serves others: see `server/door.py`."""
HOST = "bargein host"
"""What `sys.argv` of a host begins with: see `cli/host.py`."""
UNIX_PATH_BYTES_MAX = 100
KNOCK_S = 1.0
RESTORE_UNFINISHED = "restore.unfinished"
"""This file exists while a restore moves files, because the directory then holds parts of two
different states."""


class RunningServer(msgspec.Struct, frozen=True):
    """What a running server writes into the directory for this user's own programs. `sole` is the
    only principal that the server admits, if it was started for one alone."""

    url: str
    token: str | None
    pid: int
    sole: str | None = None


def make_data_directory(home: Path) -> None:
    """Makes the directory if it does not exist. Raises a `UserError` if it cannot be used."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(
            f"{home} cannot be created: {error.strerror}; set BARGEIN_HOME to another directory"
        ) from error
    if os.statvfs(home).f_flag & os.ST_RDONLY:
        raise UserError(f"{home} is on a read-only disk; set BARGEIN_HOME to another directory")
    if not os.access(home, os.W_OK | os.X_OK):
        raise UserError(
            f"this user may not write to {home}; correct its permissions, or set BARGEIN_HOME to "
            "another directory"
        )
    if (home / RESTORE_UNFINISHED).exists():
        raise UserError(
            f"a restore into {home} was interrupted, so its data is incomplete. Run "
            "`bargein restore` with the same backup again; it deletes nothing"
        )


def own_data_directory(home: Path) -> "DirectoryLock":
    """Makes this process the owner of the directory. Raises a `UserError` that names the owner if
    there is one."""
    from bargein.runtime.directory_lock import DirectoryInUse, DirectoryLock

    try:
        return DirectoryLock.take(home)
    except DirectoryInUse as error:
        where = _where_server_is(home, error.owner.pid) if error.owner is not None else ""
        if not where and error.owner is not None and HOST in error.owner.command:
            where = ". It runs the sessions of terminals, and ends a minute after the last has left"
        raise UserError(f"{error} (BARGEIN_HOME){where}") from error


def owner_listens(home: Path) -> bool:
    """Returns whether the owner of the directory can be reached by its door."""
    path = home / DOOR_FILE
    # If the directory cannot even be read, the code that opens it next says why.
    with suppress(OSError):
        if not path.is_socket():
            return False
        with socket.socket(socket.AF_UNIX) as knocking, socket_path(path) as reachable:
            knocking.settimeout(KNOCK_S)
            knocking.connect(reachable)
        return True
    return False


@contextmanager
def socket_path(path: Path) -> Iterator[str]:
    """The path of a unix socket, as short as the kernel wants it: one in a directory whose own path
    is long is reached through a descriptor of that directory, for as long as this is entered."""
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def is_in_data_directory(path: Path) -> bool:
    """Returns whether this file of the directory exists; raises a `UserError` if it cannot find
    out."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(
            f"{path} cannot be reached: {error.strerror}; correct the permissions, or set "
            "BARGEIN_HOME to another directory"
        ) from error
    return True


def explain_data_directory(words: str, home: Path) -> str:
    """Adds to an error about a file in the data directory how to choose that directory."""
    if str(home) not in words or "BARGEIN_HOME" in words:
        return words
    return f"{words}. BARGEIN_HOME says where the data directory is"


def running_server(home: Path) -> RunningServer | None:
    """Returns the server that seems to run on this directory, for a hint to the user."""
    try:
        server = msgspec.json.decode((home / RUNNING_SERVER_FILE).read_bytes(), type=RunningServer)
        os.kill(server.pid, 0)
    except (OSError, OverflowError, msgspec.DecodeError):
        return None
    return server


def _where_server_is(home: Path, pid: int) -> str:
    server = running_server(home)
    if server is None or server.pid != pid:
        return ""
    address = shown_address(server.url, server.token)
    words = f". It is a server: open {address} in a browser, or attach to it with `bargein chat`"
    if server.token is not None and address == server.url:
        words += f". {token_in_file(home)}"
    return words


def shown_address(url: str, token: str | None) -> str:
    """Returns the address to print on stderr: with the token only in a terminal. Anything else is
    mostly a log, which is stored and which others read."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return page_address(url, token) if is_terminal else url


def token_in_file(home: Path) -> str:
    return f"Its token is in {home / RUNNING_SERVER_FILE}, which only this user can read"


def page_address(url: str, token: str | None) -> str:
    """Returns the address to open in a browser. The token is in the fragment, which browsers send
    to no server, so that it appears in no server's log."""
    return f"{url}#token={token}" if token is not None else url
