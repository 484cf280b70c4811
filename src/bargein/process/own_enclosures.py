"""Enclosures for the processes that a call's own code starts.

Such an enclosure has no first process and no spare process: the children that the code forks enter
it by themselves (see `fork_hooks`). The thread that forks makes it; from `attend` on the loop owns
it and stops it by the same ladder as a command. No method waits.
"""

import os
import signal
import struct
import threading
from collections.abc import Callable
from itertools import count
from mmap import mmap
from typing import Final, Protocol

from bargein.process.cgroup_members import CgroupMembers, ReservedDescriptor, send
from bargein.process.enclosure import StoppableEnclosure
from bargein.process.helper import procfs
from bargein.process.listing import ListedProcess, is_still_there, list_processes
from bargein.process.process_report import ProcessReport
from bargein.process.tags import TagFinder, new_tag, tags_of
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.waiting import DescriptorWatch, Event

_NOTED_MAX: Final = 32
_LOOK_AGAIN_S: Final = 0.01
_HAS_PROC: Final = os.path.isdir("/proc/self")
_CHILD: Final = struct.Struct("=q24s")


class OwnEnclosure(StoppableEnclosure, Protocol):
    """Also the `fork_hooks.Entrance` for its children."""

    tag: bytes

    @property
    def needs_fork(self) -> bool: ...

    def started(self, pid: int) -> None: ...

    def take_in(self, pid: int) -> None: ...

    def doubted(self) -> None: ...

    def enter(self) -> bool: ...

    def expect(self) -> None:
        """A child is about to be forked: `passed` follows. Any thread."""

    def passed(self) -> None:
        """It was forked, or could not be. Any thread."""

    def interrupt(self, number: int) -> None:
        """Note who is inside and signal them. Any thread, any signal handler."""

    def attend(self, on_empty: Callable[[], object]) -> None:
        """From now on call `on_empty`, once, when nobody is left and nobody is about to enter."""

    def release(self) -> None: ...


class ExpectedChildren:
    """Counts the children that are about to enter. Any thread.

    It calls `on_none` when the last of them has entered.
    """

    def __init__(self, on_none: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._on_none = on_none

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self) -> None:
        with self._lock:
            self._count += 1

    def take(self) -> None:
        with self._lock:
            self._count -= 1
            none = self._count == 0
        if none:
            self._on_none()


class _Failures:
    """One byte for each enclosure, in memory that its children share with us: a child that cannot
    enter sets it."""

    def __init__(self) -> None:
        self._bytes = mmap(-1, 1 << 16)

    def note(self, serial: int) -> None:
        self._bytes[serial % len(self._bytes)] = 1

    def noted(self, serial: int) -> bool:
        return self._bytes[serial % len(self._bytes)] != 0


_failures = _Failures()
_serials = count()


class OwnCgroup(CgroupMembers):
    """A cgroup: the kernel kills its members and says when nobody is left."""

    needs_fork: Final = True

    def __init__(
        self,
        watch: DescriptorWatch,
        reserved: ReservedDescriptor,
        tag_finder: TagFinder,
        directory: str,
        on_released: Callable[["OwnCgroup"], object],
    ) -> None:
        super().__init__(watch, reserved, tag_finder, directory)
        self._serial = next(_serials)
        self._on_released = on_released
        self._on_empty: Callable[[], object] | None = None
        self._expected = ExpectedChildren(self._look_soon)
        self._noted: list[tuple[int, str, int]] = []
        self._interrupted = 0
        # Processes that could not be put inside, with a pidfd; the loop takes them from here.
        self._not_inside: list[tuple[int, int]] = []
        try:
            self._entry = os.open(f"{directory}/cgroup.procs", os.O_WRONLY)
        except BaseException:
            self._close_files()
            raise

    @property
    def certain(self) -> bool:
        """Whether every child has entered."""
        return not _failures.noted(self._serial)

    def enter(self) -> bool:
        try:
            os.write(self._entry, b"0")
        except OSError:
            _failures.note(self._serial)
        return False

    def started(self, pid: int) -> None:
        """A forked child enters by itself."""

    def take_in(self, pid: int) -> None:
        try:
            os.write(self._entry, b"%d" % pid)
        except ProcessLookupError:
            pass  # it has ended, and it has started nothing before
        except OSError:
            # It can be stopped and named, but those that it starts are not held.
            _failures.note(self._serial)
            try:
                self._not_inside.append((pid, os.pidfd_open(pid)))
            except OSError:
                pass  # it has ended; or no descriptor is free, and the end is not confirmed anyway

    def doubted(self) -> None:
        _failures.note(self._serial)

    def expect(self) -> None:
        self._expected.add()

    def passed(self) -> None:
        self._expected.take()

    def interrupt(self, number: int) -> None:
        members = self._members()[:_NOTED_MAX]
        self._noted = procfs.running([*members, *(pid for pid, _handle in self._not_inside)])
        self._interrupted = number
        for _pid, handle in list(self._not_inside):
            for each in (number, signal.SIGCONT):
                send(handle, each)
        for pid in members:
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                if pid in self._members():
                    for each in (number, signal.SIGCONT):
                        signal.pidfd_send_signal(handle, each)
            except OSError:
                pass  # it has ended
            finally:
                os.close(handle)

    def attend(self, on_empty: Callable[[], object]) -> None:
        self._on_empty = on_empty
        for pid, name, _group in self._noted:
            self._report.add(pid, name)
            self._report.signalled(pid, self._interrupted)
        self.record_members()
        for pid, _name, _group in self._noted:
            if pid not in self._handles:
                self._report.ended(pid)
        self._watcher.add(self._population, Event.PRIORITY, self.look)

    def record_members(self) -> None:
        while self._not_inside:
            self._adopt_outside(*self._not_inside.pop())
        self._hold_members()

    def look(self) -> None:
        if self._on_empty is not None and not self._expected and not self.is_anybody_left():
            on_empty, self._on_empty = self._on_empty, None
            self._report.everybody_ended()
            on_empty()

    def release(self) -> None:
        self._close_files()
        for _pid, handle in self._not_inside:
            os.close(handle)
        os.close(self._entry)
        self._on_released(self)

    def _look_soon(self) -> None:
        if self._on_empty is not None:
            try:
                self._loop.call_soon_threadsafe(self.look)
            except RuntimeError:
                pass  # the loop is closed, so nobody waits


class OwnSweep:
    """Without a cgroup: each child reports its pid, and a stop looks for these children, their
    descendants and all carriers of their tag. It may miss some, so it is never certain."""

    certain: Final = False
    needs_fork: Final = False

    def __init__(
        self,
        watch: DescriptorWatch,
        means: Means,
    ) -> None:
        self.means = means
        self.tag = new_tag()
        self._loop = watch.loop
        self._on_empty: Callable[[], object] | None = None
        self._expected = ExpectedChildren(lambda: None)
        self._report = ProcessReport()
        self._seen: dict[int, ListedProcess] = {}
        self._children: dict[int, str] = {}
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def enter(self) -> bool:
        pid = os.getpid()
        fields = procfs.status_fields(pid)
        began = fields[19] if fields else b""
        try:
            os.write(self._write_end, _CHILD.pack(pid, began))
        except OSError:
            pass  # full: a thousand have entered, and this one's children carry the tag
        return True

    def started(self, pid: int) -> None:
        # Nobody can have collected it yet: other code learns its pid only when we return.
        self._children[pid] = _began(pid)

    def take_in(self, pid: int) -> None:
        """It waits, so it has started nothing, and lives."""
        self._children[pid] = _began(pid)

    def doubted(self) -> None:
        """Does nothing: a sweep is never certain anyway."""

    def expect(self) -> None:
        self._expected.add()

    def passed(self) -> None:
        self._expected.take()

    def interrupt(self, number: int) -> None:
        """Only the children that reported themselves and what is below them: reading all of /proc
        takes too long for a canceller's thread."""
        for pid, began in self._new_children():
            self._children[pid] = began
        known = [
            pid for pid, began in list(self._children.items()) if began and _began(pid) == began
        ]
        for pid in known:
            # Before the signal, because it may kill a parent through which they are found.
            for below in procfs.descendants(pid, count_max=_NOTED_MAX):
                self._children.setdefault(below, _began(below))
        for pid, began in list(self._children.items()):
            if began and _began(pid) == began:
                self._report.add(pid, procfs.command_of(pid))
                self._report.signalled(pid, number)
                _signal(pid, began, number)

    def attend(self, on_empty: Callable[[], object]) -> None:
        self._on_empty = on_empty
        self.record_members()
        self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def record_members(self) -> None:
        for pid, began in self._new_children():
            self._children[pid] = began
        everybody = list_processes() or []
        found = True
        while found:
            found = False
            for each in everybody:
                if each.pid not in self._seen and self._is_ours(each):
                    self._seen[each.pid] = each
                    self._report.add(each.pid, each.command)
                    found = True

    def signal_everybody(self, number: int) -> None:
        self.record_members()
        for pid, seen in self._seen.items():
            if self._report.signalled(pid, number) and is_still_there(seen):
                _signal(pid, seen.began, number)

    def kill(self) -> None:
        self.signal_everybody(signal.SIGKILL)

    def look_ahead(self) -> None:
        """Nothing confirms an end here."""

    def look(self) -> None:
        if self._on_empty is None or self._expected:
            return
        self.record_members()
        for pid in [pid for pid, seen in self._seen.items() if not is_still_there(seen)]:
            del self._seen[pid]
        for pid in self._report.pids():
            if pid not in self._seen:
                self._report.ended(pid)
        if not self._seen:
            on_empty, self._on_empty = self._on_empty, None
            on_empty()

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._report.processes(began)

    def survivors(self) -> tuple[Survivor, ...]:
        return tuple(
            Survivor(pid, seen.command) for pid, seen in self._seen.items() if is_still_there(seen)
        )

    def release(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def _look_again(self) -> None:
        if self._on_empty is not None:
            self.look()
            self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def _is_ours(self, each: ListedProcess) -> bool:
        if each.parent in self._seen:
            return True
        if each.pid in self._children:
            began = self._children[each.pid]
            return each.began == began if began else each.parent == os.getpid()
        return _HAS_PROC and self.tag in tags_of(each.pid)

    def _new_children(self) -> list[tuple[int, str]]:
        try:
            records = os.read(self._read_end, 1 << 16)
        except OSError:
            return []
        return [(pid, began.rstrip(b"\0").decode()) for pid, began in _CHILD.iter_unpack(records)]


def _began(pid: int) -> str:
    fields = procfs.status_fields(pid)
    return fields[19].decode() if fields else ""


def _signal(pid: int, began: str, number: int) -> None:
    """Signal it if it is still the same process. Where there are pidfds, one holds it meanwhile."""
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, number)
            return
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _began(pid) == began:
            for each in (number, signal.SIGCONT):
                signal.pidfd_send_signal(handle, each)
    except OSError:
        pass  # it has ended; or it is another user's, and is reported as a survivor
    finally:
        os.close(handle)
