"""Means 1: a cgroup of its own for each command, entered at birth, killed by the kernel.

Fresh each time, never used again, so that a late kill can hit no other command. Paths are text
here, not `Path`: this is on the way of every command.
"""

import os
import signal
from collections.abc import Sequence
from itertools import count
from typing import Final

from bargein.process.birth import Birth
from bargein.process.cell import CellEvents, StillBorn
from bargein.process.cgroup_files import Instance
from bargein.process.cgroup_members import CgroupMembers
from bargein.process.children import collect
from bargein.process.helper import cgroups, family
from bargein.process.helper_process import HelperProcess
from bargein.process.nursery import Nursery, until
from bargein.process.once import Once
from bargein.process.order import Order
from bargein.process.own_cell import OwnCgroup
from bargein.process.reserve import Reserve
from bargein.process.roll import how_it_ended
from bargein.process.tags import Census
from bargein.process.values import Means
from bargein.process.watch import Event, Watch

_NOTED_MAX: Final = 32
_WATCH_AGAIN_S: Final = 0.25


class CgroupHolder:
    means: Final = Means.CGROUP

    def __init__(self, watch: Watch, helper: HelperProcess, instance: Instance) -> None:
        self.watch = watch
        self.helper = helper
        self.reserve = Reserve()
        self.census = Census()
        self._instance = instance
        self._nursery = Nursery(watch.loop, self.conceive)
        self._serials = count(1)
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
        directory = self._new_directory()
        try:
            cell = CgroupCell(self, directory)
        except BaseException:
            os.rmdir(directory)
            raise
        self._cells.add(cell)
        return cell

    def make_own_cell(self) -> OwnCgroup:
        directory = self._new_directory()
        try:
            return OwnCgroup(self.watch, self.reserve, self.census, directory, self._remove)
        except BaseException:
            os.rmdir(directory)
            raise

    def _new_directory(self) -> str:
        directory = f"{self._instance.directory}/{next(self._serials)}"
        os.mkdir(directory)
        return directory

    def released(self, cell: "CgroupCell") -> None:
        self._cells.discard(cell)
        self._remove(cell)

    def _remove(self, cell: CgroupMembers) -> None:
        """Now or later: a cgroup that was just emptied by a kill may still be busy."""
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
        self.census.close()


class CgroupCell(CgroupMembers):
    """From the order for its embryo until the kernel has confirmed that it is empty."""

    certain: Final = True

    def __init__(self, holder: CgroupHolder, directory: str) -> None:
        super().__init__(holder.watch, holder.reserve, holder.census, directory)
        self._holder = holder
        self._events: CellEvents | None = None
        self._noted: list[tuple[int, str, int]] | None = None
        # Children of the first process that a canceller's thread saw outside, by pidfd.
        self._noted_outside: list[tuple[int, int]] = []
        self._discarded = False
        self._leader_ended = False
        self._empty = False
        self._is_born: Once[bool] = Once(self._loop)
        self._is_released: Once[None] = Once(self._loop)
        self.pid = 0
        try:
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
    def is_dead(self) -> bool:
        return self._birth.is_over

    async def born(self) -> None:
        if not await self._is_born.wait():
            raise StillBorn(self._birth.errno)

    def launch(self, order: Order, standard: Sequence[int], events: CellEvents) -> None:
        environment = {**order.environment, self.tag: b"1"}
        self._birth.send(order._replace(environment=environment), standard)
        self._census.embryos.discard(self.pid)
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
        if self._census.others_since(self.pid, members):
            self._note_outside(members)
        if members == [self.pid]:
            self._noted = []
            return
        others = [pid for pid in members if pid != self.pid][:_NOTED_MAX]
        self._noted = family.noted(others) or None

    def _note_outside(self, members: list[int]) -> None:
        """Whoever is below the first process and not in here has left. Known now, while the first
        process lives, and though it has no tag any more."""
        below = family.descendants(self.pid, count_max=_NOTED_MAX)
        for pid in below:
            if pid in members:
                continue
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            if family.parent_of(pid) in (self.pid, *below) and family.is_running(pid):
                self._noted_outside.append((pid, handle))
            else:
                os.close(handle)

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
        self._adopt_noted_outside()
        if noted == []:
            return  # the first process was alone a moment ago
        # First, since by now some may have lost their names with their memory.
        for pid, name, group in noted or ():
            self._roll.meet(pid, name)
            if group == self.pid:
                self._roll.signalled(pid, signal.SIGINT)
        self._hold_members()

    def _adopt_noted_outside(self) -> None:
        while self._noted_outside:
            pid, handle = self._noted_outside.pop()
            if pid in self._handles:
                os.close(handle)
            else:
                self._adopt_outside(pid, handle)

    def signal_everybody(self, number: int) -> None:
        self._noted = None
        self.take_roll()
        self._signal_known(number)

    def kill(self) -> None:
        super().kill()
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

    def release(self) -> None:
        self._adopt_noted_outside()
        self._close_files()
        self._birth.close()
        if self.pid:
            self._census.embryos.discard(self.pid)
            collect(self.pid)
        self._holder.released(self)
        self._is_released.set(None)

    def _on_born(self, pid: int | None) -> None:
        if pid is None:
            self._is_born.set(False)
            self._empty = True
            self.release()
            return
        # Our own child: the pid is its own until we collect it, so it can be watched in any case,
        # unless our table of descriptors is full. Then it is of no use.
        self.pid = self._since_pid = pid
        self._census.embryos.add(pid)
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
        self._adopt_noted_outside()
        alone = not self.is_anybody_left()
        if self._events is not None:
            self._events.leader_ended(code, alone=alone)
        if alone:
            self._on_empty()
        else:
            self._watcher.add(self._population, Event.PRIORITY, self._on_population)
            # Whoever is left is held from now on, so that a cancel can signal them at once.
            self._loop.call_soon(self._hold_who_is_left)

    def _hold_who_is_left(self) -> None:
        if not self._empty:
            # That the first process was alone when it was interrupted does not count any more.
            self._noted = self._noted or None
            self.take_roll()

    def _on_population(self) -> None:
        if not self.is_anybody_left():
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
