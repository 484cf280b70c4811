"""Who is in one cgroup, and who was started there and left: watched, signalled, killed, named.

As root, or inside a delegated subtree, a process can move out of its cgroup. `populated 0` then
says nothing of it, so nobody counts as gone before a look for whoever carries the cell's tag
elsewhere. Those are held by pidfds and treated like the others.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from bargein.process.helper import cgroups, family
from bargein.process.reserve import Reserve
from bargein.process.roll import Roll
from bargein.process.tags import Census, new_tag, tags_of
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.watch import Event, Watch

_WATCHED_MAX: Final = 64


class CgroupMembers:
    """`look` is called on the loop whenever somebody has ended. All else is called on the loop,
    where it does not say otherwise."""

    means: Final = Means.CGROUP

    def __init__(self, watch: Watch, reserve: Reserve, census: Census, directory: str) -> None:
        self._watcher = watch
        self._reserve = reserve
        self._census = census
        self._loop = watch.loop
        self._directory = directory
        self._roll = Roll()
        # Held by a pidfd, each seen in here, or with our tag, while it was held: no strangers.
        self._handles: dict[int, int] = {}
        # Open until the release: a canceller's thread may be using one.
        self._handles_done: list[int] = []
        self._outside: set[int] = set()
        self._since_pid = census.last_pid()
        self._since_s = time.monotonic()
        self._procs = -1
        self.tag = new_tag()
        # Kept open, so that a stop need not open them, and can tell though the table is full.
        self._population = os.open(f"{directory}/cgroup.events", os.O_RDONLY)
        try:
            self._procs = os.open(f"{directory}/cgroup.procs", os.O_RDONLY)
        except BaseException:
            self._close_files()
            raise

    @property
    def directory(self) -> str:
        return self._directory

    def look(self) -> None:
        raise NotImplementedError

    def is_anybody_left(self) -> bool:
        """In the cgroup, or outside with our tag."""
        if cgroups.is_populated(self._population):
            return True
        self._hold_outside(
            self._census.carriers(self.tag, since_pid=self._since_pid, since_s=self._since_s)
        )
        return bool(self._outside)

    def _hold_members(self) -> None:
        self._hold(pid for pid in self._members() if pid not in self._handles)

    def _hold(self, pids: Iterable[int]) -> None:
        held: list[tuple[int, int, str]] = []
        for pid in pids:
            if len(self._handles) + len(held) >= _WATCHED_MAX:
                self._roll.meet(pid, family.command_of(pid))
                continue
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            held.append((pid, handle, family.command_of(pid)))
        still_here = set(self._members()) if held else ()
        for pid, handle, command in held:
            if pid in still_here:
                self._roll.meet(pid, command)
                self._watch(pid, handle, partial(self._on_member, pid))
            else:
                os.close(handle)

    def _hold_outside(self, pids: Iterable[int]) -> None:
        """Without a bound: nothing else reaches them, and who is not held is not known to end."""
        for pid in pids:
            if pid in self._handles:
                continue
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue  # it has ended, or is a thread, whose process has another number
            if self.tag in tags_of(pid):
                self._adopt_outside(pid, handle)
            else:
                os.close(handle)

    def _adopt_outside(self, pid: int, handle: int) -> None:
        self._roll.meet(pid, family.command_of(pid))
        self._outside.add(pid)
        self._watch(pid, handle, partial(self._on_member, pid))

    def signal_everybody(self, number: int) -> None:
        self._hold_members()
        self._signal_known(number)

    def _signal_known(self, number: int) -> None:
        for pid, handle in list(self._handles.items()):
            if self._roll.signalled(pid, number):
                for each in (number, signal.SIGCONT):
                    _send(handle, each)

    def kill(self) -> None:
        self._roll.signalled_all(signal.SIGKILL)
        try:
            self._reserve.write(f"{self._directory}/cgroup.kill", b"1")
        except OSError:
            pass  # removed, so nobody is in it; or no descriptor to be had, and it is tried again
        for pid in self._outside:
            _send(self._handles[pid], signal.SIGKILL)

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._roll.told(began)

    def survivors(self) -> tuple[Survivor, ...]:
        left = [*self._members(), *self._outside]
        return tuple(Survivor(pid, family.command_of(pid)) for pid in left)

    def _members(self) -> list[int]:
        listed = b""
        try:
            while piece := os.pread(self._procs, 1 << 16, len(listed)):
                listed += piece
                if len(piece) < 1 << 11:
                    break  # the kernel fills a page as far as whole lines go
        except OSError:
            return []  # for the report alone: a kill needs no list
        # 0 stands for a process of another pid namespace, which has no number here.
        return [pid for pid in map(int, listed.split()) if pid]

    def _watch(self, pid: int, handle: int, on_end: Callable[[], object]) -> None:
        self._handles[pid] = handle
        self._watcher.add(handle, Event.READABLE, on_end)

    def _unwatch(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        self._outside.discard(pid)
        self._watcher.remove(handle)
        self._handles_done.append(handle)

    def _on_member(self, pid: int) -> None:
        self._unwatch(pid)
        self._roll.ended(pid)
        self.look()

    def _close_files(self) -> None:
        for pid in list(self._handles):
            self._unwatch(pid)
        self._watcher.remove(self._population)
        for fd in (self._population, self._procs, *self._handles_done):
            if fd >= 0:
                os.close(fd)
        self._population = self._procs = -1
        self._handles_done.clear()


def _send(handle: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended
