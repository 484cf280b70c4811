"""Means 1: a fresh cgroup for each command, which the command is in from its first moment.

The kernel kills a whole cgroup and says when it is empty. No cgroup is used twice, so that a late
kill cannot hit another command. Paths are `str` here, not `Path`, because every command waits for
this code. Methods run on the loop, except where `enclosure` says "any thread".
"""

import os
import signal
from collections.abc import Sequence
from itertools import count
from typing import Final

from bargein.process.cgroup_instance import Instance
from bargein.process.cgroup_members import CgroupMembers, ReservedDescriptor
from bargein.process.enclosure import EnclosureEvents, SpareLost
from bargein.process.exec_request import ExecRequest
from bargein.process.helper import cgroups, procfs
from bargein.process.helper_process import HelperProcess
from bargein.process.limits import Limiter
from bargein.process.own_enclosures import OwnCgroup
from bargein.process.process_report import collect, how_it_ended
from bargein.process.spare import SpareChannel, SparePool, until
from bargein.process.tags import TagFinder, mark_of
from bargein.process.values import CommandLimits, Means, SandboxView
from bargein.process.waiting import DescriptorWatch, Event, Once

_NOTED_MAX: Final = 32
_WATCH_AGAIN_S: Final = 0.25


class CgroupBackend:
    means: Final = Means.CGROUP

    def __init__(
        self,
        watch: DescriptorWatch,
        helper: HelperProcess,
        instance: Instance,
        limiter: Limiter | None = None,
    ) -> None:
        self.watch = watch
        self.limiter = limiter or Limiter(CommandLimits(), {}, {})
        self.helper = helper
        self.reserved = ReservedDescriptor()
        self.tag_finder = TagFinder(self._hear_of_spares)
        self._instance = instance
        self._spares = SparePool(watch.loop, self.order_spare)
        self._serials = count(1)
        self._enclosures: set[CgroupEnclosure] = set()
        self._not_removed_yet: list[str] = []

    async def make_enclosure(self, view: SandboxView | None = None) -> "CgroupEnclosure":
        return await self._spares.take(view)

    def restart_helper(self) -> None:
        self.helper.kill()

    def replenish(self) -> None:
        self._spares.replenish()

    def order_spare(self, view: SandboxView | None) -> "CgroupEnclosure":
        """Make a cgroup and order a spare process in it, which is there when `ready` returns."""
        directory = self._new_directory()
        try:
            self.limiter.limit_own(directory)
            enclosure = CgroupEnclosure(self, directory, view)
        except BaseException:
            os.rmdir(directory)
            raise
        self._enclosures.add(enclosure)
        return enclosure

    def make_own_enclosure(self) -> OwnCgroup:
        directory = self._new_directory()
        try:
            return OwnCgroup(self.watch, self.reserved, self.tag_finder, directory, self._remove)
        except BaseException:
            os.rmdir(directory)
            raise

    def _hear_of_spares(self) -> None:
        if self._spares.waiting is not None:
            self._spares.waiting.hear()

    def _new_directory(self) -> str:
        directory = f"{self._instance.directory}/{next(self._serials)}"
        os.mkdir(directory)
        return directory

    def released(self, enclosure: "CgroupEnclosure") -> None:
        self._enclosures.discard(enclosure)
        self._remove(enclosure)

    def _remove(self, enclosure: CgroupMembers) -> None:
        """Remove the cgroup, now or later: one that a kill has just emptied may still be busy."""
        directory = enclosure.directory
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
        self._spares.close()
        # A spare process that dies before we know its pid could not be collected.
        await until(lambda: not self._enclosures)
        await self.helper.close()
        directory = str(self._instance.directory)
        cgroups.kill(directory)
        await until(lambda: cgroups.remove(directory))
        self.limiter.close()
        self._instance.close()
        self.reserved.close()
        self.tag_finder.close()


class CgroupEnclosure(CgroupMembers):
    """Lives from the order for its spare process until the kernel says that it is empty."""

    certain: Final = True

    def __init__(self, backend: CgroupBackend, directory: str, view: SandboxView | None) -> None:
        super().__init__(backend.watch, backend.reserved, backend.tag_finder, directory)
        self._backend = backend
        self._events: EnclosureEvents | None = None
        # Set by a canceller's thread. `[]` means that the first process was alone.
        self._noted: list[tuple[int, str, int]] | None = None
        # Descendants of the first process that a canceller's thread saw outside, with a pidfd.
        self._noted_outside: list[tuple[int, int]] = []
        # Open while it is our mark, so that no other namespace gets its number.
        self._namespace = -1
        self._discarded = False
        self._leader_ended = False
        self._empty = False
        self._is_ready: Once[bool] = Once(self._loop)
        self._is_released: Once[None] = Once(self._loop)
        self.pid = 0
        self._limited = backend.limiter.make()
        try:
            self._channel = SpareChannel(backend.watch, self._on_ready)
            self._order_spare(view)
        except BaseException:
            self._close_files()
            self._limited.remove()
            raise

    def _order_spare(self, view: SandboxView | None) -> None:
        plan = view.plan if view is not None else None
        order = ("cgroup", plan, self._limited.directories)
        try:
            handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._backend.helper.order(order, [self._channel.theirs.fileno(), handle])
            finally:
                os.close(handle)
        except BaseException:
            self._channel.abort()
            raise
        finally:
            self._channel.theirs.close()

    @property
    def is_dead(self) -> bool:
        return self._channel.is_over

    def hear(self) -> None:
        """Learn the spare process's pid, if it has sent it and we have not read it yet."""
        if not self._is_ready.is_set:
            self._channel.hear()

    async def ready(self) -> None:
        if not await self._is_ready.wait():
            raise SpareLost(self._channel.errno)

    def launch(
        self, request: ExecRequest, standard: Sequence[int], events: EnclosureEvents
    ) -> None:
        environment = {**request.environment, self.tag: b"1"}
        rlimits = self._backend.limiter.rlimits
        self._channel.send(request._replace(environment=environment, rlimits=rlimits), standard)
        self._tag_finder.spares.discard(self.pid)
        self._events = events
        self._report.add(self.pid, os.fsdecode(b" ".join(request.argv))[:200])
        self._backend.replenish()

    async def launched(self, request: ExecRequest) -> None:
        await self._channel.became(request)

    def discard(self) -> None:
        self._discarded = True
        if self.pid:
            self.kill()

    async def discarded(self) -> None:
        """Discard it and wait until nothing of it is left."""
        self.discard()
        await self._is_released.wait()

    def note(self) -> None:
        members = self._members()
        if self._tag_finder.others_since(self.pid, members):
            self._note_outside(members)
        if members == [self.pid]:
            self._noted = []
            return
        others = [pid for pid in members if pid != self.pid][:_NOTED_MAX]
        self._noted = procfs.running(others) or None

    def _note_outside(self, members: list[int]) -> None:
        """Descendants of the first process that are not inside have left. This finds them while
        the first process lives, even if they have removed their tag."""
        below = procfs.descendants(self.pid, count_max=_NOTED_MAX)
        for pid in below:
            if pid in members:
                continue
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            if procfs.parent_of(pid) in (self.pid, *below) and procfs.is_running(pid):
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

    def record_members(self) -> None:
        noted, self._noted = self._noted, None
        self._adopt_noted_outside()
        if noted == []:
            return  # the first process was alone a moment ago
        # The noted ones first: some may have died since and lost their names with their memory.
        for pid, name, group in noted or ():
            self._report.add(pid, name)
            if group == self.pid:
                self._report.signalled(pid, signal.SIGINT)
        if self._empty:
            self._report.everybody_ended()
        else:
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
        self.record_members()
        self._signal_known(number)

    def kill(self) -> None:
        super().kill()
        if not self._leader_ended:
            try:
                # As root the first process may have moved out; we still know its group's number.
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

    def limits_reached(self) -> tuple[str, ...]:
        own = self._backend.limiter.reached_in(self._directory)
        return (*own, *self._limited.reached())

    def release(self) -> None:
        self._adopt_noted_outside()
        self._close_files()
        if self._namespace >= 0:
            os.close(self._namespace)
        self._channel.close()
        if self.pid:
            self._tag_finder.spares.discard(self.pid)
            collect(self.pid)
        self._backend.released(self)
        self._limited.remove()
        self._is_released.set(None)

    def _on_ready(self, pid: int | None) -> None:
        if pid is None:
            self._is_ready.set(False)
            self._empty = True
            self.release()
            return
        # It is our own child, so the pid stays its own until we collect it, and we can open a
        # pidfd at any time; unless our descriptor table is full, and then we cannot use it.
        self.pid = self._since_pid = pid
        self._tag_finder.spares.add(pid)
        self._learn_mark()
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
        self._is_ready.set(handle >= 0)

    def _learn_mark(self) -> None:
        try:
            self._namespace = os.open(f"/proc/{self.pid}/ns/time", os.O_RDONLY)
        except OSError:
            return  # this kernel has none, or no descriptor is free; the tag is left
        self.mark = mark_of(self.pid)

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
        self._report.ended(self.pid, how_it_ended(code))
        self._adopt_noted_outside()
        alone = not self.is_anybody_left()
        if self._events is not None:
            self._events.leader_ended(code, alone=alone)
        if alone:
            self._on_empty()
        else:
            self._watcher.add(self._population, Event.PRIORITY, self._on_population)
            # From now on hold those that are left, so that a cancel can signal them at once.
            self._loop.call_soon(self._hold_who_is_left)

    def _hold_who_is_left(self) -> None:
        if not self._empty:
            # A note that the first process was alone is out of date now.
            self._noted = self._noted or None
            self.record_members()

    def _on_population(self) -> None:
        if not self.is_anybody_left():
            self._on_empty()

    def _on_empty(self) -> None:
        if self._empty:
            return
        self._empty = True
        self._report.everybody_ended()
        if self._events is None:
            self.release()
        else:
            self._events.emptied()
