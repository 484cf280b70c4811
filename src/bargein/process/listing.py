"""Every process that can be seen: from /proc, or from ps where there is none (macOS)."""

import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bargein.process.doors import nobodys
from bargein.process.helper import family

_PS_S_MAX = 2.0
_RECENT_S = 0.02


class Listed(NamedTuple):
    """`began` tells two processes with one pid apart. Without the dead that wait for collection."""

    pid: int
    parent: int
    group: int
    session: int
    began: str
    line: str | None

    @property
    def command(self) -> str:
        return family.command_of(self.pid) if self.line is None else self.line


def list_processes() -> list[Listed] | None:
    """None if they cannot be listed, for want of a descriptor or of ps."""
    try:
        return _from_proc() if Path("/proc").is_dir() else _from_ps()
    except (OSError, subprocess.TimeoutExpired):
        return None


class Listing:
    """A list that many may ask for at once, a moment old at most.

    Two hundred stops at once share it, each of which would else read all of /proc.
    """

    def __init__(self) -> None:
        self._listed: list[Listed] | None = None
        self._made_at = -1.0

    def now(self, *, born_before: float) -> list[Listed] | None:
        """Made after `born_before`, when whoever asks began to have processes: an older list
        would tell that there are none."""
        now = time.monotonic()
        oldest = max(now - _RECENT_S, born_before)
        if self._listed is None or self._made_at < oldest:
            self._made_at = now
            self._listed = list_processes()
        return self._listed


def is_still_there(seen: Listed) -> bool:
    """The same process, alive, now."""
    if Path("/proc").is_dir():
        fields = family.status_fields(seen.pid)
        alive = bool(fields) and fields[0] not in (b"Z", b"X")
        return alive and fields[19].decode() == seen.began
    return any(each[:1] == seen[:1] and each.began == seen.began for each in _from_ps())


def _from_proc() -> list[Listed]:
    found = []
    for pid in family.everybody():
        fields = family.status_fields(pid)
        if fields and fields[0] not in (b"Z", b"X"):
            parent, group, session = map(int, fields[1:4])
            began = fields[19].decode()
            found.append(Listed(pid, parent, group, session, began, None))
    return found


def _from_ps() -> list[Listed]:
    columns = "pid=,ppid=,pgid=,stat=,lstart=,command="
    with nobodys():
        done = subprocess.run(
            ["ps", "-A", "-o", columns], capture_output=True, timeout=_PS_S_MAX, check=False
        )
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [listed for line in lines if (listed := parse_ps_line(line)) is not None]


def parse_ps_line(line: str) -> Listed | None:
    """The start is five words: "Mon Jan  1 00:00:00 2024". There is no session in it."""
    words = line.split(None, 9)
    if len(words) < 9 or words[3].startswith("Z"):
        return None
    pid, parent, group = map(int, words[:3])
    command = words[9] if len(words) > 9 else ""
    return Listed(pid, parent, group, 0, " ".join(words[4:9]), command[:200])
