"""Lists every process that can be seen: from /proc, or from ps where there is no /proc (macOS).

A list is out of date when it is read, so it proves nothing; it finds processes to signal and to
name. Any thread. Reading it takes milliseconds.
"""

import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bargein.process.fork_hooks import unowned
from bargein.process.helper import procfs

_PS_S_MAX = 2.0
_RECENT_S = 0.02


class ListedProcess(NamedTuple):
    """A process that is not dead. `began` tells two processes with the same pid apart."""

    pid: int
    parent: int
    group: int
    session: int
    began: str
    line: str | None

    @property
    def command(self) -> str:
        return procfs.command_of(self.pid) if self.line is None else self.line


def list_processes() -> list[ListedProcess] | None:
    """Returns None if they cannot be listed: no descriptor is free, or ps is missing."""
    try:
        return _from_proc() if Path("/proc").is_dir() else _from_ps()
    except (OSError, subprocess.TimeoutExpired):
        return None


class Listing:
    """A list, a moment old at most, that many stops share: two hundred stops at once would
    otherwise read all of /proc two hundred times."""

    def __init__(self) -> None:
        self._listed: list[ListedProcess] | None = None
        self._made_at = -1.0

    def now(self, *, started_before: float) -> list[ListedProcess] | None:
        """A list that is younger than `started_before`, the time at which the caller had started
        its process: an older list would not have that process."""
        now = time.monotonic()
        oldest = max(now - _RECENT_S, started_before)
        if self._listed is None or self._made_at < oldest:
            self._made_at = now
            self._listed = list_processes()
        return self._listed


def is_still_there(seen: ListedProcess) -> bool:
    """Whether the same process is alive now."""
    if Path("/proc").is_dir():
        fields = procfs.status_fields(seen.pid)
        alive = bool(fields) and fields[0] not in (b"Z", b"X")
        return alive and fields[19].decode() == seen.began
    return any(each[:1] == seen[:1] and each.began == seen.began for each in _from_ps())


def _from_proc() -> list[ListedProcess]:
    found = []
    for pid in procfs.all_pids():
        fields = procfs.status_fields(pid)
        if fields and fields[0] not in (b"Z", b"X"):
            parent, group, session = map(int, fields[1:4])
            began = fields[19].decode()
            found.append(ListedProcess(pid, parent, group, session, began, None))
    return found


def _from_ps() -> list[ListedProcess]:
    columns = "pid=,ppid=,pgid=,stat=,lstart=,command="
    with unowned():
        done = subprocess.run(
            ["ps", "-A", "-o", columns], capture_output=True, timeout=_PS_S_MAX, check=False
        )
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [listed for line in lines if (listed := parse_ps_line(line)) is not None]


def parse_ps_line(line: str) -> ListedProcess | None:
    """Parse one line; returns None for a dead process. The start is five words, as in "Mon Jan  1
    00:00:00 2024". ps shows no session."""
    words = line.split(None, 9)
    if len(words) < 9 or words[3].startswith("Z"):
        return None
    pid, parent, group = map(int, words[:3])
    command = words[9] if len(words) > 9 else ""
    return ListedProcess(pid, parent, group, 0, " ".join(words[4:9]), command[:200])
