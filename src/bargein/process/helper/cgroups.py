"""Kills and removes cgroups.

An instance is a directory `bargein-...` in which each command has a cgroup of its own. Its owner
and the owner's helper hold a lock on it. So if the lock is free both are dead, and the processes
inside belong to nobody. No pid is trusted here. Called in the helper; `kill`, `is_populated`,
`remove` and `reap_free_instances` by its owner as well.
"""

import fcntl
import os
import select
import time
from collections.abc import Iterable

INSTANCE_PREFIX = "bargein-"
LEFTOVER_KILL_S = 2.0


def kill(directory: str) -> None:
    """Kill everybody in it and below it, also children that they are just forking."""
    file = os.open(f"{directory}/cgroup.kill", os.O_WRONLY)
    try:
        os.write(file, b"1")
    finally:
        os.close(file)


def is_populated(events: int) -> bool:
    """Reads an open cgroup.events; reading also rearms its POLLPRI."""
    return b"populated 1" in os.pread(events, 256, 0)


def wait_until_empty(directory: str, timeout_s: float) -> bool:
    events = os.open(f"{directory}/cgroup.events", os.O_RDONLY)
    try:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        deadline = time.monotonic() + timeout_s
        while is_populated(events):
            rest_s = deadline - time.monotonic()
            if rest_s <= 0:
                return False
            # The kernel merges notices that come within 10 ms, so one may be late: look again.
            poll.poll(min(rest_s, 0.02) * 1000)
        return True
    finally:
        os.close(events)


def remove(directory: str) -> bool:
    """Remove it and what is below it. Returns False if something in it is still busy."""
    for path, _below, _files in os.walk(directory, topdown=False):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            return False
    return True


def kill_and_remove(directory: str, timeout_s: float) -> bool:
    kill(directory)
    if not wait_until_empty(directory, timeout_s):
        return False
    deadline = time.monotonic() + timeout_s
    while not remove(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def instances_in(base: str) -> list[str]:
    try:
        names = os.listdir(base)
    except OSError:
        return []
    return [f"{base}/{name}" for name in sorted(names) if name.startswith(INSTANCE_PREFIX)]


def reap_free_instances(directories: Iterable[str]) -> int:
    """Kill and remove those whose owner and helper are dead. Returns how many there were."""
    return sum(_reap_if_free(directory) for directory in directories)


def _reap_if_free(directory: str) -> bool:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return kill_and_remove(directory, LEFTOVER_KILL_S)
    except OSError:
        return False  # in use; or another start removed it first; or we may not touch it
    finally:
        os.close(handle)
