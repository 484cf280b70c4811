"""Who is at the other end of a unix socket: the kernel says it, and nobody can pretend.

A peer that lives in our own containment is a command of an agent, or something that one started.
Linux only; elsewhere nobody can be told, so everybody is refused. Any thread; never waits.
"""

import os
import socket
import struct
from pathlib import Path

from bargein.process.helper.cgroups import INSTANCE_PREFIX

_CREDENTIALS = struct.Struct("3i")
_ANCESTORS_MAX = 1000


def is_owner(connection: socket.socket) -> bool:
    """Whether the peer is a process of this user that no containment of ours holds."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return False
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    except OSError:
        return False
    pid, user, _ = _CREDENTIALS.unpack(found)
    return user == os.geteuid() and not is_contained(pid)


def is_contained(pid: int) -> bool:
    """Whether a process is inside a containment of this process. True if that cannot be told."""
    try:
        instances = _instances(pid) - _instances(os.getpid())
        return bool(instances) or _descends_from(pid, os.getpid())
    except (OSError, ValueError):
        return True


def _instances(pid: int) -> set[str]:
    """The instances whose cgroups this process is in. Its own path has those that we are in too, if
    this program was started by a command of an agent."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    names = (name for line in lines for name in line.split("/"))
    return {name for name in names if name.startswith(INSTANCE_PREFIX)}


def _descends_from(pid: int, ancestor: int) -> bool:
    """A supervisor collects its orphans, so that they stay below us."""
    for _ in range(_ANCESTORS_MAX):
        if pid <= 1:
            return False
        if pid == ancestor:
            return True
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The name in brackets may have brackets and blanks of its own.
        pid = int(text.rpartition(")")[2].split()[1])
    raise ValueError("a process has too many ancestors")
