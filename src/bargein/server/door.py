"""The owner's door: a unix socket in the data directory, for terminals of the user who owns it.

A client of this socket needs no token. Only this user can reach the socket, and an agent's commands
cannot see its directory. In addition, the kernel names the process at the other end: it must be
this user's, and must not live in a containment of ours (`bargein.process.peers`).
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bargein.errors import UserError
from bargein.runtime.data_directory import DOOR_FILE, socket_path

BACKLOG = 128


@contextmanager
def door(home: Path) -> Iterator[socket.socket]:
    """Listens at the door of a data directory. Only for the process that owns the directory."""
    path = home / DOOR_FILE
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        # We hold the lock, so the last owner is gone.
        path.unlink(missing_ok=True)
        with socket_path(path) as reachable:
            listening.bind(reachable)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UserError(
            f"{path} cannot be made: {error.strerror or error}; set BARGEIN_HOME to a directory "
            "on a local disk"
        ) from error
    finally:
        os.umask(before)
    made = os.lstat(path)
    try:
        yield listening
    finally:
        listening.close()
        # Remove only our own socket: the next owner may have made another.
        if _is_same(path, made):
            path.unlink(missing_ok=True)


def _is_same(path: Path, made: os.stat_result) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and os.path.samestat(found, made)
