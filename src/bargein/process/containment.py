"""Starts commands and services, contained. An engine or a program has one `Containment`.

It owns every process that it started until nobody of it is left; the tasks that asked for the
process or wait for it do not. Closing it stops all processes that are left, in bounded time. All
methods are called on the loop.
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
from bargein.process.enclosure import Backend, Enclosure, SpareLost
from bargein.process.errors import SpawnError
from bargein.process.exec_request import ExecRequest, make_exec_request, spawn_error
from bargein.process.fork_hooks import install_fork_hooks, remove_fork_hooks
from bargein.process.output import OnOutput
from bargein.process.own_processes import OwnProcesses
from bargein.process.probe import OnDemandBackend, open_backend
from bargein.process.process import Process
from bargein.process.service import SERVICE_LADDER, Service
from bargein.process.stdio import Stdio
from bargein.process.values import (
    CaptureLimits,
    CommandLimits,
    ContainmentReport,
    Hiding,
    Input,
    Ladder,
    Means,
    MeansChoice,
    Network,
    PtySize,
    SandboxChoice,
    SandboxView,
    StopReport,
)
from bargein.process.waiting import DescriptorWatch

_STARTS_TRIED: Final = 3
_SPARE_S_MAX: Final = 3.0
_SPAWN_S_MAX: Final = 10.0
_CLOSE_EXTRA_S: Final = 1.0

_log = logging.getLogger(__name__)

OnStopped = Callable[[Process, StopReport], object]


async def open_containment(
    means: MeansChoice = "auto",
    *,
    home: Path | None = None,
    hiding: Hiding = Hiding(),  # noqa: B008 - frozen
    network: Network | None = None,
    sandbox: SandboxChoice = "auto",
    limits: CommandLimits = CommandLimits(),  # noqa: B008 - frozen
    on_stopped: OnStopped | None = None,
) -> "Containment":
    """Find the best means that works here, or open the one that is named.

    `home` is a folder of ours, for notes by which the next start cleans up if we are killed.
    `hiding` names directories that commands must not see; the report says whether they are hidden.
    With a `network` every command runs in a sandbox that has it, by the best means or the one that
    `sandbox` names, and `spawn` needs a view. `limits` are for each command. The report says what
    holds. `on_stopped` is called for every process that was stopped. Raises `MeansUnavailable`.
    """
    watch = DescriptorWatch(asyncio.get_running_loop())
    try:
        backend, report = await open_backend(
            watch, means, home, hiding, f"{network}/{sandbox}" if network else "", limits
        )
    except BaseException:
        watch.close()
        raise
    return Containment(watch, backend, report, on_stopped)


def containment_when_needed(
    *,
    home: Path | None = None,
    hiding: Hiding = Hiding(),  # noqa: B008 - frozen
) -> "Containment":
    """Like `open_containment`, but opens nothing before the first process, which then pays for it.

    For programs that may never start a process: a helper takes a tenth of a second to start, and
    memory. Called on the loop. Its report names the means that promises least, because none was
    tried.
    """
    watch = DescriptorWatch(asyncio.get_running_loop())
    report = ContainmentReport(Means.GROUP, "nothing was tried: no process was needed yet", ())
    return Containment(watch, OnDemandBackend(watch, home, hiding), report, None)


class Containment:
    """`async with await open_containment() as containment:` or close it with `aclose`."""

    def __init__(
        self,
        watch: DescriptorWatch,
        backend: Backend,
        report: ContainmentReport,
        on_stopped: OnStopped | None,
    ) -> None:
        self._watch = watch
        self._loop = watch.loop
        self._backend = backend
        self._on_stopped = on_stopped
        self._processes: set[Process] = set()
        self._nothing_held = asyncio.Event()
        self._nothing_held.set()
        self._closing: asyncio.Task[None] | None = None
        self._own: set[OwnProcesses] = set()
        self.report = report
        install_fork_hooks(self._loop)

    @property
    def means(self) -> Means:
        return self._backend.means

    @property
    def processes(self) -> tuple[Process, ...]:
        """The commands that still have a process."""
        return tuple(process for process in self._processes if process.alive)

    @property
    def own_processes(self) -> tuple[OwnProcesses, ...]:
        """The own processes of calls that still have a process, or may have one."""
        return tuple(self._own)

    def own_processes_of(self, token: Token, ladder: Ladder = Ladder()) -> OwnProcesses:  # noqa: B008 - frozen
        """For the processes that the own code of one call starts. `token` stops them."""
        return OwnProcesses(
            self._loop,
            token,
            make_enclosure=self._backend.make_own_enclosure,
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
        view: SandboxView | None = None,
    ) -> Process:
        """Start a command. Cancelling `token` stops it. `env` is its whole environment. `view` is
        what it may touch, in a containment with a sandbox.

        Raises `SpawnError` if it cannot be started, and `Cancelled` if the token is cancelled
        already: then nothing was started. If the token is cancelled while it starts, this returns
        the process with its stop under way. If the calling task is cancelled while it starts, the
        process is killed and `on_stopped` is called.
        """
        self._check_view(view)
        request = make_exec_request(argv, cwd=cwd, env=env, terminal=pty is not None)

        def make_process(enclosure: Enclosure) -> Process:
            stdio = Stdio(self._watch, pty=pty, stdin=stdin, limits=output, on_output=on_output)
            return self._process(enclosure, argv, stdio, ladder)

        return await self._spawn(request, token, make_process, view)

    async def start_service(
        self,
        argv: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        token: Token,
        errors: CaptureLimits = CaptureLimits(),  # noqa: B008 - frozen
        ladder: Ladder = SERVICE_LADDER,
        view: SandboxView | None = None,
    ) -> Service:
        """Start a process that outlives calls, with pipes to its standard input and output.

        `token` is its owner's: cancelling it stops the service. `errors` is how much of its
        standard error is kept. Otherwise like `spawn`.
        """
        self._check_view(view)
        request = make_exec_request(argv, cwd=cwd, env=env, terminal=False)

        def make_process(enclosure: Enclosure) -> Process:
            stdio = Stdio(
                self._watch, pty=None, stdin="pipe", limits=errors, on_output=None, streams=True
            )
            return self._process(enclosure, argv, stdio, ladder, ends_with_first=True)

        return Service(await self._spawn(request, token, make_process, view))

    def _process(
        self,
        enclosure: Enclosure,
        argv: Sequence[str],
        stdio: Stdio,
        ladder: Ladder,
        *,
        ends_with_first: bool = False,
    ) -> Process:
        return Process(
            self._loop,
            enclosure,
            argv=tuple(argv),
            stdio=stdio,
            ladder=ladder,
            give_way=self._watch.give_way,
            on_stopped=self._stopped,
            on_released=self._released,
            ends_with_first=ends_with_first,
            sandbox=self.report.sandbox.means,
        )

    async def _spawn(
        self,
        request: ExecRequest,
        token: Token,
        make_process: Callable[[Enclosure], Process],
        view: SandboxView | None,
    ) -> Process:
        """A lost spare process means that nothing was started, so another try is safe."""
        for tries_left in reversed(range(_STARTS_TRIED)):
            token.check()
            try:
                return await self._spawn_once(request, token, make_process, view)
            except SpareLost as lost:
                if lost.errno or not tries_left:
                    raise spawn_error(request, "spare", lost.errno or errno.EPIPE) from None
        raise AssertionError("unreachable")

    async def _spawn_once(
        self,
        request: ExecRequest,
        token: Token,
        make_process: Callable[[Enclosure], Process],
        view: SandboxView | None,
    ) -> Process:
        enclosure = await self._make_enclosure(request, view)
        try:
            process = make_process(enclosure)
        except OSError as error:
            enclosure.discard()
            raise spawn_error(request, "descriptors", error.errno or 0) from error
        self._hold(process)
        try:
            process.govern(token)
            process.launch(request)
        except BaseException:
            enclosure.discard()
            process.never_started()
            raise
        await self._launched(process, request)
        return process

    async def _make_enclosure(self, request: ExecRequest, view: SandboxView | None) -> Enclosure:
        self._refuse_if_closed()
        try:
            async with asyncio.timeout(_SPARE_S_MAX):
                enclosure = await self._backend.make_enclosure(view)
        except TimeoutError:
            # Nothing was started, so another try with another helper is safe.
            self._backend.restart_helper()
            raise SpareLost from None
        except OSError as error:
            raise spawn_error(request, "spare", error.errno or 0) from error
        try:
            self._refuse_if_closed()
        except RuntimeError:
            enclosure.discard()
            raise
        return enclosure

    async def _launched(self, process: Process, request: ExecRequest) -> None:
        """Whatever happens here, the containment owns the process and its stop."""
        try:
            async with asyncio.timeout(_SPAWN_S_MAX):
                await process.launched(request)
        except (SpawnError, SpareLost):
            await process.settled()
            raise
        except TimeoutError:
            process.begin_stop(hurry=True)
            raise spawn_error(request, "exec", errno.ETIMEDOUT) from None
        except BaseException:
            process.begin_stop(hurry=True)
            raise

    def _check_view(self, view: SandboxView | None) -> None:
        if (view is None) == bool(self.report.sandbox.means):
            raise ValueError(
                "a command in a sandbox needs a view, and only such a command has one; this "
                f"containment's sandbox is {self.report.sandbox.means or 'off'}"
            )

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise RuntimeError("this containment is closed: no command can be started in it")

    async def aclose(self, ladder: Ladder = Ladder()) -> None:  # noqa: B008 - frozen
        """Stop what is left and give everything back. A cancel is raised when that is done."""
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
        bound_s = ladder.total_s + _CLOSE_EXTRA_S
        for process in self._processes:
            process.begin_stop(ladder)
        try:
            async with asyncio.timeout(bound_s):
                for own in self.own_processes:
                    await own.finish(hurry=True)
                await self._nothing_held.wait()
        except TimeoutError:
            _log.warning("these processes could not be stopped and are left: %s", self.processes)
        remove_fork_hooks()
        await self._backend.close()
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
            except Exception:  # boundary: a listener must not keep a stop from ending
                _log.exception("a listener to stops failed")
