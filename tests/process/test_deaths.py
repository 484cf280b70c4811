"""Nobody survives when Bargein is killed, or its helper, or both; and no stranger is touched.

Bargein is a program of its own here (`owner.py`), so that it can be killed with SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bargein.cancel import CancelSource
from bargein.process import (
    Containment,
    ContainmentReport,
    Means,
    Process,
    helper_process,
    open_containment,
)
from bargein.process.supervisor import SupervisorBackend
from bargein.process.waiting import DescriptorWatch
from tests.process import zoo
from tests.process.conftest import CERTAIN, MEANS
from tests.process.keeper import SHORT, Kept, keep
from tests.process.zoo import ZOO

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(40)]

OWNER = Path(__file__).with_name("owner.py")
KINDS = ["daemon", "deaf", "frozen", "chain", "shell", "pipe_holder"]


class Owner:
    """A program that has commands running: says its helper's pid, then is at our mercy."""

    def __init__(self, means: Means, home: Path) -> None:
        self.mark = zoo.new_mark()
        self.process = subprocess.Popen(
            [sys.executable, str(OWNER), means.value, self.mark, str(home), *KINDS],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self.helper = int(self.process.stdout.readline() or b"0")
        assert self.helper
        self.stdout = self.process.stdout

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        zoo.put_down(self.mark)


@pytest.fixture
def start_owner(tmp_path: Path) -> Iterator[Callable[[Means], Owner]]:
    owners: list[Owner] = []

    def start(means: Means) -> Owner:
        owners.append(Owner(means, tmp_path))
        return owners[-1]

    yield start
    for owner in owners:
        owner.end()


async def nobody_left(mark: str) -> None:
    """Bounded by the test's own time limit."""
    while zoo.alive(mark):  # noqa: ASYNC110 - seen from outside, where there is no event
        await asyncio.sleep(0.01)


async def is_gone(pid: int) -> None:
    """Bounded by the test's own time limit."""
    while _runs(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def kill_with_helper(owner: Owner) -> None:
    """Waits until both are dead: a dying process still holds its lock."""
    os.kill(owner.helper, signal.SIGKILL)
    owner.process.kill()
    owner.process.wait()
    await is_gone(owner.helper)


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_bargein_is_killed(means: Means, start_owner: Callable[[Means], Owner]) -> None:
    owner, other = start_owner(means), start_owner(means)
    assert len(zoo.alive(owner.mark)) > len(KINDS)
    owner.process.kill()
    await nobody_left(owner.mark)
    assert len(zoo.alive(other.mark)) > len(KINDS)
    # The helper goes too, and takes its cgroups with it.
    await is_gone(owner.helper)


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_bargein_and_its_helper_are_killed(
    means: Means, start_owner: Callable[[Means], Owner], tmp_path: Path
) -> None:
    owner, other = start_owner(means), start_owner(means)
    await kill_with_helper(owner)
    async with await open_containment(means.value, home=tmp_path):
        await nobody_left(owner.mark)
    assert len(zoo.alive(other.mark)) > len(KINDS)


@pytest.mark.parametrize("means", [means for means in CERTAIN if means is Means.CGROUP], ids=str)
async def test_many_start_at_once_after_a_crash(
    means: Means, start_owner: Callable[[Means], Owner], tmp_path: Path
) -> None:
    owner = start_owner(means)
    await kill_with_helper(owner)
    (note,) = os.listdir(tmp_path / "cgroups")
    opened = await asyncio.gather(*(open_containment(means.value, home=tmp_path) for _ in range(4)))
    for each in opened:
        await each.aclose()
    await nobody_left(owner.mark)
    async with await open_containment(means.value, home=tmp_path):
        assert note not in os.listdir(tmp_path / "cgroups")
    assert os.listdir(tmp_path / "cgroups") == []


def helper_of(containment: Containment) -> int:
    pid = containment._backend.helper.pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_the_helper_is_killed(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    """What runs goes on, and can be stopped; new commands start with another helper."""
    kept = [await keep(containment, ZOO[name], source.token) for name in KINDS]
    old = helper_of(containment)
    os.kill(old, signal.SIGKILL)
    # The first may still be a spare process of the old helper's.
    kept += [await keep(containment, ZOO["daemon"], source.token) for _ in range(2)]
    assert helper_of(containment) != old
    for each in kept:
        assert each.process.alive
        assert not each.process.stopping
    for each in kept:
        assert (await each.process.stop()).confirmed
        assert zoo.alive(each.mark) == []


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_the_helper_is_killed_while_commands_start(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    for turns in range(10):
        starting = [
            asyncio.create_task(
                containment.spawn(["echo", "x"], cwd="/", env={}, token=source.token)
            )
            for _ in range(4)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        helper = containment._backend.helper.pid  # type: ignore[attr-defined]
        if helper is not None:
            os.kill(helper, signal.SIGKILL)
        for process in await asyncio.gather(*starting):
            await process.wait()
            assert process.output.head == b"x\n"
            await process.settled()


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_the_helper_hangs(
    means: Means,
    containment: Containment,
    source: CancelSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A helper that was stopped is given up after a while, and the next one serves."""
    from bargein.process import containment as module

    monkeypatch.setattr(module, "_SPARE_S_MAX", 1.5)
    first = await containment.spawn(["true"], cwd="/", env={}, token=source.token)
    await first.settled()
    os.kill(helper_of(containment), signal.SIGSTOP)
    for _ in range(3):
        process = await containment.spawn(["true"], cwd="/", env={}, token=source.token)
        assert (await process.wait()).code == 0
        await process.settled()


@pytest.mark.parametrize("means", [Means.SUPERVISOR])
async def test_a_supervisor_is_killed(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    """By the command itself, say. Its orphans are the helper's, which kills them all."""
    kept = [await keep(containment, ZOO[name], source.token) for name in KINDS]
    untouched = await keep(containment, ZOO["family"], source.token)
    for each in kept:
        os.kill(_supervisor_of(each.process), signal.SIGKILL)
    for each in kept:
        await each.process.settled()
        assert zoo.alive(each.mark) == []
        assert (await each.process.stop()).confirmed
    assert len(zoo.alive(untouched.mark)) == 3


async def test_a_supervisor_is_known_before_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, source: CancelSource
) -> None:
    """Its command may be quicker than it is, and kill it: here it sleeps until it is spoken to."""
    slow = """
import select
from bargein.process.helper import supervisor
run = supervisor._Supervisor.run
supervisor._Supervisor.run = lambda self: (select.select([self._control], [], []), run(self))
main(*map("""
    program = helper_process._PROGRAM.replace("main(*map(", slow.lstrip())
    monkeypatch.setattr(helper_process, "_PROGRAM", program)
    watch = DescriptorWatch(asyncio.get_running_loop())
    backend = SupervisorBackend(watch, helper_process.HelperProcess(watch))
    report = ContainmentReport(Means.SUPERVISOR, Means.SUPERVISOR.promise, ())
    async with Containment(watch, backend, report, None) as containment:
        kept = await keep(containment, ZOO["family"], source.token)
        os.kill(_supervisor_of(kept.process), signal.SIGKILL)
        await kept.process.settled()
        assert zoo.alive(kept.mark) == []
        assert (await kept.process.stop()).confirmed


@pytest.mark.parametrize("means", [Means.SUPERVISOR])
async def test_helper_and_supervisor_are_killed(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    """Then nobody can know, and the report does not claim to."""
    kept = await keep(containment, ZOO["family"], source.token)
    os.kill(helper_of(containment), signal.SIGKILL)
    first = await keep(containment, ZOO["sleeper"], source.token)
    other = await keep(containment, ZOO["sleeper"], source.token)
    os.kill(_supervisor_of(kept.process), signal.SIGKILL)
    await kept.process.settled()
    assert not (await kept.process.stop()).confirmed
    zoo.put_down(kept.mark)
    for each in (first, other):
        assert (await each.process.stop()).confirmed


async def test_the_owner_of_another_containment_is_not_touched(means: Means) -> None:
    assert means in MEANS
    source = CancelSource("call")
    one, other = await open_containment(means.value), await open_containment(means.value)
    kept: list[Kept] = [await keep(each, ZOO["family"], source.token) for each in (one, other)]
    await one.aclose(SHORT)
    assert zoo.alive(kept[0].mark) == []
    assert len(zoo.alive(kept[1].mark)) == 3
    await other.aclose(SHORT)
    assert zoo.alive(kept[1].mark) == []


def _supervisor_of(process: Process) -> int:
    pid = process._enclosure._supervisor  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    assert pid > 1
    return pid


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
