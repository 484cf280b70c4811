"""A mark in the environment of what we start, by which it is found wherever it went.

A process inherits its environment, through `setsid` and double forks too. So whoever carries the
tag of a cell was started by what runs in that cell, though it has left the cgroup or lost its
parents. A tag is a name of its own, not a value: programs that contain programs add theirs, and
none hides another.

A process that starts another program with an empty environment takes the tag off. Linux only.
"""

import os
import secrets
import time
from collections.abc import Collection, Iterable
from typing import Final

from bargein.process.helper import family

PREFIX: Final = b"BARGEIN_CELL_"

_SERIAL_BYTES: Final = 8
_FORGET_S: Final = 0.25
# Looking for a number that nobody has costs less than a number's part of a whole list, up to here.
_PROBED_MAX: Final = 256
_AT_A_GLANCE: Final = 32
# More than any machine starts in a second.
_BIRTHS_A_SECOND_MAX: Final = 200_000


def new_tag() -> bytes:
    return PREFIX + secrets.token_hex(_SERIAL_BYTES).encode()


def tags_of(pid: int) -> list[bytes]:
    """Every tag in the environment that its program was started with; none if it has ended."""
    environ = family.environ_of(pid)
    if PREFIX not in environ:
        return []
    return [entry.partition(b"=")[0] for entry in environ.split(b"\0") if entry.startswith(PREFIX)]


class Census:
    """Finds who carries a tag, among those that were born since some process was.

    One for all cells: each new process is looked at once, however many cells ask, and what was
    found is used for a moment. Numbers go round, so "born since" is counted along the circle; if
    it may have gone round whole meanwhile, everybody is looked at.
    """

    def __init__(self) -> None:
        self._last = _open("/proc/sys/kernel/ns_last_pid")
        self._stat = _open("/proc/stat")
        self._pid_max = _number("/proc/sys/kernel/pid_max") or 1 << 22
        # Whoever was born later than this was, when that many had been born on this machine.
        self._counted_at = time.monotonic()
        self._counted = self._births()
        self._made_at = -1.0
        self._from = 0
        self._to = 0
        self._everybody = False
        self._found: dict[bytes, list[int]] = {}
        self.embryos: set[int] = set()
        """Those that wait for a command carry no tag, and need not be looked at."""

    def last_pid(self) -> int:
        """The number that was given out last; 0 if the system does not tell."""
        try:
            return int(os.pread(self._last, 32, 0)) if self._last >= 0 else 0
        except (OSError, ValueError):
            return 0

    def others_since(self, pid: int, known: Collection[int]) -> bool:
        """Whether a number was given out since that of `pid` to somebody who is neither known nor
        an embryo. Any thread. True if it cannot be told at a glance."""
        last = self.last_pid()
        if not pid <= last <= pid + _AT_A_GLANCE:
            return True
        # Written out: this is on the way of every first signal.
        embryos = self.embryos
        for each in range(pid + 1, last + 1):  # noqa: SIM110
            if each not in embryos and each not in known:
                return True
        return False

    def carriers(self, tag: bytes, *, since_pid: int, since_s: float) -> list[int]:
        """Who carries it, of those with a later number than `since_pid`, which was given out at
        the monotonic time `since_s` or later. They may have ended since."""
        now = time.monotonic()
        if (now - since_s) * _BIRTHS_A_SECOND_MAX < self._pid_max and not self.others_since(
            since_pid, ()
        ):
            return []
        last = self.last_pid()
        everybody = not last or not since_pid or self._may_have_gone_round(now, since_s)
        if self._covers(now, since_pid, everybody):
            if not self._everybody:
                self._look_at(self._between(self._to, last))
                self._to = last
        else:
            self._made_at = now
            self._from, self._to = since_pid, last
            self._everybody = everybody
            self._found = {}
            self._look_at(family.everybody() if everybody else self._between(since_pid, last))
        return self._found.get(tag, [])

    def close(self) -> None:
        for fd in (self._last, self._stat):
            if fd >= 0:
                os.close(fd)
        self._last = self._stat = -1

    def _covers(self, now: float, since_pid: int, everybody: bool) -> bool:
        """Whether what was found is fresh, and reaches back as far as is asked for. A list of
        everybody is not added to, so it serves nobody else."""
        if self._everybody or everybody or now - self._made_at > _FORGET_S:
            return False
        return self._after(self._from, since_pid) <= self._after(self._from, self._to)

    def _look_at(self, pids: Iterable[int]) -> None:
        for pid in pids:
            if pid not in self.embryos:
                for tag in tags_of(pid):
                    self._found.setdefault(tag, []).append(pid)

    def _between(self, first: int, last: int) -> Iterable[int]:
        """The numbers after `first` up to `last`, of those there are."""
        count = self._after(first, last)
        if count <= _PROBED_MAX:
            return self._numbers(first, count)
        return [pid for pid in family.everybody() if 0 < self._after(first, pid) <= count]

    def _numbers(self, first: int, count: int) -> list[int]:
        return [(first + step) % self._pid_max for step in range(1, count + 1)]

    def _after(self, first: int, pid: int) -> int:
        """How many numbers after `first` it comes."""
        return (pid - first) % self._pid_max

    def _may_have_gone_round(self, now: float, since_s: float) -> bool:
        if (now - since_s) * _BIRTHS_A_SECOND_MAX < self._pid_max:
            return False
        births = self._births()
        went_round = not births or births - self._counted >= self._pid_max
        if went_round:
            self._counted_at, self._counted = now, births
        return went_round or since_s < self._counted_at

    def _births(self) -> int:
        """How many processes and threads the machine has started; 0 if it does not tell."""
        try:
            text = os.pread(self._stat, 1 << 20, 0) if self._stat >= 0 else b""
            return int(text.partition(b"\nprocesses ")[2].split()[0])
        except (OSError, ValueError, IndexError):
            return 0


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return -1


def _number(path: str) -> int:
    fd = _open(path)
    if fd < 0:
        return 0
    try:
        return int(os.read(fd, 32))
    except (OSError, ValueError):
        return 0
    finally:
        os.close(fd)
