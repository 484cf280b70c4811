"""Where commands are started, and from where none escapes: one for an engine or a program.

It owns every process it started, until nobody of it is left: not the task that asked for it, nor
the one that waits for it. Closing it stops whatever is left, in bounded time.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from bargein.cancel import Token
from bargein.cancel._loops import keep_from_others
from bargein.process.cell import Cell, Holder, StillBorn
from bargein.process.doors import close_doors, open_doors
from bargein.process.errors import SpawnError
from bargein.process.order import Order, failure, make_order
from bargein.process.output import OnOutput
from bargein.process.own_processes import OwnProcesses
from bargein.process.probe import open_holder
from bargein.process.process import Process
from bargein.process.stdio import Stdio
from bargein.process.values import (
    CaptureLimits,
    ContainmentReport,
    Hiding,
    Input,
    Ladder,
    Means,
    MeansChoice,
    PtySize,
    StopReport,
)
from bargein.process.watch import Watch

_BIRTHS_TRIED: Final = 3
_BIRTH_S_MAX: Final = 3.0
_SPAWN_S_MAX: Final = 10.0
_CLOSE_EXTRA_S: Final = 1.0

_log = logging.getLogger(__name__)

OnStopped = Callable[[Process, StopReport], object]


async def open_containment(
    means: MeansChoice = "auto",
    *,
    home: Path | None = None,
    hiding: Hiding = Hiding(),  # noqa: B008 - frozen
    on_stopped: OnStopped | None = None,
) -> "Containment":
    """Find the best means that works here, or prepare the one that is named.

    `home` is a folder of ours that outlasts us, for notes that let the next start clean up after
    a kill. `hiding` names directories that commands must not see; what came of it is in the
    report. `on_stopped` hears of every process that was stopped.
    """
    watch = Watch(asyncio.get_running_loop())
    try:
        holder, report = await open_holder(watch, means, home, hiding)
    except BaseException:
        watch.close()
        raise
    return Containment(watch, holder, report, on_stopped)


class Containment:
    """`async with await open_containment() as containment:` or close it with `aclose`."""

    def __init__(
        self,
        watch: Watch,
        holder: Holder,
        report: ContainmentReport,
        on_stopped: OnStopped | None,
    ) -> None:
        self._watch = watch
        self._loop = watch.loop
        self._holder = holder
        self._on_stopped = on_stopped
        self._processes: set[Process] = set()
        self._nothing_held = asyncio.Event()
        self._nothing_held.set()
        self._closing: asyncio.Task[None] | None = None
        self._own: set[OwnProcesses] = set()
        self.report = report
        open_doors(self._loop)

    @property
    def means(self) -> Means:
        return self._holder.means

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those of which somebody is left."""
        return tuple(process for process in self._processes if process.alive)

    @property
    def own_processes(self) -> tuple[OwnProcesses, ...]:
        """Those of calls of which somebody is left, or may be."""
        return tuple(self._own)

    def own_processes_of(self, token: Token, ladder: Ladder = Ladder()) -> OwnProcesses:  # noqa: B008 - frozen
        """For the processes that the code of one call starts by itself: governed by `token`."""
        return OwnProcesses(
            self._loop,
            token,
            make_cell=self._holder.make_own_cell,
            give_way=self._watch.give_way,
            ladder=ladder,
            held=self._own,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        token: Token,
        pty: PtySize | None = None,
        stdin: Input = "null",
        output: CaptureLimits = CaptureLimits(),  # noqa: B008 - frozen
        on_output: OnOutput | None = None,
        ladder: Ladder = Ladder(),  # noqa: B008 - frozen
    ) -> Process:
        """Start a command. It is governed by `token`, and its whole environment is `env`.

        Raises `SpawnError` if it cannot be started, and `Cancelled` if the token is cancelled
        already: then nothing was started. If the token is cancelled while it starts, the process
        is given back with its stop under way. If the calling task is cancelled meanwhile, what
        was started is killed, and `on_stopped` hears of it.
        """
        order = make_order(argv, cwd=cwd, env=env, terminal=pty is not None)

        def make_process(cell: Cell) -> Process:
            stdio = Stdio(self._watch, pty=pty, stdin=stdin, limits=output, on_output=on_output)
            return Process(
                self._loop,
                cell,
                argv=tuple(argv),
                stdio=stdio,
                ladder=ladder,
                give_way=self._watch.give_way,
                on_stopped=self._stopped,
                on_released=self._released,
            )

        for tries_left in reversed(range(_BIRTHS_TRIED)):
            token.check()
            try:
                return await self._spawn_once(order, token, make_process)
            except StillBorn as still_born:
                if still_born.errno or not tries_left:
                    raise failure(order, "birth", still_born.errno or errno.EPIPE) from None
        raise AssertionError("unreachable")

    async def _spawn_once(
        self, order: Order, token: Token, make_process: Callable[[Cell], Process]
    ) -> Process:
        cell = await self._make_cell(order)
        try:
            process = make_process(cell)
        except OSError as error:
            cell.discard()
            raise failure(order, "descriptors", error.errno or 0) from error
        self._hold(process)
        try:
            process.govern(token)
            process.launch(order)
        except BaseException:
            cell.discard()
            process.never_started()
            raise
        await self._launched(process, order)
        return process

    async def _make_cell(self, order: Order) -> Cell:
        self._refuse_if_closed()
        try:
            async with asyncio.timeout(_BIRTH_S_MAX):
                cell = await self._holder.make_cell()
        except TimeoutError:
            # Nothing was started: another try, by another helper, is safe.
            self._holder.unstick()
            raise StillBorn from None
        except OSError as error:
            raise failure(order, "birth", error.errno or 0) from error
        try:
            self._refuse_if_closed()
        except RuntimeError:
            cell.discard()
            raise
        return cell

    async def _launched(self, process: Process, order: Order) -> None:
        """Whatever happens here, the process is registered and will be looked after."""
        try:
            async with asyncio.timeout(_SPAWN_S_MAX):
                await process.launched(order)
        except SpawnError:
            await process.settled()
            raise
        except TimeoutError:
            process.begin_stop(hurry=True)
            raise failure(order, "exec", errno.ETIMEDOUT) from None
        except BaseException:
            process.begin_stop(hurry=True)
            raise

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise RuntimeError("this containment is closed: no command can be started in it")

    async def aclose(self, ladder: Ladder = Ladder()) -> None:  # noqa: B008 - frozen
        """Stop what is left and give everything back. A cancel is held until that is done."""
        if self._closing is None:
            # A task of its own, in an empty context: it belongs to no caller.
            self._closing = Context().run(self._loop.create_task, self._close(ladder))
            keep_from_others(self._closing)
        held: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while not self._closing.done():
                try:
                    await asyncio.shield(self._closing)
                except asyncio.CancelledError as cancelled:
                    held = cancelled
        if held is not None:
            raise held

    async def _close(self, ladder: Ladder) -> None:
        bound_s = ladder.interrupt_s + ladder.terminate_s + ladder.kill_s + _CLOSE_EXTRA_S
        for process in self._processes:
            process.begin_stop(ladder)
        try:
            async with asyncio.timeout(bound_s):
                for own in self.own_processes:
                    await own.finish(hurry=True)
                await self._nothing_held.wait()
        except TimeoutError:
            _log.warning("could not be stopped, and is left behind: %s", self.processes)
        close_doors()
        await self._holder.close()
        self._watch.close()

    def _hold(self, process: Process) -> None:
        self._processes.add(process)
        self._nothing_held.clear()

    def _released(self, process: Process) -> None:
        self._processes.discard(process)
        if not self._processes:
            self._nothing_held.set()

    def _stopped(self, process: Process, report: StopReport) -> None:
        if self._on_stopped is not None:
            try:
                self._on_stopped(process, report)
            except Exception:  # boundary: whoever listens must not keep a stop from ending
                _log.exception("a listener to stops failed")
