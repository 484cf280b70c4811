"""What holds the processes that the code of one call starts by itself.

Such a cell has no first process and no embryo: whoever is forked enters it (see `doors`). It is
made in the thread that forks; from `attend` on it belongs to the loop, and is stopped by the same
ladder as a command.
"""

import os
import signal
import struct
import threading
from collections.abc import Callable
from itertools import count
from mmap import mmap
from typing import Final, Protocol

from bargein.process.cell import StoppedCell
from bargein.process.cgroup_members import CgroupMembers
from bargein.process.helper import family
from bargein.process.listing import Listed, is_still_there, list_processes
from bargein.process.reserve import Reserve
from bargein.process.roll import Roll
from bargein.process.tags import Census, new_tag, tags_of
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.watch import Event, Watch

_NOTED_MAX: Final = 32
_LOOK_AGAIN_S: Final = 0.01
_HAS_PROC: Final = os.path.isdir("/proc/self")
_BIRTH: Final = struct.Struct("=q24s")


class OwnCell(StoppedCell, Protocol):
    """Also a way in (`doors.Entrance`)."""

    tag: bytes

    @property
    def has_to_be_entered(self) -> bool: ...

    def born(self, pid: int) -> None: ...

    def doubted(self) -> None: ...

    def enter(self) -> bool: ...

    def expect(self) -> None:
        """A child is about to be forked. Any thread."""

    def passed(self) -> None:
        """It has been, or could not be. Any thread."""

    def interrupt(self, number: int) -> None:
        """Note who is there and signal them. Any thread, any handler."""

    def attend(self, on_empty: Callable[[], object]) -> None:
        """From now on tell when nobody is left and nobody is about to enter."""

    def release(self) -> None: ...


class Expected:
    """Counts the children that are about to enter. Any thread."""

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
    """A byte for each cell that its children can write to, and we can read."""

    def __init__(self) -> None:
        self._bytes = mmap(-1, 1 << 16)

    def note(self, serial: int) -> None:
        self._bytes[serial % len(self._bytes)] = 1

    def noted(self, serial: int) -> bool:
        return self._bytes[serial % len(self._bytes)] != 0


_failures = _Failures()
_serials = count()


class OwnCgroup(CgroupMembers):
    """In a cgroup, by which the kernel kills them and says when nobody is left."""

    has_to_be_entered: Final = True

    def __init__(
        self,
        watch: Watch,
        reserve: Reserve,
        census: Census,
        directory: str,
        on_released: Callable[["OwnCgroup"], object],
    ) -> None:
        super().__init__(watch, reserve, census, directory)
        self._serial = next(_serials)
        self._on_released = on_released
        self._on_empty: Callable[[], object] | None = None
        self._expected = Expected(self._look_soon)
        self._noted: list[tuple[int, str, int]] = []
        self._interrupted = 0
        try:
            self._door = os.open(f"{directory}/cgroup.procs", os.O_WRONLY)
        except BaseException:
            self._close_files()
            raise

    @property
    def certain(self) -> bool:
        """Whether every child has entered."""
        return not _failures.noted(self._serial)

    def enter(self) -> bool:
        try:
            os.write(self._door, b"0")
        except OSError:
            _failures.note(self._serial)
        return False

    def born(self, pid: int) -> None:
        """It has entered."""

    def doubted(self) -> None:
        _failures.note(self._serial)

    def expect(self) -> None:
        self._expected.add()

    def passed(self) -> None:
        self._expected.take()

    def interrupt(self, number: int) -> None:
        members = self._members()[:_NOTED_MAX]
        self._noted = family.noted(members)
        self._interrupted = number
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
            self._roll.meet(pid, name)
            self._roll.signalled(pid, self._interrupted)
        self._hold_members()
        for pid, _name, _group in self._noted:
            if pid not in self._handles:
                self._roll.ended(pid)
        self._watcher.add(self._population, Event.PRIORITY, self.look)

    def take_roll(self) -> None:
        self._hold_members()

    def look(self) -> None:
        if self._on_empty is not None and not self._expected and not self.is_anybody_left():
            on_empty, self._on_empty = self._on_empty, None
            self._roll.everybody_ended()
            on_empty()

    def release(self) -> None:
        self._close_files()
        os.close(self._door)
        self._on_released(self)

    def _look_soon(self) -> None:
        if self._on_empty is not None:
            try:
                self._loop.call_soon_threadsafe(self.look)
            except RuntimeError:
                pass  # the loop is closed, and nobody waits


class OwnSweep:
    """Without a cgroup: each child says who it is, and they are looked for, with all below them
    and all who carry their tag. Nothing can tell that nobody was missed, so it is never certain."""

    certain: Final = False
    has_to_be_entered: Final = False

    def __init__(
        self,
        watch: Watch,
        means: Means,
    ) -> None:
        self.means = means
        self.tag = new_tag()
        self._loop = watch.loop
        self._on_empty: Callable[[], object] | None = None
        self._expected = Expected(lambda: None)
        self._roll = Roll()
        self._seen: dict[int, Listed] = {}
        self._births: dict[int, str] = {}
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def enter(self) -> bool:
        pid = os.getpid()
        fields = family.status_fields(pid)
        began = fields[19] if fields else b""
        try:
            os.write(self._write_end, _BIRTH.pack(pid, began))
        except OSError:
            pass  # full: a thousand have entered, and what this one starts carries the tag
        return True

    def born(self, pid: int) -> None:
        # Not collected yet: whoever could do that does not know its pid before we return.
        self._births[pid] = _began(pid)

    def doubted(self) -> None:
        """Nothing is certain here."""

    def expect(self) -> None:
        self._expected.add()

    def passed(self) -> None:
        self._expected.take()

    def interrupt(self, number: int) -> None:
        """Looking through all of /proc takes too long for a canceller's thread: only those who
        said who they are."""
        for pid, began in self._new_births():
            self._births[pid] = began
        told = [pid for pid, began in list(self._births.items()) if began and _began(pid) == began]
        for pid in told:
            # Whoever loses a parent by the signal could not be found by it any more.
            for below in family.descendants(pid, count_max=_NOTED_MAX):
                self._births.setdefault(below, _began(below))
        for pid, began in list(self._births.items()):
            if began and _began(pid) == began:
                self._roll.meet(pid, family.command_of(pid))
                self._roll.signalled(pid, number)
                _signal(pid, began, number)

    def attend(self, on_empty: Callable[[], object]) -> None:
        self._on_empty = on_empty
        self.take_roll()
        self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def take_roll(self) -> None:
        for pid, began in self._new_births():
            self._births[pid] = began
        everybody = list_processes() or []
        found = True
        while found:
            found = False
            for each in everybody:
                if each.pid not in self._seen and self._is_ours(each):
                    self._seen[each.pid] = each
                    self._roll.meet(each.pid, each.command)
                    found = True

    def signal_everybody(self, number: int) -> None:
        self.take_roll()
        for pid, seen in self._seen.items():
            if self._roll.signalled(pid, number) and is_still_there(seen):
                _signal(pid, seen.began, number)

    def kill(self) -> None:
        self.signal_everybody(signal.SIGKILL)

    def look(self) -> None:
        if self._on_empty is None or self._expected:
            return
        self.take_roll()
        for pid in [pid for pid, seen in self._seen.items() if not is_still_there(seen)]:
            del self._seen[pid]
        for pid in self._roll.pids():
            if pid not in self._seen:
                self._roll.ended(pid)
        if not self._seen:
            on_empty, self._on_empty = self._on_empty, None
            on_empty()

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._roll.told(began)

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

    def _is_ours(self, each: Listed) -> bool:
        if each.parent in self._seen:
            return True
        if each.pid in self._births:
            began = self._births[each.pid]
            return each.began == began if began else each.parent == os.getpid()
        return _HAS_PROC and self.tag in tags_of(each.pid)

    def _new_births(self) -> list[tuple[int, str]]:
        try:
            told = os.read(self._read_end, 1 << 16)
        except OSError:
            return []
        return [(pid, began.rstrip(b"\0").decode()) for pid, began in _BIRTH.iter_unpack(told)]


def _began(pid: int) -> str:
    fields = family.status_fields(pid)
    return fields[19].decode() if fields else ""


def _signal(pid: int, began: str, number: int) -> None:
    """Held by a pidfd while it is seen to be the same, where there are pidfds."""
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
        pass  # it has ended, or is another user's, and is named as a survivor
    finally:
        os.close(handle)
