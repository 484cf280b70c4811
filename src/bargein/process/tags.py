"""A mark in the environment of the processes we start, which finds them wherever they went.

A process inherits its environment, through `setsid` and double forks too. So a process that
carries the tag of an enclosure was started from inside it, even if it has left the cgroup or lost
its parents. A tag is a variable name of its own, not a value, so that programs that contain
programs add their tags without hiding each other's.

A process that starts a program with an empty environment removes the tag. So, where that works, a
command is in a time namespace of its own as well, which is its mark: only a process that enters
another namespace on purpose removes that. Linux only. `TagFinder`
is used on the loop, except where a method says "any thread"; it never waits.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Final

from bargein.process.helper import procfs

PREFIX: Final = b"BARGEIN_TAG_"

_SERIAL_BYTES: Final = 8
_FORGET_S: Final = 0.25
# Up to this many numbers, trying each costs less than listing all processes.
_PROBED_MAX: Final = 256
_AT_A_GLANCE: Final = 32
# More than any machine starts in a second.
_STARTS_A_SECOND_MAX: Final = 200_000


def new_tag() -> bytes:
    return PREFIX + secrets.token_hex(_SERIAL_BYTES).encode()


def tags_of(pid: int) -> list[bytes]:
    """Every tag in the environment that its program was started with; none if it has ended."""
    return _tags_in(procfs.environ_of(pid))


def mark_of(pid: int) -> bytes:
    """Names the time namespace of a process, if it is another than ours. The kernel gives the name
    of a namespace that nobody is in and nobody holds open to the next one."""
    try:
        number = os.stat(f"/proc/{pid}/ns/time").st_ino
    except OSError:
        return b""
    return b"time:%d" % number if number != _our_namespace() else b""


@cache
def _our_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0


def _tags_in(environ: bytes) -> list[bytes]:
    if PREFIX not in environ:
        return []
    return [entry.partition(b"=")[0] for entry in environ.split(b"\0") if entry.startswith(PREFIX)]


class TagFinder:
    """Finds the carriers of a tag among the processes that started after some process.

    All enclosures share one: it looks at each new process once, however many enclosures ask, and
    remembers what it found for a moment. The kernel gives out pids in a circle, so "started after"
    counts along the circle; if the numbers may have gone round since, it looks at all processes.

    `spares` are processes of ours that wait for a command and carry no tag. `hear_of_spares` is
    called before a look, to add those that have just been started.
    """

    def __init__(self, hear_of_spares: Callable[[], object] = lambda: None) -> None:
        self.spares: set[int] = set()
        self._hear_of_spares = hear_of_spares
        self._last = _open("/proc/sys/kernel/ns_last_pid")
        self._stat = _open("/proc/stat")
        self._pid_max = _number("/proc/sys/kernel/pid_max") or 1 << 22
        # The machine had started `_counted` processes at this time.
        self._counted_at = time.monotonic()
        self._counted = self._starts()
        # What was looked at: the numbers after `_from` up to `_to`, or all processes.
        self._made_at = -1.0
        self._from = 0
        self._to = 0
        self._everybody = False
        self._found: dict[bytes, list[int]] = {}
        # Of these, the ones whose environment is not known, and which have to be looked at again.
        self._undecided: set[int] = set()

    def last_pid(self) -> int:
        """The pid that was given out last; 0 if the system does not say. Any thread."""
        try:
            return int(os.pread(self._last, 32, 0)) if self._last >= 0 else 0
        except (OSError, ValueError):
            return 0

    def others_since(self, pid: int, known: Collection[int]) -> bool:
        """Whether a later pid than this was given to a process that is neither known nor a spare.
        True also if that takes longer than a glance. Any thread."""
        last = self.last_pid()
        if not pid <= last <= pid + _AT_A_GLANCE:
            return True
        # A loop, not `any`: every first signal waits for this.
        spares = self.spares
        for each in range(pid + 1, last + 1):  # noqa: SIM110
            if each not in spares and each not in known:
                return True
        return False

    def carriers(
        self,
        tag: bytes,
        *,
        since_pid: int,
        since_s: float,
        known: Collection[int] = (),
        mark: bytes = b"",
    ) -> list[int]:
        """The carriers of `tag`, and those with this `mark`, with a later pid than `since_pid`,
        which was given out at the monotonic time `since_s` or later. They may have ended since.

        The caller sees by itself when the processes in `known` end, or has seen it; they are not
        looked at for it.
        """
        now = time.monotonic()
        may_go_round = (now - since_s) * _STARTS_A_SECOND_MAX >= self._pid_max
        if not may_go_round and not self.others_since(since_pid, known):
            return []
        self._hear_of_spares()
        last = self.last_pid()
        everybody = not last or not since_pid or self._may_have_gone_round(now, since_s)
        if self._covers(now, since_pid, everybody):
            if not self._everybody:
                self._look_at([*self._undecided, *self._between(self._to, last)], known)
                self._to = last
        else:
            self._made_at = now
            self._from, self._to = since_pid, last
            self._everybody = everybody
            self._found = {}
            self._undecided = set()
            pids = self._all_pids() if everybody else self._between(since_pid, last)
            self._look_at(pids, () if everybody else known)
        marked = self._found.get(mark, []) if mark else []
        return [*self._found.get(tag, []), *marked]

    def close(self) -> None:
        for fd in (self._last, self._stat):
            if fd >= 0:
                os.close(fd)
        self._last = self._stat = -1

    def _covers(self, now: float, since_pid: int, everybody: bool) -> bool:
        """Whether what was found is fresh and reaches back far enough. A list of all processes is
        not extended, so only its first caller uses it."""
        if self._everybody or everybody or now - self._made_at > _FORGET_S:
            return False
        return self._after(self._from, since_pid) <= self._after(self._from, self._to)

    def _look_at(self, pids: Iterable[int], known: Collection[int]) -> None:
        undecided = self._undecided
        for pid in pids:
            if pid in known:
                undecided.add(pid)
                continue
            undecided.discard(pid)
            if pid in self.spares:
                continue
            if not _is_process(pid):
                continue
            environ = procfs.environ_of(pid)
            mark = mark_of(pid)
            for tag in [*_tags_in(environ), *([mark] if mark else [])]:
                self._found.setdefault(tag, []).append(pid)
            if not environ and not mark:
                # Dead and not collected, or a kernel thread; or one that is just becoming another
                # program, and whose environment can be read in a moment.
                undecided.add(pid)

    def _between(self, first: int, last: int) -> Iterable[int]:
        """The pids after `first` up to `last`; maybe with some that no process has."""
        count = self._after(first, last)
        if count <= _PROBED_MAX:
            return [(first + step) % self._pid_max for step in range(1, count + 1)]
        return [pid for pid in self._all_pids() if 0 < self._after(first, pid) <= count]

    def _all_pids(self) -> Iterable[int]:
        """All pids; with a full descriptor table every number that may be one, because /proc cannot
        be listed then. Most numbers are nobody's, and finding that out takes no descriptor."""
        try:
            return procfs.all_pids()
        except OSError:
            return range(1, self._pid_max)

    def _after(self, first: int, pid: int) -> int:
        """How many pids after `first` it comes."""
        return (pid - first) % self._pid_max

    def _may_have_gone_round(self, now: float, since_s: float) -> bool:
        if (now - since_s) * _STARTS_A_SECOND_MAX < self._pid_max:
            return False
        starts = self._starts()
        went_round = not starts or starts - self._counted >= self._pid_max
        if went_round:
            self._counted_at, self._counted = now, starts
        return went_round or since_s < self._counted_at

    def _starts(self) -> int:
        """How many processes and threads the machine has started; 0 if it does not say."""
        try:
            text = os.pread(self._stat, 1 << 20, 0) if self._stat >= 0 else b""
            return int(text.partition(b"\nprocesses ")[2].split()[0])
        except (OSError, ValueError, IndexError):
            return 0


def _is_process(pid: int) -> bool:
    """False if nobody has this pid, or it is a thread: then its process has a pid of its own, and
    is looked at by that. Finding out takes 2 us, and looking at a thread takes 10 us for each
    thread beside it."""
    try:
        os.close(os.pidfd_open(pid))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return True


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
