"""Means 3: a process group. Works everywhere, and promises the least.

A process that leaves the group (setsid) escapes, and nothing can tell that none did, so a stop is
never confirmed. Processes that were seen to belong to the command and are alive after the stop are
reported as survivors. Methods run on the loop, except where `enclosure` says "any thread".
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

from bargein.process.enclosure import EnclosureEvents
from bargein.process.exec_request import ExecRequest, spawn_error
from bargein.process.fork_hooks import unowned
from bargein.process.listing import ListedProcess, Listing, is_still_there
from bargein.process.own_enclosures import OwnSweep
from bargein.process.process_report import ProcessReport, collect, how_it_ended
from bargein.process.values import EndedProcess, Means, SandboxView, Survivor
from bargein.process.waiting import DescriptorWatch, Event

_LOOK_AGAIN_S: Final = 0.5
_LOOK_AGAIN_WHILE_STOPPING_S: Final = 0.01

# A new session has no terminal until a process inside it takes one.
_TAKE_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ)
except OSError as error:
    sys.exit(f"cannot run {sys.argv[1]!r}: {error.strerror}")
"""


class GroupBackend:
    means: Final = Means.GROUP

    def __init__(self, watch: DescriptorWatch, *, pidfds: bool | None = None) -> None:
        self._watch = watch
        self._listing = Listing()
        self._pidfds = hasattr(os, "pidfd_open") if pidfds is None else pidfds

    async def make_enclosure(self, view: SandboxView | None = None) -> "GroupEnclosure":
        return GroupEnclosure(self._watch, self._listing, pidfds=self._pidfds)

    def make_own_enclosure(self) -> OwnSweep:
        return OwnSweep(self._watch, self.means)

    def restart_helper(self) -> None:
        """There is no helper."""

    async def close(self) -> None:
        """There is nothing to give back."""


class GroupEnclosure:
    means: Final = Means.GROUP
    certain: Final = False

    def __init__(self, watch: DescriptorWatch, listing: Listing, *, pidfds: bool) -> None:
        self._watch = watch
        self._listing = listing
        self._loop = watch.loop
        self._pidfds = pidfds
        self._process: subprocess.Popen[bytes] | None = None
        self._handle = -1
        self._events: EnclosureEvents | None = None
        self._report = ProcessReport()
        self._seen: dict[int, ListedProcess] = {}
        # The last signal to the whole group.
        self._sent = 0
        self._look_again_s = _LOOK_AGAIN_S
        self._timer: asyncio.TimerHandle | None = None
        self._leader_ended = False
        self._empty = False
        self._started_before = 0.0
        self.pid = 0

    def launch(
        self, request: ExecRequest, standard: Sequence[int], events: EnclosureEvents
    ) -> None:
        self._process = process = _start(request, standard)
        self._started_before = time.monotonic()
        self._events = events
        self.pid = process.pid
        self._report.add(self.pid, os.fsdecode(b" ".join(request.argv))[:200])
        if self._pidfds:
            self._handle = os.pidfd_open(self.pid)
            self._watch.add(self._handle, Event.READABLE, self._on_handle)
        else:
            threading.Thread(target=self._wait, name="bargein-wait", daemon=True).start()

    async def launched(self, request: ExecRequest) -> None:
        """`launch` returned after the command had started."""

    def discard(self) -> None:
        """There is no spare process."""

    def limits_reached(self) -> tuple[str, ...]:
        return ()

    def note(self) -> None:
        """Does nothing: reading all of /proc takes too long for a canceller's thread."""

    def interrupt(self, number: int) -> None:
        self._sent = number
        self._signal(number)
        self._signal(signal.SIGCONT)

    def record_members(self) -> None:
        for each in self._everybody() or ():
            related = each.parent == self.pid or each.parent in self._seen
            if related or self.pid in (each.pid, each.group, each.session):
                self._seen[each.pid] = each
                self._report.add(each.pid, each.command)
                if self._sent and each.group == self.pid:
                    self._report.signalled(each.pid, self._sent)

    def signal_everybody(self, number: int) -> None:
        self.record_members()
        self._report.signalled_all(number)
        self.interrupt(number)
        self._look_closely()

    def kill(self) -> None:
        self._report.signalled_all(signal.SIGKILL)
        self._signal(signal.SIGKILL)

    def look_ahead(self) -> None:
        """Nothing confirms an end here."""

    def look(self) -> None:
        if self._leader_ended and not self._empty and not self._is_populated():
            self._on_empty()

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._report.processes(began)

    def survivors(self) -> tuple[Survivor, ...]:
        return tuple(
            Survivor(pid, self._report.command_of(pid))
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
            pass  # somebody is there whom we may not signal
        # The group also has members that are dead and not collected, and their parent may be slow.
        everybody = self._everybody()
        return everybody is None or any(each.group == self.pid for each in everybody)

    def _everybody(self) -> list[ListedProcess] | None:
        return self._listing.now(started_before=self._started_before)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass  # nobody is left in the group

    def _on_handle(self) -> None:
        self._watch.remove(self._handle)
        self._on_leader(collect(self.pid, peek=True))

    def _wait(self) -> None:
        """Where there are no pidfds a thread waits, and thereby collects the process."""
        assert self._process is not None
        code = self._process.wait()
        try:
            self._loop.call_soon_threadsafe(self._on_leader, code)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits

    def _on_leader(self, code: int | None) -> None:
        self._leader_ended = True
        self._report.ended(self.pid, how_it_ended(code))
        # We may collect it here: while the group has members its number stays taken, and when it
        # has none, `_is_populated` sees that.
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
        for pid in self._report.pids():
            if pid not in alive:
                self._report.ended(pid)
        if self._events is not None:
            self._events.emptied()


def _start(request: ExecRequest, standard: Sequence[int]) -> "subprocess.Popen[bytes]":
    argv = request.argv
    if request.terminal:
        python = os.fsencode(sys.executable)
        argv = [python, b"-I", b"-S", b"-E", b"-c", _TAKE_TERMINAL.encode(), *argv]
    try:
        with unowned():
            return subprocess.Popen(
                argv,
                stdin=standard[0],
                stdout=standard[1],
                stderr=standard[2],
                cwd=request.directory,
                env=request.environment,
                start_new_session=True,
            )
    except OSError as error:
        about_directory = error.filename == request.directory
        stage = "directory" if about_directory else "exec"
        raise spawn_error(request, stage, error.errno or 0) from error
