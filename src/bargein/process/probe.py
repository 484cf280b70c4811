"""Finds the best means that works here by really trying it, at once or when first needed.

That a directory can be made proves nothing: an ordinary user may be allowed to make a cgroup but
not to start a process in it. So each means has to hold and kill a real process.
"""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import anyio

from bargein.process.cgroup import CgroupBackend
from bargein.process.cgroup_instance import (
    Instance,
    forget_what_is_gone,
    instances_around,
    own_directory,
)
from bargein.process.enclosure import Backend, Enclosure, SpareLost
from bargein.process.errors import MeansUnavailable, describe, errno_name
from bargein.process.fork_hooks import unowned
from bargein.process.group import GroupBackend
from bargein.process.helper import cgroups
from bargein.process.helper.wire import Message
from bargein.process.helper_process import HelperProcess
from bargein.process.limits import open_limiter
from bargein.process.own_enclosures import OwnEnclosure
from bargein.process.supervisor import SupervisorBackend
from bargein.process.values import (
    CommandLimits,
    ContainmentReport,
    Hiding,
    HidingReport,
    LimitsReport,
    Means,
    MeansAttempt,
    MeansChoice,
    SandboxReport,
    SandboxView,
)
from bargein.process.waiting import DescriptorWatch

_TRY_S_MAX: Final = 5.0
_ANSWER_S_MAX: Final = 10.0
_TRY_AT_ONCE_S_MAX: Final = 2.0


async def open_backend(
    watch: DescriptorWatch,
    choice: MeansChoice,
    home: Path | None,
    hiding: Hiding,
    network: str = "",
    limits: CommandLimits = CommandLimits(),  # noqa: B008 - frozen
) -> tuple[Backend, ContainmentReport]:
    """Raises `MeansUnavailable` if a means was named and does not work. A cancel closes what was
    opened."""
    wanted = list(Means) if choice == "auto" else [Means(choice)]
    attempts: list[MeansAttempt] = []
    for means in wanted:
        if means is Means.CGROUP and network and os.geteuid() != 0:
            # Its helper would have to come back from the pid namespaces that it makes.
            attempts.append(MeansAttempt(means, False, "a sandbox in a cgroup takes root"))
            continue
        try:
            backend, reaped, seen = await _open(watch, means, home, hiding, network, limits)
        except (OSError, SpareLost) as error:
            attempts.append(_failed(means, error))
            continue
        attempts.append(MeansAttempt(means, True, means.promise))
        return backend, ContainmentReport(means, means.promise, tuple(attempts), reaped, *seen)
    tried = "; ".join(f"{attempt.means}: {attempt.detail}" for attempt in attempts)
    raise MeansUnavailable(
        f"commands cannot be contained as asked ({tried}); allow another means, or 'auto'"
    )


async def _open(
    watch: DescriptorWatch,
    means: Means,
    home: Path | None,
    hiding: Hiding,
    network: str,
    limits: CommandLimits,
) -> tuple[Backend, int, tuple[HidingReport, SandboxReport, LimitsReport]]:
    """Returns the backend, how many leftovers were cleaned up, what is hidden, the sandbox, and how
    limits are held."""
    if means is Means.GROUP:
        why = "commands are started without the helper that closes them in"
        return (
            GroupBackend(watch),
            0,
            (
                _not_hidden(hiding),
                SandboxReport(detail=why),
                LimitsReport(limits),
            ),
        )
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "this needs Linux")
    if means is Means.SUPERVISOR:
        return await _open_supervisor(watch, hiding, network, limits)
    return await _open_cgroup(watch, home, hiding, network, limits)


async def _open_supervisor(
    watch: DescriptorWatch, hiding: Hiding, network: str, limits: CommandLimits
) -> tuple[SupervisorBackend, int, tuple[HidingReport, SandboxReport, LimitsReport]]:
    limiter = open_limiter(limits, None)
    helper = HelperProcess(watch, hiding=hiding, network=network)
    backend = SupervisorBackend(watch, helper, limiter)
    try:
        async with asyncio.timeout(_TRY_S_MAX):
            enclosure = await backend.make_enclosure()
            await enclosure.discarded()
        seen = await _seen(watch, backend.helper)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await backend.close()
        raise
    backend.replenish()
    return backend, 0, (*seen, limiter.report)


async def _open_cgroup(
    watch: DescriptorWatch,
    home: Path | None,
    hiding: Hiding,
    network: str,
    limits: CommandLimits,
) -> tuple[CgroupBackend, int, tuple[HidingReport, SandboxReport, LimitsReport]]:
    base = own_directory()
    others = instances_around(base, home)
    instance = Instance(base, home)
    directory = str(instance.directory)
    helper = HelperProcess(
        watch, lock=instance.lock, instance=directory, hiding=hiding, network=network
    )
    backend = CgroupBackend(watch, helper, instance, open_limiter(limits, directory))
    try:
        async with asyncio.timeout(_TRY_S_MAX):
            enclosure = await backend.make_enclosure()
            cgroups.kill(enclosure.directory)
            await enclosure.discarded()
        seen = await _seen(watch, helper)
        reaped = await _reap(watch, helper, others) if others else 0
        forget_what_is_gone(home)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await backend.close()
        raise
    backend.replenish()
    return backend, reaped, (*seen, backend.limiter.report)


async def _reap(watch: DescriptorWatch, helper: HelperProcess, directories: list[str]) -> int:
    """Kill the processes of instances whose owner and helper are both dead."""
    answer = await _ask(watch, helper, ("reap", directories))
    return int(answer[1]) if answer is not None else 0


async def _seen(
    watch: DescriptorWatch, helper: HelperProcess
) -> tuple[HidingReport, SandboxReport]:
    """Ask the helper what it hid and how it closes commands in, and require the same of every later
    helper."""
    hiding = helper.hiding
    if not hiding.directories and not helper.network:
        return _not_hidden(hiding), SandboxReport(detail="no sandbox was asked for")
    hidden = await _ask(watch, helper, ("hiding",))
    closed_in = await _ask(watch, helper, ("sandbox",))
    if hidden is None or closed_in is None:
        why = "the helper did not answer"
        return HidingReport(hiding, detail=why), SandboxReport(detail=why)
    _, how, fenced, code = hidden
    _, means, sandbox_code = closed_in
    helper.expected = f"{how}/{means}"
    detail = describe(sandbox_code) if sandbox_code else ""
    sandbox = SandboxReport(means, helper.network.partition("/")[0] if means else "", detail)
    if not hiding.directories:
        return _not_hidden(hiding), sandbox
    return HidingReport(hiding, how, fenced, describe(code) if code else ""), sandbox


def _not_hidden(hiding: Hiding) -> HidingReport:
    if not hiding.directories:
        return HidingReport(detail="nothing was to be hidden")
    return HidingReport(hiding, detail="commands are started without the helper that hides")


async def _ask(watch: DescriptorWatch, helper: HelperProcess, message: Message) -> Message | None:
    answer: asyncio.Future[Message | None] = watch.loop.create_future()

    def on_answer(message: Message | None) -> None:
        if not answer.done():
            answer.set_result(message)

    helper.ask(message, on_answer)
    try:
        # Not `wait_for`: before Python 3.12 it loses a cancel that comes with the answer.
        async with asyncio.timeout(_ANSWER_S_MAX):
            return await answer
    except TimeoutError:
        return None


def _failed(means: Means, error: OSError | SpareLost) -> MeansAttempt:
    if isinstance(error, TimeoutError) and not error.errno:
        return MeansAttempt(means, False, "trying it took too long", "ETIMEDOUT")
    code = error.errno
    if isinstance(error, SpareLost):
        text = describe(code) if code else "the helper died"
        return MeansAttempt(means, False, f"starting a process failed: {text}", _name(code))
    where = f" ({error.filename})" if error.filename else ""
    return MeansAttempt(means, False, f"{error.strerror or error}{where}", _name(code))


def _name(code: int | None) -> str | None:
    return errno_name(code) if code else None


class OnDemandBackend:
    """Opens nothing before the first process, which pays for it:

    - a command waits until the best means has been found by trying;
    - a call's own code forks in any thread and cannot wait. For it a cgroup is tried on the spot,
      and if that does not work its processes are swept (`own_enclosures.OwnSweep`).
    """

    def __init__(self, watch: DescriptorWatch, home: Path | None, hiding: Hiding) -> None:
        self._watch = watch
        self._home = home
        self._hiding = hiding
        self._for_commands: Backend | None = None
        self._for_own: Backend | None = None
        self._opening = asyncio.Lock()
        self._trying = threading.Lock()

    @property
    def means(self) -> Means:
        backend = self._for_commands or self._for_own
        return backend.means if backend is not None else Means.GROUP

    async def make_enclosure(self, view: SandboxView | None = None) -> Enclosure:
        async with self._opening:
            if self._for_commands is None:
                self._for_commands, _ = await open_backend(
                    self._watch, "auto", self._home, self._hiding
                )
        return await self._for_commands.make_enclosure(view)

    def make_own_enclosure(self) -> OwnEnclosure:
        backend = self._for_commands or self._for_own
        if backend is None:
            with self._trying:
                backend = self._for_own = self._for_own or self._open_for_own()
        return backend.make_own_enclosure()

    def restart_helper(self) -> None:
        if self._for_commands is not None:
            self._for_commands.restart_helper()

    async def close(self) -> None:
        for backend in (self._for_commands, self._for_own):
            if backend is not None:
                await backend.close()

    def _open_for_own(self) -> Backend:
        if sys.platform == "linux":
            try:
                return self._open_cgroup()
            except OSError:
                pass  # we may not use one; `bargein doctor` says why
        return GroupBackend(self._watch)

    def _open_cgroup(self) -> CgroupBackend:
        base = own_directory()
        others = instances_around(base, self._home)
        instance = Instance(base, self._home)
        try:
            _try_at_once(str(instance.directory))
            cgroups.reap_free_instances(others)
            helper = HelperProcess(
                self._watch, lock=instance.lock, instance=str(instance.directory)
            )
            # It starts no process; it is there to kill them all if we are killed.
            helper.begin()
        except BaseException:
            instance.close()
            raise
        return CgroupBackend(self._watch, helper, instance)


def _try_at_once(instance: str) -> None:
    """Raises OSError if a process cannot be put into a cgroup here, or is not killed by it."""
    with unowned():
        child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
    try:
        with open(f"{instance}/cgroup.procs", "w") as procs:
            procs.write(str(child.pid))
        cgroups.kill(instance)
        child.wait(_TRY_AT_ONCE_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise OSError("a process that was put into a cgroup was not killed by it") from error
    finally:
        child.kill()
        child.communicate()
