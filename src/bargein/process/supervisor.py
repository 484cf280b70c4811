"""Means 2: a subreaper for each command, which needs no privilege.

The supervisor and the command are children of the helper, not ours, so nothing here signals a pid.
The first signal of a stop goes through a pidfd of the first process to its group, where the kernel
can do that (6.9). The supervisor sends all others, when we ask on its control channel (see
`helper.supervisor`).

If the supervisor is killed, its orphans become children of the helper, which kills them and says
when they are gone. If that helper has died too, nobody can say, and the enclosure is no longer
`certain`. Methods run on the loop, except where `enclosure` says "any thread".
"""

import os
import signal
from collections.abc import Sequence
from typing import Final

from bargein.process.enclosure import EnclosureEvents, SpareLost
from bargein.process.exec_request import ExecRequest
from bargein.process.helper import procfs, wire
from bargein.process.helper_process import HelperProcess
from bargein.process.limits import Limiter
from bargein.process.own_enclosures import OwnSweep
from bargein.process.process_report import ProcessReport, how_it_ended
from bargein.process.spare import SpareChannel, SparePool, until
from bargein.process.values import CommandLimits, EndedProcess, Means, SandboxView, Survivor
from bargein.process.waiting import DescriptorWatch, Event, Once

_NOTED_MAX: Final = 32
# PIDFD_SIGNAL_PROCESS_GROUP, for which Python has no name: signal the group that it leads.
_TO_GROUP: Final = 4


class SupervisorBackend:
    means: Final = Means.SUPERVISOR

    def __init__(
        self, watch: DescriptorWatch, helper: HelperProcess, limiter: Limiter | None = None
    ) -> None:
        self.watch = watch
        self.limiter = limiter or Limiter(CommandLimits(), {}, {})
        self.helper = helper
        self._spares = SparePool(watch.loop, self.order_spare)
        self._enclosures: set[SupervisorEnclosure] = set()

    async def make_enclosure(self, view: SandboxView | None = None) -> "SupervisorEnclosure":
        return await self._spares.take(view)

    def make_own_enclosure(self) -> OwnSweep:
        return OwnSweep(self.watch, self.means)

    def restart_helper(self) -> None:
        self.helper.kill()

    def replenish(self) -> None:
        self._spares.replenish()

    def order_spare(self, view: SandboxView | None) -> "SupervisorEnclosure":
        enclosure = SupervisorEnclosure(self, view)
        self._enclosures.add(enclosure)
        return enclosure

    def released(self, enclosure: "SupervisorEnclosure") -> None:
        self._enclosures.discard(enclosure)

    async def close(self) -> None:
        self._spares.close()
        await until(lambda: not self._enclosures)
        await self.helper.close()
        self.limiter.close()


class SupervisorEnclosure:
    means: Final = Means.SUPERVISOR

    def __init__(self, backend: SupervisorBackend, view: SandboxView | None) -> None:
        self._backend = backend
        self._watch = backend.watch
        self._events: EnclosureEvents | None = None
        self._report = ProcessReport()
        self._supervisor = 0
        self._discarded = False
        self._leader_ended = False
        self._leader = -1
        self._last_ordered = 0
        self._noted: list[tuple[int, str, int]] = []
        self._empty = False
        self._is_ready: Once[bool] = Once(self._watch.loop)
        self._is_released: Once[None] = Once(self._watch.loop)
        self.certain = True
        self.pid = 0
        self._limited = backend.limiter.make()
        self._control, theirs = wire.pair()
        self._control.setblocking(False)
        try:
            self._channel = SpareChannel(self._watch, self._on_ready)
            try:
                backend.helper.order(
                    (
                        "supervised",
                        view.plan if view is not None else None,
                        self._limited.directories,
                    ),
                    [self._channel.theirs.fileno(), theirs.fileno()],
                )
            except BaseException:
                self._channel.abort()
                raise
            finally:
                self._channel.theirs.close()
        except BaseException:
            self._control.close()
            self._limited.remove()
            raise
        finally:
            theirs.close()
        self._started_by = backend.helper.starts
        self._watch.add(self._control.fileno(), Event.READABLE, self._hear)

    @property
    def is_dead(self) -> bool:
        return self._channel.is_over

    async def ready(self) -> None:
        if not await self._is_ready.wait():
            raise SpareLost(self._channel.errno)

    def launch(
        self, request: ExecRequest, standard: Sequence[int], events: EnclosureEvents
    ) -> None:
        rlimits = self._backend.limiter.rlimits
        self._channel.send(request._replace(rlimits=rlimits), standard)
        self._events = events
        self._report.add(self.pid, os.fsdecode(b" ".join(request.argv))[:200])
        self._backend.replenish()

    async def launched(self, request: ExecRequest) -> None:
        await self._channel.became(request)

    def discard(self) -> None:
        self._discarded = True
        self._channel.close()
        self.kill()

    async def discarded(self) -> None:
        """Discard it and wait until nothing of it is left."""
        self.discard()
        await self._is_released.wait()

    def note(self) -> None:
        """Below the supervisor, not the command: who has lost its parent is the supervisor's child
        and may still be in the command's group."""
        below = procfs.descendants(self._supervisor or self.pid, count_max=_NOTED_MAX)
        self._noted = procfs.running(pid for pid in below if pid != self.pid)

    def interrupt(self, number: int) -> None:
        if self._leader_ended:
            self._order_signal(signal.SIGTERM)
            return
        self.note()
        try:
            for each in (number, signal.SIGCONT):
                signal.pidfd_send_signal(self._leader, each, None, _TO_GROUP)
        except ProcessLookupError:
            pass  # nobody is left in the group
        except OSError:
            self._order(("interrupt", int(number)))

    def record_members(self) -> None:
        """Adds those noted before the first signal. The supervisor tells us of the others."""
        for pid, name, group in self._noted:
            self._report.add(pid, name)
            if group == self.pid:
                self._report.signalled(pid, signal.SIGINT)
        self._noted = []
        if self._empty:
            self._report.everybody_ended()

    def signal_everybody(self, number: int) -> None:
        self._order_signal(number)
        self._report.signalled_all(number)

    def _order_signal(self, number: int) -> None:
        if self._last_ordered != number:
            self._last_ordered = number
            self._order(("signal", int(number)))

    def kill(self) -> None:
        self._report.signalled_all(signal.SIGKILL)
        self._order(("kill",))
        if self._supervisor and not self._empty:
            try:
                # Its command may have stopped it. If its pid is another process's by now, this
                # does no harm.
                os.kill(self._supervisor, signal.SIGCONT)
            except OSError:
                pass  # it has ended

    def look_ahead(self) -> None:
        """The supervisor does all the looking."""

    def look(self) -> None:
        """The supervisor says by itself when somebody has ended."""

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._report.processes(began)

    def survivors(self) -> tuple[Survivor, ...]:
        below = procfs.descendants(self._supervisor) if self._supervisor else []
        return tuple(
            Survivor(pid, procfs.command_of(pid)) for pid in below if procfs.is_running(pid)
        )

    def limits_reached(self) -> tuple[str, ...]:
        return tuple(self._limited.reached())

    def release(self) -> None:
        self._limited.remove()
        if self._leader >= 0:
            os.close(self._leader)
            self._leader = -1
        self._stop_hearing()
        self._channel.close()
        self._backend.released(self)
        self._is_released.set(None)

    def _order(self, message: wire.Message) -> None:
        try:
            wire.send(self._control, message)
        except OSError:
            pass  # it has ended, and then this channel closes

    def _on_ready(self, pid: int | None) -> None:
        self.pid = pid or 0
        if pid is None:
            self._empty = True
            self.release()
        else:
            self._open_leader(pid)
        self._is_ready.set(pid is not None)

    def _open_leader(self, pid: int) -> None:
        """It has just sent its pid and waits, so the process with that pid is it; unless it was
        killed since, and then its channel is closed and no command starts."""
        try:
            self._leader = os.pidfd_open(pid)
        except OSError:
            pass  # our descriptor table is full: we ask the supervisor instead

    def _hear(self) -> None:
        try:
            received = wire.receive(self._control)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = None
        if received is None:
            self._supervisor_was_killed()
            return
        what, value = received[0]
        if what == "here":
            self._supervisor = value
        elif what == "met":
            self._meet(value)
        elif what == "exited":
            self._on_leader(value, alone=False)
        else:
            leader_code, met, ended = value
            self._meet(met)
            for pid, code, last_signal in ended:
                if last_signal:
                    self._report.signalled(pid, last_signal)
                self._report.ended(pid, how_it_ended(code))
            self._on_leader(leader_code, alone=True)
            self._on_empty()

    def _meet(self, met: list[tuple[int, str]]) -> None:
        for pid, command in met:
            self._report.add(pid, command)

    def _on_leader(self, code: int | None, *, alone: bool) -> None:
        if not self._leader_ended:
            self._leader_ended = True
            self._report.ended(self.pid, how_it_ended(code))
            if self._events is not None:
                self._events.leader_ended(code, alone=alone)

    def _on_empty(self) -> None:
        if self._empty:
            return
        self._empty = True
        self._on_leader(None, alone=True)
        self._report.everybody_ended()
        if self._events is None:
            self.release()
        else:
            self._events.emptied()

    def _supervisor_was_killed(self) -> None:
        self._stop_hearing()
        if self._empty:
            return
        helper = self._backend.helper
        if self._started_by != helper.starts or helper.pid is None:
            self.certain = False
            self._on_empty()
            return
        helper.ask(("sweep", self._supervisor), self._on_swept)

    def _on_swept(self, answer: wire.Message | None) -> None:
        self.certain = answer is not None
        self._on_empty()

    def _stop_hearing(self) -> None:
        if self._control.fileno() >= 0:
            self._watch.remove(self._control.fileno())
            self._control.close()
