"""One command with everything that it started: the handle that callers hold.

The containment owns it, not the task that waits for it: a stop that a cancelled token begins goes
on to its end, whatever happens to that task. The thread that cancels sends the first signal of
the stop at once; everything else happens on the loop, where all methods are called.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from bargein.cancel import CancelSource, Link, Registration, Token, bridge
from bargein.process.enclosure import Enclosure
from bargein.process.errors import InputClosed
from bargein.process.exec_request import ExecRequest
from bargein.process.output import PIECE_BYTES
from bargein.process.process_report import exit_of
from bargein.process.stdio import InputWriter, Stdio
from bargein.process.stopping import Rung, RunningStop, SignalGate, first_rung
from bargein.process.values import Captured, Exit, Ladder, Means, PtySize, StopReport
from bargein.process.waiting import Once

_GATE_AGAIN_S = 0.001

OnStopped = Callable[["Process", StopReport], object]


class Process:
    """Made by `Containment.spawn`. With `ends_with_first`, the end of its first process stops the
    others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        enclosure: Enclosure,
        *,
        argv: tuple[str, ...],
        stdio: Stdio,
        ladder: Ladder,
        give_way: Callable[[], object],
        on_stopped: OnStopped,
        on_released: Callable[["Process"], object],
        ends_with_first: bool = False,
        sandbox: str = "",
    ) -> None:
        self._loop = loop
        self._enclosure = enclosure
        self._stdio = stdio
        self._ladder = ladder
        self._give_way = give_way
        self._on_stopped = on_stopped
        self._on_released = on_released
        self._ends_with_first = ends_with_first
        self._gate = SignalGate()
        self._source = CancelSource(f"process {argv[0]}")
        self._link: Link | None = None
        self._bridge: Registration | None = None
        self._interrupted_at: float | None = None
        self._nobody_left = False
        self._holds_enclosure = True
        self._exited: Once[Exit] = Once(loop)
        self._settled: Once[None] = Once(loop)
        self._stopping: RunningStop | None = None
        self._stopped: Once[StopReport] = Once(loop)
        self.argv = argv
        self.limits_reached: tuple[str, ...] = ()
        """Limits that it has reached, once it is over: "memory", "processes"."""
        self.sandbox = sandbox
        """The means of the sandbox that it runs in; empty if it runs in none."""
        self.started_at = time.monotonic()

    def __repr__(self) -> str:
        state = "running" if self.alive else "over"
        return f"<Process {self.pid} {self.argv[0]}: {self.exit or state}>"

    # --- what it is -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._enclosure.pid

    @property
    def means(self) -> Means:
        return self._enclosure.means

    @property
    def output(self) -> Captured:
        """Its output so far, standard error included. Of a `Service`: its standard error."""
        return self._stdio.captured

    @property
    def exit(self) -> Exit | None:
        """How its first process ended, once it has."""
        return self._exited.value

    @property
    def alive(self) -> bool:
        """Whether one of its processes is left, or may be."""
        return not self._settled.is_set

    def inside(self) -> tuple[tuple[int, str], ...]:
        """The processes that are inside now, as far as this means can tell, its first process
        first: their numbers and the names of their programs."""
        if not self._holds_enclosure:
            return ()
        found = {each.pid: _program(each.command) for each in self._enclosure.survivors()}
        if self.exit is None:
            found = {self.pid: found.get(self.pid) or _program(self.argv[0]), **found}
        return tuple(found.items())

    @property
    def stopping(self) -> bool:
        return self._stopping is not None

    @property
    def stop_report(self) -> StopReport | None:
        return self._stopped.value

    # --- what can be asked of it ----------------------------------------------------------------

    async def wait(self) -> Exit:
        """Wait until its first process has ended and all that this process wrote has been read.

        The processes that it left in the background may go on: see `settled`. Cancelling the
        wait stops nothing.
        """
        return await self._exited.wait()

    async def settled(self) -> None:
        """Wait until all its processes have ended, by themselves or stopped."""
        await self._settled.wait()

    async def stop(self, ladder: Ladder | None = None, *, hurry: bool = False) -> StopReport:
        """Stop all its processes and report how they ended. Joins a stop that is under way.

        `hurry` goes straight to the kill, also in a stop that is under way. Cancelling this wait
        does not end the stop.
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
        """From now on only `token` stops it. Returns False if a stop, or its end, came first.

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
        """Write to its standard input, or its terminal. Waits while it does not read; raises
        `InputClosed` if it will not read any more."""
        await self._input.write(data)

    def try_write(self, data: bytes) -> bool:
        """`InputWriter.try_write`; not for a terminal."""
        return self._stdio.terminal < 0 and self._input.try_write(data)

    def close_input(self) -> None:
        """End its standard input; on a terminal, type Ctrl-D."""
        self._stdio.end_input()

    async def read(self, bytes_max: int = PIECE_BYTES) -> bytes:
        """The next output of a `Service`; `b""` at its end. See `OutputStream.read`."""
        if self._stdio.stream is None:
            raise ValueError(f"the output of {self.argv[0]} is captured: see `output`")
        return await self._stdio.stream.read(bytes_max)

    def resize(self, size: PtySize) -> None:
        if self._stdio.terminal < 0:
            raise ValueError(f"{self.argv[0]} has no terminal to resize")
        self._stdio.resize_terminal(size)

    @property
    def _input(self) -> InputWriter:
        if self._stdio.input is None:
            raise InputClosed(f"{self.argv[0]} has no input: it was started without a pipe to it")
        return self._stdio.input

    # --- called by the containment, the enclosure and the token ---------------------------------

    def govern(self, token: Token) -> None:
        """Before the start: let the token stop it. Raises `Cancelled` if that has happened."""
        self._bridge = bridge(self._source.token, self._on_cancel)
        self._link = self._source.link(token)
        token.check()

    def launch(self, request: ExecRequest) -> None:
        self._enclosure.launch(request, self._stdio.theirs, self)
        self._stdio.handed_over()

    async def launched(self, request: ExecRequest) -> None:
        await self._enclosure.launched(request)

    def never_started(self) -> None:
        """Give back what was prepared, except for the enclosure, which the caller discarded."""
        self._nobody_left = True
        self._holds_enclosure = False
        self._finish()
        self._release()

    def leader_ended(self, code: int | None, *, alone: bool) -> None:
        self._stdio.drain()
        self._exited.set(exit_of(code, self.started_at))
        if self._stopping is not None and not alone:
            self._stopping.leader_gone()
        if self._ends_with_first:
            self._loop.call_soon(self.begin_stop)

    def emptied(self) -> None:
        self._nobody_left = True
        self._stdio.drain()
        self._finish()
        # The tasks that wait run first; they need nothing of what is left to do.
        self._loop.call_soon(self._release)

    def _finish(self) -> None:
        if self._holds_enclosure:
            self.limits_reached = self._enclosure.limits_reached()
        if self._stopping is not None:
            self._stopping.nobody_left()
        self._settled.set(None)

    def _release(self) -> None:
        if self._bridge is not None:
            self._bridge.remove()
        self._source.seal()
        if self._gate.enter():
            self._stdio.close()
            if self._holds_enclosure:
                self._enclosure.release()
            self._on_released(self)
        else:
            # Another thread is sending the first signal of a stop.
            self._loop.call_later(_GATE_AGAIN_S, self._release)

    def _begin(self, ladder: Ladder, *, hurry: bool) -> None:
        self._stopping = RunningStop(
            self._loop,
            self._enclosure,
            ladder=ladder,
            terminal=self._stdio.terminal >= 0,
            interrupt=self._interrupt,
            end_input=self._end_input,
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
        if first_rung(self._ladder) is Rung.INTERRUPT and self._interrupt():
            self._interrupted_at = time.monotonic()
        try:
            if _in_a_task_of(self._loop):
                # It is awake. Waking it would cost a turn of the loop.
                self._loop.call_soon(self.begin_stop)
            else:
                self._loop.call_soon_threadsafe(self.begin_stop)
        except RuntimeError:
            pass  # the loop is closed, and with it the containment

    def _end_input(self) -> None:
        with suppress(InputClosed):
            self._stdio.end_input()

    def _interrupt(self) -> bool:
        """Returns False if it sent no signal: nobody is left, or another thread sends it."""
        if self._nobody_left or not self._gate.enter():
            return False
        try:
            if self._stdio.terminal >= 0:
                self._enclosure.note()
                self._stdio.interrupt_terminal()
            else:
                self._enclosure.interrupt(signal.SIGINT)
        finally:
            self._gate.leave()
        return True


def _program(command: str) -> str:
    """The name of a command's program, without its folder and arguments."""
    return command.partition(" ")[0].rpartition("/")[2]


def _in_a_task_of(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs a step of a task, after which the loop runs what is ready. A signal
    handler may run while the loop sleeps; then there is no current task."""
    try:
        return asyncio.get_running_loop() is loop and asyncio.current_task() is not None
    except RuntimeError:
        return False
