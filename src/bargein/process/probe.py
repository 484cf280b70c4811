"""Finds the best means that works here, by really trying it.

That a directory can be made proves nothing: an ordinary user may be allowed to make a cgroup and
not to start a process in it. So each means has to hold and kill a real process.
"""

import asyncio
import errno
import sys
from pathlib import Path
from typing import Final

import anyio

from bargein.process.cell import Holder, StillBorn
from bargein.process.cgroup import CgroupHolder
from bargein.process.cgroup_files import (
    Instance,
    forget_what_is_gone,
    instances_around,
    own_directory,
)
from bargein.process.errors import MeansUnavailable, describe, errno_name
from bargein.process.group import GroupHolder
from bargein.process.helper import cgroups
from bargein.process.helper.wire import Message
from bargein.process.helper_process import HelperProcess
from bargein.process.question import Question
from bargein.process.supervisor import SupervisorHolder
from bargein.process.values import (
    Attempt,
    ContainmentReport,
    Hiding,
    HidingReport,
    Means,
    MeansChoice,
)
from bargein.process.watch import Watch

_TRY_S_MAX: Final = 5.0
_ANSWER_S_MAX: Final = 10.0


async def open_holder(
    watch: Watch, choice: MeansChoice, home: Path | None, hiding: Hiding
) -> tuple[Holder, ContainmentReport]:
    """Raises `MeansUnavailable` if a means was named and does not work."""
    wanted = list(Means) if choice == "auto" else [Means(choice)]
    attempts: list[Attempt] = []
    for means in wanted:
        try:
            holder, reaped, hidden = await _open(watch, means, home, hiding)
        except (OSError, StillBorn) as error:
            attempts.append(_failed(means, error))
            continue
        attempts.append(Attempt(means, True, means.promise))
        return holder, ContainmentReport(means, means.promise, tuple(attempts), reaped, hidden)
    tried = "; ".join(f"{attempt.means}: {attempt.detail}" for attempt in attempts)
    raise MeansUnavailable(
        f"commands cannot be contained as asked ({tried}); allow another means, or 'auto'"
    )


async def _open(
    watch: Watch, means: Means, home: Path | None, hiding: Hiding
) -> tuple[Holder, int, HidingReport]:
    """The holder, how many leftovers were cleaned up, and what is hidden."""
    if means is Means.GROUP:
        return GroupHolder(watch), 0, _not_hidden(hiding)
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "this needs Linux")
    if means is Means.SUPERVISOR:
        return await _open_supervisor(watch, hiding)
    return await _open_cgroup(watch, home, hiding)


async def _open_supervisor(
    watch: Watch, hiding: Hiding
) -> tuple[SupervisorHolder, int, HidingReport]:
    holder = SupervisorHolder(watch, HelperProcess(watch, hiding=hiding))
    try:
        async with asyncio.timeout(_TRY_S_MAX):
            cell = await holder.make_cell()
            await cell.discarded()
        hidden = await _hidden(watch, holder.helper, hiding)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await holder.close()
        raise
    holder.replenish()
    return holder, 0, hidden


async def _open_cgroup(
    watch: Watch, home: Path | None, hiding: Hiding
) -> tuple[CgroupHolder, int, HidingReport]:
    base = own_directory()
    others = instances_around(base, home)
    instance = Instance(base, home)
    directory = str(instance.directory)
    helper = HelperProcess(watch, lock=instance.lock, instance=directory, hiding=hiding)
    holder = CgroupHolder(watch, helper, instance)
    try:
        async with asyncio.timeout(_TRY_S_MAX):
            cell = await holder.make_cell()
            cgroups.kill(cell.directory)
            await cell.discarded()
        hidden = await _hidden(watch, helper, hiding)
        reaped = await _reap(watch, helper, others) if others else 0
        forget_what_is_gone(home)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await holder.close()
        raise
    holder.replenish()
    return holder, reaped, hidden


async def _reap(watch: Watch, helper: HelperProcess, directories: list[str]) -> int:
    """Kill what instances left behind whose owner and helper are both dead."""
    answer = await _ask(watch, helper, ("reap", directories))
    return int(answer[1]) if answer is not None else 0


async def _hidden(watch: Watch, helper: HelperProcess, hiding: Hiding) -> HidingReport:
    """Ask the helper what it hid, and hold every later helper to the same."""
    if not hiding.directories:
        return _not_hidden(hiding)
    answer = await _ask(watch, helper, ("hiding",))
    if answer is None:
        return HidingReport(hiding, detail="the helper did not answer")
    _, how, fenced, code = answer
    helper.expected = how
    return HidingReport(hiding, how, fenced, describe(code) if code else "")


def _not_hidden(hiding: Hiding) -> HidingReport:
    if not hiding.directories:
        return HidingReport(detail="nothing was to be hidden")
    return HidingReport(hiding, detail="commands are started without the helper that hides")


async def _ask(watch: Watch, helper: HelperProcess, message: Message) -> Message | None:
    answer: asyncio.Future[Message | None] = watch.loop.create_future()

    def on_answer(message: Message | None) -> None:
        if not answer.done():
            answer.set_result(message)

    Question(watch, on_answer).ask(helper, message)
    try:
        # Not `wait_for`: before Python 3.12 it forgets a cancel that comes with the answer.
        async with asyncio.timeout(_ANSWER_S_MAX):
            return await answer
    except TimeoutError:
        return None


def _failed(means: Means, error: OSError | StillBorn) -> Attempt:
    if isinstance(error, TimeoutError) and not error.errno:
        return Attempt(means, False, "trying it took too long", "ETIMEDOUT")
    code = error.errno
    if isinstance(error, StillBorn):
        text = describe(code) if code else "the helper died"
        return Attempt(means, False, f"starting a process failed: {text}", _name(code))
    where = f" ({error.filename})" if error.filename else ""
    return Attempt(means, False, f"{error.strerror or error}{where}", _name(code))


def _name(code: int | None) -> str | None:
    return errno_name(code) if code else None
