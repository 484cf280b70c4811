"""Every process that can be seen: from /proc, or from ps where there is none (macOS)."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from bargein.process.helper import family

_PS_S_MAX = 2.0


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
