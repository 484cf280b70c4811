"""Means 1: a cgroup of its own for each command, entered at birth, killed by the kernel.

Fresh each time, never used again, so that a late kill can hit no other command. Paths are text
here, not `Path`: this is on the way of every command.
"""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from bargein.process.birth import Birth
from bargein.process.cell import CellEvents, StillBorn
from bargein.process.cgroup_files import Instance
from bargein.process.children import collect
from bargein.process.helper import cgroups, family
from bargein.process.helper_process import HelperProcess
from bargein.process.nursery import Nursery, until
from bargein.process.once import Once
from bargein.process.order import Order
from bargein.process.reserve import Reserve
from bargein.process.roll import Roll, how_it_ended
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.watch import Event, Watch

_WATCHED_MAX: Final = 64
_NOTED_MAX: Final = 32
_WATCH_AGAIN_S: Final = 0.25


class CgroupHolder:
    means: Final = Means.CGROUP

    def __init__(self, watch: Watch, helper: HelperProcess, instance: Instance) -> None:
        self.watch = watch
        self.helper = helper
        self.reserve = Reserve()
        self._instance = instance
        self._nursery = Nursery(watch.loop, self.conceive)
        self._serial = 0
        self._cells: set[CgroupCell] = set()
        self._not_removed_yet: list[str] = []

    async def make_cell(self) -> "CgroupCell":
        return await self._nursery.take()

    def unstick(self) -> None:
        self.helper.kill()

    def replenish(self) -> None:
        self._nursery.replenish()

    def conceive(self) -> "CgroupCell":
        """Order the birth of an embryo in a new cgroup; it is there once `born` has returned."""
        self._serial += 1
        directory = f"{self._instance.directory}/{self._serial}"
        os.mkdir(directory)
        try:
            cell = CgroupCell(self, directory)
        except BaseException:
            os.rmdir(directory)
            raise
        self._cells.add(cell)
        return cell

    def released(self, cell: "CgroupCell") -> None:
        """Remove it now or later: a cgroup that was just emptied by a kill may still be busy."""
        self._cells.discard(cell)
        directory = cell.directory
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError:
            self._not_removed_yet.append(directory)
            return
        if self._not_removed_yet:
            self._not_removed_yet = [
                each for each in self._not_removed_yet if not cgroups.remove(each)
            ]

    async def close(self) -> None:
        self._nursery.close()
        # An embryo that is killed before it has said who it is could not be collected.
        await until(lambda: not self._cells)
        await self.helper.close()
        directory = str(self._instance.directory)
        cgroups.kill(directory)
        await until(lambda: cgroups.remove(directory))
        self._instance.close()
        self.reserve.close()


class CgroupCell:
    """From the order for its embryo until the kernel has confirmed that it is empty."""

    means: Final = Means.CGROUP
    certain: Final = True

    def __init__(self, holder: CgroupHolder, directory: str) -> None:
        self._holder = holder
        self._loop = holder.watch.loop
        self._directory = directory
        self._events: CellEvents | None = None
        self._roll = Roll()
        # Members held by a pidfd, each seen in here while it was held: no stranger among them.
        self._handles: dict[int, int] = {}
        # Open until the release: a canceller's thread may be using one.
        self._handles_done: list[int] = []
        self._noted: list[tuple[int, str, int]] | None = None
        self._discarded = False
        self._leader_ended = False
        self._empty = False
        self._is_born: Once[bool] = Once(self._loop)
        self._is_released: Once[None] = Once(self._loop)
        self.pid = 0
        # Kept open, so that a stop need not open them, and can tell though the table is full.
        self._population = os.open(f"{directory}/cgroup.events", os.O_RDONLY)
        self._procs = -1
        try:
            self._procs = os.open(f"{directory}/cgroup.procs", os.O_RDONLY)
            self._birth = Birth(holder.watch, self._on_born)
            self._order_birth()
        except BaseException:
            self._close_files()
            raise

    def _order_birth(self) -> None:
        try:
            handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._holder.helper.order(("cgroup",), [self._birth.theirs.fileno(), handle])
            finally:
                os.close(handle)
        except BaseException:
            self._birth.abort()
            raise
        finally:
            self._birth.theirs.close()

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def is_dead(self) -> bool:
        return self._birth.is_over

    async def born(self) -> None:
        if not await self._is_born.wait():
            raise StillBorn(self._birth.errno)

    def launch(self, order: Order, standard: Sequence[int], events: CellEvents) -> None:
        self._birth.send(order, standard)
        self._events = events
        self._roll.meet(self.pid, os.fsdecode(b" ".join(order.argv))[:200])
        self._holder.replenish()

    async def launched(self, order: Order) -> None:
        await self._birth.became(order)

    def discard(self) -> None:
        """For a cell that was not started. What is in it dies; the rest follows by itself."""
        self._discarded = True
        if self.pid:
            self.kill()

    async def discarded(self) -> None:
        """Discard it and wait until nothing of it is left."""
        self.discard()
        await self._is_released.wait()

    def note(self) -> None:
        members = self._members()
        if members == [self.pid]:
            self._noted = []
            return
        others = [pid for pid in members if pid != self.pid][:_NOTED_MAX]
        self._noted = family.noted(others) or None

    def interrupt(self, number: int) -> None:
        if self._leader_ended:
            self._signal_known(signal.SIGTERM)
            return
        self.note()
        try:
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)
        except OSError:
            pass  # nobody is left in the group

    def take_roll(self) -> None:
        noted, self._noted = self._noted, None
        if noted == []:
            return  # the first process was alone a moment ago
        # First, since by now some may have lost their names with their memory.
        for pid, name, group in noted or ():
            self._roll.meet(pid, name)
            if group == self.pid:
                self._roll.signalled(pid, signal.SIGINT)
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

    def signal_everybody(self, number: int) -> None:
        self._noted = None
        self.take_roll()
        self._signal_known(number)

    def _signal_known(self, number: int) -> None:
        for pid, handle in list(self._handles.items()):
            if self._roll.signalled(pid, number):
                for each in (number, signal.SIGCONT):
                    try:
                        signal.pidfd_send_signal(handle, each)
                    except OSError:
                        pass  # it has ended

    def kill(self) -> None:
        self._roll.signalled_all(signal.SIGKILL)
        try:
            self._holder.reserve.write(f"{self._directory}/cgroup.kill", b"1")
        except OSError:
            pass  # removed, so nobody is in it; or no descriptor to be had, and it is tried again
        if not self._leader_ended:
            try:
                # As root it may have moved itself out; its group is still known by its number.
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass

    def look(self) -> None:
        if not self._leader_ended:
            code = collect(self.pid, peek=True)
            if code is not None:
                self._leader_over(code)
        elif not self._empty:
            self._on_population()

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._roll.told(began)

    def survivors(self) -> tuple[Survivor, ...]:
        return tuple(Survivor(pid, family.command_of(pid)) for pid in self._members())

    def release(self) -> None:
        for pid in list(self._handles):
            self._unwatch(pid)
        self._close_files()
        self._birth.close()
        if self.pid:
            collect(self.pid)
        self._holder.released(self)
        self._is_released.set(None)

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
        self._holder.watch.add(handle, Event.READABLE, on_end)

    def _unwatch(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        self._holder.watch.remove(handle)
        self._handles_done.append(handle)

    def _close_files(self) -> None:
        self._holder.watch.remove(self._population)
        for fd in (self._population, self._procs, *self._handles_done):
            if fd >= 0:
                os.close(fd)
        self._handles_done.clear()

    def _on_born(self, pid: int | None) -> None:
        if pid is None:
            self._is_born.set(False)
            self._empty = True
            self.release()
            return
        # Our own child: the pid is its own until we collect it, so it can be watched in any case,
        # unless our table of descriptors is full. Then it is of no use.
        self.pid = pid
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            handle = -1
        if handle >= 0:
            self._watch(pid, handle, self._on_leader)
        if handle < 0 or self._discarded:
            self.kill()
        if handle < 0:
            self._collect_unwatched()
        self._is_born.set(handle >= 0)

    def _collect_unwatched(self) -> None:
        if collect(self.pid, peek=True) is None:
            self._loop.call_later(_WATCH_AGAIN_S, self._collect_unwatched)
        else:
            self._empty = True
            self.release()

    def _on_leader(self) -> None:
        self._leader_over(collect(self.pid, peek=True))

    def _leader_over(self, code: int | None) -> None:
        self._unwatch(self.pid)
        self._leader_ended = True
        self._roll.ended(self.pid, how_it_ended(code))
        alone = not cgroups.is_populated(self._population)
        if self._events is not None:
            self._events.leader_ended(code, alone=alone)
        if alone:
            self._on_empty()
        else:
            self._holder.watch.add(self._population, Event.PRIORITY, self._on_population)
            # Whoever is left is held from now on, so that a cancel can signal them at once.
            self._loop.call_soon(self._hold_who_is_left)

    def _hold_who_is_left(self) -> None:
        if not self._empty:
            # That the first process was alone when it was interrupted does not count any more.
            self._noted = self._noted or None
            self.take_roll()

    def _on_member(self, pid: int) -> None:
        self._unwatch(pid)
        self._roll.ended(pid)
        self.look()

    def _on_population(self) -> None:
        if not cgroups.is_populated(self._population):
            self._on_empty()

    def _on_empty(self) -> None:
        if self._empty:
            return
        self._empty = True
        self._roll.everybody_ended()
        if self._events is None:
            self.release()
        else:
            self._events.emptied()
