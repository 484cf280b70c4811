"""The owner's door: a unix socket in the data directory, for terminals of the user who owns it.

Who comes in here needs no token. The socket can be reached by this user alone, and commands of an
agent cannot see the directory that it lies in; besides, the kernel says whose process the peer is,
and one that lives in a containment of ours is not let in (`bargein.process.peers`).
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
    """Listens at the door of a data directory, for the process that owns it."""
    path = home / DOOR_FILE
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        # The lock says that its last owner is gone.
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
        # Only our own: the next owner may have made another one.
        if _is_same(path, made):
            path.unlink(missing_ok=True)


def _is_same(path: Path, made: os.stat_result) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and os.path.samestat(found, made)
