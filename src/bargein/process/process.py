"""One command that runs, with all it started: the handle that callers hold.

Its owner is the containment, not the task that waits: whatever becomes of that task, the stop that
a cancelled token begins goes on to its end. The first signal of such a stop is sent in the thread
that cancels, at that moment; everything else happens on the loop, on which all methods are called.
"""

import asyncio
import signal
import time
from collections.abc import Callable

from bargein.cancel import CancelSource, Link, Registration, Token, bridge
from bargein.process import terminal
from bargein.process.cell import Cell
from bargein.process.errors import InputClosed
from bargein.process.gate import Gate
from bargein.process.input import InputWriter
from bargein.process.once import Once
from bargein.process.order import Order
from bargein.process.roll import exit_of
from bargein.process.stdio import Stdio
from bargein.process.stopping import Stopping
from bargein.process.values import Captured, Exit, Ladder, Means, PtySize, StopReport

_GATE_AGAIN_S = 0.001

OnStopped = Callable[["Process", StopReport], object]


class Process:
    """Made by `Containment.spawn`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cell: Cell,
        *,
        argv: tuple[str, ...],
        stdio: Stdio,
        ladder: Ladder,
        give_way: Callable[[], object],
        on_stopped: OnStopped,
        on_released: Callable[["Process"], object],
    ) -> None:
        self._loop = loop
        self._cell = cell
        self._stdio = stdio
        self._ladder = ladder
        self._give_way = give_way
        self._on_stopped = on_stopped
        self._on_released = on_released
        self._gate = Gate()
        self._source = CancelSource(f"process {argv[0]}")
        self._link: Link | None = None
        self._bridge: Registration | None = None
        self._interrupted_at: float | None = None
        self._nobody_left = False
        self._holds_cell = True
        self._exited: Once[Exit] = Once(loop)
        self._settled: Once[None] = Once(loop)
        self._stopping: Stopping | None = None
        self._stopped: Once[StopReport] = Once(loop)
        self.argv = argv
        self.started_at = time.monotonic()

    def __repr__(self) -> str:
        state = "running" if self.alive else "over"
        return f"<Process {self.pid} {self.argv[0]}: {self.exit or state}>"

    # --- what it is -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._cell.pid

    @property
    def means(self) -> Means:
        return self._cell.means

    @property
    def output(self) -> Captured:
        """What it has written so far, standard error included."""
        return self._stdio.captured

    @property
    def exit(self) -> Exit | None:
        """How its first process ended, once it has."""
        return self._exited.value

    @property
    def alive(self) -> bool:
        """Somebody of it is left, or may be."""
        return not self._settled.is_set

    @property
    def stopping(self) -> bool:
        return self._stopping is not None

    @property
    def stop_report(self) -> StopReport | None:
        return self._stopped.value

    # --- what can be asked of it ----------------------------------------------------------------

    async def wait(self) -> Exit:
        """Until its first process has ended and what that wrote has been read.

        Not until the pipe ends, nor what it left in the background: see `settled`. Cancelling
        the wait stops nothing.
        """
        return await self._exited.wait()

    async def settled(self) -> None:
        """Until everybody is gone, by themselves or stopped."""
        await self._settled.wait()

    async def stop(self, ladder: Ladder | None = None, *, hurry: bool = False) -> StopReport:
        """Stop everybody, and tell how. Joins a stop that runs already.

        `hurry` goes straight to the kill, in a running stop too. Cancelling the call ends only
        the waiting.
        """
        self.begin_stop(ladder, hurry=hurry)
        return await self._stopped.wait()

    def begin_stop(self, ladder: Ladder | None = None, *, hurry: bool = False) -> None:
        """`stop` without waiting for it."""
        if self._stopping is None:
            self._begin(ladder or self._ladder, hurry=hurry)
        elif hurry:
            self._stopping.hurry()

    def adopt(self, token: Token) -> bool:
        """From now on only `token` governs it. False: a stop, or the end, came first.

        Raises `TokenEnded` if that token has ended.
        """
        if self._link is None or self.stopping or not self.alive:
            return False
        link = self._source.link(token)
        if not self._link.unlink():
            link.unlink()
            return False
        self._link = link
        return not self._source.token.cancelled

    async def write(self, data: bytes) -> None:
        """To its standard input, or its terminal. Raises `InputClosed` if it reads no more."""
        await self._input.write(data)

    def close_input(self) -> None:
        """Its standard input ends; on a terminal, what Ctrl-D says is sent."""
        self._stdio.end_input()

    def resize(self, size: PtySize) -> None:
        if self._stdio.terminal < 0:
            raise ValueError(f"{self.argv[0]} has no terminal to resize")
        terminal.resize(self._stdio.terminal, size)

    @property
    def _input(self) -> InputWriter:
        if self._stdio.input is None:
            raise InputClosed(f"{self.argv[0]} has no input: it was started without a pipe to it")
        return self._stdio.input

    # --- its life, told by the containment, the cell and the token ------------------------------

    def govern(self, token: Token) -> None:
        """Before the start: let the token stop it. If it is cancelled already, nothing starts."""
        self._bridge = bridge(self._source.token, self._on_cancel)
        self._link = self._source.link(token)
        token.check()

    def launch(self, order: Order) -> None:
        self._cell.launch(order, self._stdio.theirs, self)
        self._stdio.handed_over()

    async def launched(self, order: Order) -> None:
        await self._cell.launched(order)

    def never_started(self) -> None:
        """Give back what was prepared; the cell is not ours any more."""
        self._nobody_left = True
        self._holds_cell = False
        self._finish()
        self._release()

    def leader_ended(self, code: int | None, *, alone: bool) -> None:
        self._stdio.drain()
        self._exited.set(exit_of(code, self.started_at))
        if self._stopping is not None and not alone:
            self._stopping.leader_gone()

    def emptied(self) -> None:
        self._nobody_left = True
        self._stdio.drain()
        self._finish()
        # Whoever waits goes first: what is left to do is of no interest to them.
        self._loop.call_soon(self._release)

    def _finish(self) -> None:
        if self._stopping is not None:
            self._stopping.nobody_left()
        self._settled.set(None)

    def _release(self) -> None:
        if self._bridge is not None:
            self._bridge.remove()
        self._source.seal()
        if self._gate.enter():
            self._stdio.close()
            if self._holds_cell:
                self._cell.release()
            self._on_released(self)
        else:
            # Another thread is just sending the first signal of a stop.
            self._loop.call_later(_GATE_AGAIN_S, self._release)

    def _begin(self, ladder: Ladder, *, hurry: bool) -> None:
        self._stopping = Stopping(
            self._loop,
            self._cell,
            ladder=ladder,
            terminal=self._stdio.terminal >= 0,
            interrupt=self._interrupt,
            give_way=self._give_way,
            on_over=self._on_over,
        )
        self._stopping.begin(
            began=self._interrupted_at,
            leader_gone=self._exited.is_set,
            nobody_left=self._nobody_left,
            hurry=hurry,
        )

    def _on_over(self, report: StopReport) -> None:
        self._stopped.set(report)
        if not report.found_over:
            self._on_stopped(self, report)

    def _on_cancel(self) -> None:
        """In the canceller's thread, maybe in a signal handler: no wait, no lock, no raise."""
        if self._interrupt():
            self._interrupted_at = time.monotonic()
        try:
            if _in_a_task_of(self._loop):
                # No need to wake it. Waking costs a turn of the loop, in which nothing dies.
                self._loop.call_soon(self.begin_stop)
            else:
                self._loop.call_soon_threadsafe(self.begin_stop)
        except RuntimeError:
            pass  # the loop is closed, and the containment with it

    def _interrupt(self) -> bool:
        if not self._gate.enter():
            return False
        try:
            if self._stdio.terminal >= 0:
                self._cell.note()
                terminal.interrupt(self._stdio.terminal)
            else:
                self._cell.interrupt(signal.SIGINT)
        finally:
            self._gate.leave()
        return True


def _in_a_task_of(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread is inside a step of a task, so that the loop goes on to what is ready
    when that is over. A signal handler may be called while the loop sleeps; then there is none."""
    try:
        return asyncio.get_running_loop() is loop and asyncio.current_task() is not None
    except RuntimeError:
        return False
