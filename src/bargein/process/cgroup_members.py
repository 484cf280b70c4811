"""The processes in one cgroup, and those that were started there and left: watched, signalled,
killed and named.

As root, or inside a delegated subtree, a process can move out of its cgroup, and `populated 0`
then says nothing about it. So the enclosure counts as empty only after a look for processes outside
that we hold, or that carry its tag or its mark (see `tags`). They are held by pidfds and treated
like members.

Methods are called on the loop, except those that say "any thread". None of them waits.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from bargein.process.helper import cgroups, procfs
from bargein.process.process_report import ProcessReport
from bargein.process.tags import TagFinder, mark_of, new_tag, tags_of
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.waiting import DescriptorWatch, Event

_WATCHED_MAX: Final = 64


class CgroupMembers:
    """The base of both kinds of enclosure that are cgroups. They implement `look`, which is called
    whenever a process has ended."""

    means: Final = Means.CGROUP

    def __init__(
        self,
        watch: DescriptorWatch,
        reserved: "ReservedDescriptor",
        tag_finder: TagFinder,
        directory: str,
    ) -> None:
        self._watcher = watch
        self._reserved = reserved
        self._tag_finder = tag_finder
        self._loop = watch.loop
        self._directory = directory
        self._report = ProcessReport()
        # Pidfds. Each process was seen inside, or with our tag, while we held it: none is a
        # stranger that got the same pid.
        self._handles: dict[int, int] = {}
        # Open until the release: a canceller's thread may be using one.
        self._handles_done: list[int] = []
        # Everybody that a pidfd was held of. Their ends are seen by it, so no tag need be read.
        self._known: set[int] = set()
        self._outside: set[int] = set()
        self._since_pid = tag_finder.last_pid()
        self._since_s = time.monotonic()
        self._procs = -1
        self.tag = new_tag()
        self.mark = b""
        """What `mark_of` says of those inside, if that tells them from everybody else."""
        # Kept open, so that a stop need not open them and works with a full descriptor table.
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

    def look_ahead(self) -> None:
        """Look now for processes outside, while those inside die: what is found here need not be
        looked for when the cgroup is empty."""
        self._carriers()

    def is_anybody_left(self) -> bool:
        """In the cgroup; or outside, and held by us or with our tag."""
        if cgroups.is_populated(self._population):
            return True
        self._outside.update(self._held_and_running())
        self._hold_outside(self._carriers())
        return bool(self._outside)

    def _carriers(self) -> list[int]:
        return self._tag_finder.carriers(
            self.tag,
            since_pid=self._since_pid,
            since_s=self._since_s,
            known=self._known,
            mark=self.mark,
        )

    def _held_and_running(self) -> list[int]:
        if not self._handles:
            return []
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        ended = {handle for handle, _what in poll.poll(0)}
        return [pid for pid, handle in self._handles.items() if handle not in ended]

    def _hold_members(self) -> None:
        self._hold(pid for pid in self._members() if pid not in self._handles)

    def _hold(self, pids: Iterable[int]) -> None:
        held: list[tuple[int, int, str]] = []
        for pid in pids:
            if len(self._handles) + len(held) >= _WATCHED_MAX:
                self._report.add(pid, procfs.command_of(pid))
                continue
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            held.append((pid, handle, procfs.command_of(pid)))
        still_here = set(self._members()) if held else ()
        for pid, handle, command in held:
            if pid in still_here:
                self._report.add(pid, command)
                self._watch(pid, handle, partial(self._on_member, pid))
            else:
                os.close(handle)

    def _hold_outside(self, pids: Iterable[int]) -> None:
        """Without a limit: nothing else reaches these processes, and only a pidfd shows that one
        of them has ended."""
        for pid in pids:
            if pid in self._handles:
                continue
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue  # it has ended
            if self.tag in tags_of(pid) or (self.mark and mark_of(pid) == self.mark):
                self._adopt_outside(pid, handle)
            else:
                os.close(handle)

    def _adopt_outside(self, pid: int, handle: int) -> None:
        self._report.add(pid, procfs.command_of(pid))
        self._outside.add(pid)
        self._watch(pid, handle, partial(self._on_member, pid))

    def signal_everybody(self, number: int) -> None:
        self._hold_members()
        self._signal_known(number)

    def _signal_known(self, number: int) -> None:
        """Any thread."""
        for pid, handle in list(self._handles.items()):
            if self._report.signalled(pid, number):
                for each in (number, signal.SIGCONT):
                    send(handle, each)

    def kill(self) -> None:
        self._report.signalled_all(signal.SIGKILL)
        try:
            self._reserved.write(f"{self._directory}/cgroup.kill", b"1")
        except OSError:
            pass  # removed, so nobody is in it; or no descriptor is free, and the stop tries again
        for pid in self._outside:
            send(self._handles[pid], signal.SIGKILL)

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._report.processes(began)

    def survivors(self) -> tuple[Survivor, ...]:
        left = [*self._members(), *self._outside]
        return tuple(Survivor(pid, procfs.command_of(pid)) for pid in left)

    def _members(self) -> list[int]:
        """Any thread."""
        listed = b""
        try:
            while piece := os.pread(self._procs, 1 << 16, len(listed)):
                listed += piece
                if len(piece) < 1 << 11:
                    break  # the kernel fills a page with as many whole lines as fit
        except OSError:
            return []  # only the report needs this list, the kill does not
        # 0 stands for a process of another pid namespace, which has no pid here.
        return [pid for pid in map(int, listed.split()) if pid]

    def _watch(self, pid: int, handle: int, on_end: Callable[[], object]) -> None:
        self._handles[pid] = handle
        self._known.add(pid)
        self._watcher.add(handle, Event.READABLE, on_end)

    def _unwatch(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        self._outside.discard(pid)
        self._watcher.remove(handle)
        self._handles_done.append(handle)

    def _on_member(self, pid: int) -> None:
        self._unwatch(pid)
        self._report.ended(pid)
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


class ReservedDescriptor:
    """One descriptor kept back, so that a kill can be written with a full descriptor table."""

    def __init__(self) -> None:
        self._kept = os.open(os.devnull, os.O_RDONLY)

    def write(self, path: str, data: bytes) -> None:
        """Raises OSError."""
        try:
            file = os.open(path, os.O_WRONLY)
        except OSError:
            # If the reason was another than a full table, the second try raises it again.
            self.close()
            file = os.open(path, os.O_WRONLY)
        try:
            os.write(file, data)
        finally:
            os.close(file)
            self._keep()

    def close(self) -> None:
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1

    def _keep(self) -> None:
        if self._kept < 0:
            try:
                self._kept = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                pass  # the table is still full; the next use tries again


def send(handle: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended
