"""A containment for a program that may never start a process: nothing is opened before it does.

The tools of a user's own seldom start processes, and a helper that waits for them takes a tenth of
a second to start, and memory. So the first of them pays:

- a command (`Containment.spawn`) waits until the best means has been found by trying;
- what the code of a call starts by itself cannot wait, since it forks in any thread. A cgroup is
  tried on the spot, and if that does not work they are swept (see `own_cell`).
"""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from bargein.process.cell import Cell, Holder
from bargein.process.cgroup import CgroupHolder
from bargein.process.cgroup_files import Instance, instances_around, own_directory
from bargein.process.containment import Containment
from bargein.process.doors import nobodys
from bargein.process.group import GroupHolder
from bargein.process.helper import cgroups
from bargein.process.helper_process import HelperProcess
from bargein.process.own_cell import OwnCell
from bargein.process.probe import open_holder
from bargein.process.values import ContainmentReport, Hiding, Means
from bargein.process.watch import Watch

_TRY_S_MAX: Final = 2.0


def containment_when_needed(
    *,
    home: Path | None = None,
    hiding: Hiding = Hiding(),  # noqa: B008 - frozen
) -> Containment:
    """Like `open_containment`, but it opens nothing yet. On the loop. Its report names the means
    that promises least, because none was tried."""
    watch = Watch(asyncio.get_running_loop())
    report = ContainmentReport(Means.GROUP, "nothing was tried: no process was needed yet", ())
    return Containment(watch, LateHolder(watch, home, hiding), report, None)


class LateHolder:
    def __init__(self, watch: Watch, home: Path | None, hiding: Hiding) -> None:
        self._watch = watch
        self._home = home
        self._hiding = hiding
        self._for_commands: Holder | None = None
        self._for_own: Holder | None = None
        self._opening = asyncio.Lock()
        self._trying = threading.Lock()

    @property
    def means(self) -> Means:
        holder = self._for_commands or self._for_own
        return holder.means if holder is not None else Means.GROUP

    async def make_cell(self) -> Cell:
        async with self._opening:
            if self._for_commands is None:
                self._for_commands, _ = await open_holder(
                    self._watch, "auto", self._home, self._hiding
                )
        return await self._for_commands.make_cell()

    def make_own_cell(self) -> OwnCell:
        holder = self._for_commands or self._for_own
        if holder is None:
            with self._trying:
                holder = self._for_own = self._for_own or self._open_for_own()
        return holder.make_own_cell()

    def unstick(self) -> None:
        if self._for_commands is not None:
            self._for_commands.unstick()

    async def close(self) -> None:
        for holder in (self._for_commands, self._for_own):
            if holder is not None:
                await holder.close()

    def _open_for_own(self) -> Holder:
        if sys.platform == "linux":
            try:
                return self._open_cgroup()
            except OSError:
                pass  # not ours to use; `bargein doctor` says why
        return GroupHolder(self._watch)

    def _open_cgroup(self) -> CgroupHolder:
        base = own_directory()
        others = instances_around(base, self._home)
        instance = Instance(base, self._home)
        try:
            _try(str(instance.directory))
            cgroups.reap_free_instances(others)
            helper = HelperProcess(
                self._watch, lock=instance.lock, instance=str(instance.directory)
            )
            # It gives birth to nobody; it is there to kill them all if we are killed.
            helper.begin()
        except BaseException:
            instance.close()
            raise
        return CgroupHolder(self._watch, helper, instance)


def _try(instance: str) -> None:
    """Whether a process can be put into a cgroup here, and be killed by it. Raises OSError."""
    with nobodys():
        child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
    try:
        with open(f"{instance}/cgroup.procs", "w") as procs:
            procs.write(str(child.pid))
        cgroups.kill(instance)
        child.wait(_TRY_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise OSError("a process that was put into a cgroup was not killed by it") from error
    finally:
        child.kill()
        child.communicate()
