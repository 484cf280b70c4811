"""Means 3: a process group. Works everywhere, and promises the least.

A process that leaves the group (setsid) escapes, and nothing can tell that none did: a stop is
never confirmed. What was seen to belong to the command and is still alive after the stop is
listed as a survivor.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from bargein.process.cell import CellEvents
from bargein.process.children import collect
from bargein.process.doors import nobodys
from bargein.process.listing import Listed, Listing, is_still_there
from bargein.process.order import Order, failure
from bargein.process.own_cell import OwnSweep
from bargein.process.roll import Roll, how_it_ended
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.watch import Event, Watch

_LOOK_AGAIN_S: Final = 0.5
_LOOK_AGAIN_WHILE_STOPPING_S: Final = 0.01

# A new session has no terminal until it takes one, and only a process inside it can do that.
_TAKE_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ)
except OSError as error:
    sys.exit(f"cannot run {sys.argv[1]!r}: {error.strerror}")
"""


class GroupHolder:
    means: Final = Means.GROUP

    def __init__(self, watch: Watch, *, pidfds: bool | None = None) -> None:
        self._watch = watch
        self._listing = Listing()
        self._pidfds = hasattr(os, "pidfd_open") if pidfds is None else pidfds

    async def make_cell(self) -> "GroupCell":
        return GroupCell(self._watch, self._listing, pidfds=self._pidfds)

    def make_own_cell(self) -> OwnSweep:
        return OwnSweep(self._watch, self.means)

    def unstick(self) -> None:
        """There is nothing that could be stuck."""

    async def close(self) -> None:
        """Nothing is held back."""


class GroupCell:
    means: Final = Means.GROUP
    certain: Final = False

    def __init__(self, watch: Watch, listing: Listing, *, pidfds: bool) -> None:
        self._watch = watch
        self._listing = listing
        self._loop = watch.loop
        self._pidfds = pidfds
        self._process: subprocess.Popen[bytes] | None = None
        self._handle = -1
        self._events: CellEvents | None = None
        self._roll = Roll()
        self._seen: dict[int, Listed] = {}
        # What the group was sent last, whoever was in it.
        self._sent = 0
        self._look_again_s = _LOOK_AGAIN_S
        self._timer: asyncio.TimerHandle | None = None
        self._leader_ended = False
        self._empty = False
        self._born_before = 0.0
        self.pid = 0

    def launch(self, order: Order, standard: Sequence[int], events: CellEvents) -> None:
        self._process = process = _start(order, standard)
        self._born_before = time.monotonic()
        self._events = events
        self.pid = process.pid
        self._roll.meet(self.pid, os.fsdecode(b" ".join(order.argv))[:200])
        if self._pidfds:
            self._handle = os.pidfd_open(self.pid)
            self._watch.add(self._handle, Event.READABLE, self._on_handle)
        else:
            threading.Thread(target=self._wait, name="bargein-wait", daemon=True).start()

    async def launched(self, order: Order) -> None:
        """It was when `launch` returned."""

    def discard(self) -> None:
        """Nothing was prepared."""

    def note(self) -> None:
        """Looking through all of /proc takes too long for a canceller's thread."""

    def interrupt(self, number: int) -> None:
        self._sent = number
        self._signal(number)
        self._signal(signal.SIGCONT)

    def take_roll(self) -> None:
        for each in self._everybody() or ():
            related = each.parent == self.pid or each.parent in self._seen
            if related or self.pid in (each.pid, each.group, each.session):
                self._seen[each.pid] = each
                self._roll.meet(each.pid, each.command)
                if self._sent and each.group == self.pid:
                    self._roll.signalled(each.pid, self._sent)

    def signal_everybody(self, number: int) -> None:
        self.take_roll()
        self._roll.signalled_all(number)
        self.interrupt(number)
        self._look_closely()

    def kill(self) -> None:
        self._roll.signalled_all(signal.SIGKILL)
        self._signal(signal.SIGKILL)

    def look(self) -> None:
        if self._leader_ended and not self._empty and not self._is_populated():
            self._on_empty()

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._roll.told(began)

    def survivors(self) -> tuple[Survivor, ...]:
        return tuple(
            Survivor(pid, self._roll.command_of(pid))
            for pid, seen in self._seen.items()
            if pid != self.pid and is_still_there(seen)
        )

    def release(self) -> None:
        if self._handle >= 0:
            self._watch.remove(self._handle)
            os.close(self._handle)
            self._handle = -1

    def _is_populated(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # somebody is there, but not ours to signal
        # The dead count too until they are collected, and whoever inherited them may be slow.
        everybody = self._everybody()
        return everybody is None or any(each.group == self.pid for each in everybody)

    def _everybody(self) -> list[Listed] | None:
        return self._listing.now(born_before=self._born_before)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass  # nobody is left in the group

    def _on_handle(self) -> None:
        self._watch.remove(self._handle)
        self._on_leader(collect(self.pid, peek=True))

    def _wait(self) -> None:
        """Where there are no pidfds: a thread that waits, and so collects the process too."""
        assert self._process is not None
        code = self._process.wait()
        try:
            self._loop.call_soon_threadsafe(self._on_leader, code)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits any more

    def _on_leader(self, code: int | None) -> None:
        self._leader_ended = True
        self._roll.ended(self.pid, how_it_ended(code))
        # Collected here: as long as somebody is left in the group its number stays taken, and
        # once nobody is, asking tells so.
        assert self._process is not None
        self._process.poll()
        alone = not self._is_populated()
        if self._events is not None:
            self._events.leader_ended(code, alone=alone)
        if alone:
            self._on_empty()
        else:
            self._look_until_empty()

    def _look_until_empty(self) -> None:
        self.look()
        if not self._empty:
            self._timer = self._loop.call_later(self._look_again_s, self._look_until_empty)

    def _look_closely(self) -> None:
        self._look_again_s = _LOOK_AGAIN_WHILE_STOPPING_S
        if self._timer is not None:
            self._timer.cancel()
            self._look_until_empty()

    def _on_empty(self) -> None:
        self._empty = True
        alive = {survivor.pid for survivor in self.survivors()} if self._seen else set()
        for pid in self._roll.pids():
            if pid not in alive:
                self._roll.ended(pid)
        if self._events is not None:
            self._events.emptied()


def _start(order: Order, standard: Sequence[int]) -> "subprocess.Popen[bytes]":
    argv = order.argv
    if order.terminal:
        python = os.fsencode(sys.executable)
        argv = [python, b"-I", b"-S", b"-E", b"-c", _TAKE_TERMINAL.encode(), *argv]
    try:
        with nobodys():
            return subprocess.Popen(
                argv,
                stdin=standard[0],
                stdout=standard[1],
                stderr=standard[2],
                cwd=order.directory,
                env=order.environment,
                start_new_session=True,
            )
    except OSError as error:
        about_directory = error.filename == order.directory
        stage = "directory" if about_directory else "exec"
        raise failure(order, stage, error.errno or 0) from error
