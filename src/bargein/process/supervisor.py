"""Means 2: a subreaper for each command, which needs no privilege.

It is a child of the helper, not ours, and so is what it holds: nothing here sends a signal to a
pid. The first signal goes through a pidfd of the first process to its group, where the kernel can
do that (6.9); all else is asked of the supervisor on its control channel (see
`helper.supervisor`). If it is killed, its orphans become the helper's, which kills them and says
when they are gone; if that helper has died too, nobody can say, and the cell is not `certain` any
more.
"""

import os
import signal
from collections.abc import Sequence
from typing import Final

from bargein.process.birth import Birth
from bargein.process.cell import CellEvents, StillBorn
from bargein.process.helper import family, wire
from bargein.process.helper_process import HelperProcess
from bargein.process.nursery import Nursery, until
from bargein.process.once import Once
from bargein.process.order import Order
from bargein.process.own_cell import OwnSweep
from bargein.process.question import Question
from bargein.process.roll import Roll, how_it_ended
from bargein.process.values import EndedProcess, Means, Survivor
from bargein.process.watch import Event, Watch

_NOTED_MAX: Final = 32
# PIDFD_SIGNAL_PROCESS_GROUP, for which Python has no name: to the group that the process leads.
_TO_GROUP: Final = 4


class SupervisorHolder:
    means: Final = Means.SUPERVISOR

    def __init__(self, watch: Watch, helper: HelperProcess) -> None:
        self.watch = watch
        self.helper = helper
        self._nursery = Nursery(watch.loop, self.conceive)
        self._cells: set[SupervisorCell] = set()

    async def make_cell(self) -> "SupervisorCell":
        return await self._nursery.take()

    def make_own_cell(self) -> OwnSweep:
        return OwnSweep(self.watch, self.means)

    def unstick(self) -> None:
        self.helper.kill()

    def replenish(self) -> None:
        self._nursery.replenish()

    def conceive(self) -> "SupervisorCell":
        cell = SupervisorCell(self)
        self._cells.add(cell)
        return cell

    def released(self, cell: "SupervisorCell") -> None:
        self._cells.discard(cell)

    async def close(self) -> None:
        self._nursery.close()
        await until(lambda: not self._cells)
        await self.helper.close()


class SupervisorCell:
    means: Final = Means.SUPERVISOR

    def __init__(self, holder: SupervisorHolder) -> None:
        self._holder = holder
        self._watch = holder.watch
        self._events: CellEvents | None = None
        self._roll = Roll()
        self._supervisor = 0
        self._discarded = False
        self._leader_ended = False
        self._leader = -1
        self._last_ordered = 0
        self._noted: list[tuple[int, str, int]] = []
        self._empty = False
        self._is_born: Once[bool] = Once(self._watch.loop)
        self._is_released: Once[None] = Once(self._watch.loop)
        self.certain = True
        self.pid = 0
        self._control, theirs = wire.pair()
        self._control.setblocking(False)
        try:
            self._birth = Birth(self._watch, self._on_born)
            try:
                holder.helper.order(("supervised",), [self._birth.theirs.fileno(), theirs.fileno()])
            except BaseException:
                self._birth.abort()
                raise
            finally:
                self._birth.theirs.close()
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._born_by = holder.helper.starts
        self._watch.add(self._control.fileno(), Event.READABLE, self._hear)

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
        self._discarded = True
        self._birth.close()
        self.kill()

    async def discarded(self) -> None:
        """Discard it and wait until nothing of it is left."""
        self.discard()
        await self._is_released.wait()

    def note(self) -> None:
        below = family.descendants(self.pid, count_max=_NOTED_MAX)
        self._noted = family.noted(below)

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

    def take_roll(self) -> None:
        """The supervisor takes it, with the first signal to everybody."""
        for pid, name, group in self._noted:
            self._roll.meet(pid, name)
            if group == self.pid:
                self._roll.signalled(pid, signal.SIGINT)
        self._noted = []

    def signal_everybody(self, number: int) -> None:
        self._order_signal(number)
        self._roll.signalled_all(number)

    def _order_signal(self, number: int) -> None:
        if self._last_ordered != number:
            self._last_ordered = number
            self._order(("signal", int(number)))

    def kill(self) -> None:
        self._roll.signalled_all(signal.SIGKILL)
        self._order(("kill",))
        if self._supervisor and not self._empty:
            try:
                # Its command may have stopped it. If its number is another's by now, no harm.
                os.kill(self._supervisor, signal.SIGCONT)
            except OSError:
                pass  # it has ended

    def look(self) -> None:
        """The supervisor tells by itself."""

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        return self._roll.told(began)

    def survivors(self) -> tuple[Survivor, ...]:
        below = family.descendants(self._supervisor) if self._supervisor else []
        return tuple(
            Survivor(pid, family.command_of(pid)) for pid in below if family.is_running(pid)
        )

    def release(self) -> None:
        if self._leader >= 0:
            os.close(self._leader)
            self._leader = -1
        self._stop_hearing()
        self._birth.close()
        self._holder.released(self)
        self._is_released.set(None)

    def _order(self, message: wire.Message) -> None:
        try:
            wire.send(self._control, message)
        except OSError:
            pass  # it has ended, which is heard on the same channel

    def _on_born(self, pid: int | None) -> None:
        self.pid = pid or 0
        if pid is None:
            self._empty = True
            self.release()
        else:
            self._open_leader(pid)
        self._is_born.set(pid is not None)

    def _open_leader(self, pid: int) -> None:
        """It has just said who it is, and waits: what has its number is it, unless it was killed
        and its channel closed since, and then it becomes nothing."""
        try:
            self._leader = os.pidfd_open(pid)
        except OSError:
            pass  # our table is full: the supervisor is asked instead

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
                    self._roll.signalled(pid, last_signal)
                self._roll.ended(pid, how_it_ended(code))
            self._on_leader(leader_code, alone=True)
            self._on_empty()

    def _meet(self, met: list[tuple[int, str]]) -> None:
        for pid, command in met:
            self._roll.meet(pid, command)

    def _on_leader(self, code: int | None, *, alone: bool) -> None:
        if not self._leader_ended:
            self._leader_ended = True
            self._roll.ended(self.pid, how_it_ended(code))
            if self._events is not None:
                self._events.leader_ended(code, alone=alone)

    def _on_empty(self) -> None:
        if self._empty:
            return
        self._empty = True
        self._on_leader(None, alone=True)
        self._roll.everybody_ended()
        if self._events is None:
            self.release()
        else:
            self._events.emptied()

    def _supervisor_was_killed(self) -> None:
        self._stop_hearing()
        if self._empty:
            return
        helper = self._holder.helper
        if self._born_by != helper.starts or helper.pid is None:
            self.certain = False
            self._on_empty()
            return
        Question(self._watch, self._on_swept).ask(helper, ("sweep", self._supervisor))

    def _on_swept(self, answer: wire.Message | None) -> None:
        self.certain = answer is not None
        self._on_empty()

    def _stop_hearing(self) -> None:
        if self._control.fileno() >= 0:
            self._watch.remove(self._control.fileno())
            self._control.close()
