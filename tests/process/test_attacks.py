"""Commands that turn against what holds them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bargein.cancel import CancelSource, Cause
from bargein.process import CaptureLimits, Containment, Ladder, Means
from bargein.process.cgroup_instance import own_directory
from tests.process import zoo
from tests.process.conftest import CERTAIN
from tests.process.keeper import SHORT, Said

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

# Bounded: sixteen chains, each of them a process at a time, for a few seconds.
BOMB = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
end = time.monotonic() + 15
for depth in range(4):
    if os.fork() == 0 and depth % 2: os.setsid()
os.write(1, b"ready\\n")
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    time.sleep(0.02)
"""

KILLS_ITS_PARENT = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    os.write(1, b"ready\\n")
    time.sleep(120)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(120)
"""

CLOSES_EVERYTHING = """
import os, time
os.write(1, b"ready\\n")
os.closerange(0, 4096)
os.chdir("/")
os.setsid() if os.fork() == 0 else None
time.sleep(120)
"""

STOPS_ITS_SUPERVISOR = """
import os, signal, time
os.kill(os.getppid(), signal.SIGSTOP)
os.write(1, b"ready\\n")
time.sleep(120)
"""


async def attack(
    containment: Containment, program: str, source: CancelSource
) -> tuple[str, Said, object]:
    mark = zoo.new_mark()
    said = Said()
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-E", "-c", program],
        cwd="/",
        env=zoo.environment(mark),
        token=source.token,
        on_output=said.hear,
        output=CaptureLimits(1024, 1024),
        ladder=SHORT,
    )
    await said.wait_for(b"ready")
    return mark, said, process


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_a_fork_bomb(means: Means, containment: Containment, source: CancelSource) -> None:
    mark, said, _process = await attack(containment, BOMB, source)
    while said.text.count(b"ready") < 16:  # noqa: ASYNC110 - until it has gone off
        await asyncio.sleep(0.001)
    (process,) = containment.processes
    source.cancel(Cause.USER_STOP)
    report = await process.stop()
    assert report.confirmed
    assert zoo.alive(mark) == []


async def test_one_that_closes_everything(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    mark, _said, _process = await attack(containment, CLOSES_EVERYTHING, source)
    (process,) = containment.processes
    report = await process.stop()
    if means is Means.GROUP:
        zoo.put_down(mark)
    else:
        assert report.confirmed
    assert zoo.alive(mark) == []


@pytest.mark.parametrize("means", [Means.SUPERVISOR], ids=str)
async def test_one_that_kills_its_supervisor(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    """It loses: the helper inherits it and all it started."""
    mark = zoo.new_mark()
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-E", "-c", KILLS_ITS_PARENT],
        cwd="/",
        env=zoo.environment(mark),
        token=source.token,
    )
    await process.settled()
    assert zoo.alive(mark) == []
    assert (await process.stop()).confirmed


@pytest.mark.parametrize("means", [Means.SUPERVISOR], ids=str)
async def test_one_that_stops_its_supervisor(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    """It gains the time until the kill, which wakes the supervisor first."""
    mark, _said, _process = await attack(containment, STOPS_ITS_SUPERVISOR, source)
    (process,) = containment.processes
    report = await process.stop()
    assert report.confirmed
    assert zoo.alive(mark) == []


async def test_one_that_signals_its_own_group_and_parent(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    """kill 0 reaches the command's own group and nobody of ours."""
    process = await containment.spawn(
        ["sh", "-c", "kill -TERM 0"], cwd="/", env={"PATH": os.defpath}, token=source.token
    )
    assert (await process.wait()).signal == signal.SIGTERM
    again = await containment.spawn(["true"], cwd="/", env={}, token=source.token)
    assert (await again.wait()).code == 0


@pytest.mark.parametrize("means", [means for means in CERTAIN if means is Means.CGROUP], ids=str)
@pytest.mark.parametrize("where", ["inside", "outside"])
async def test_one_that_moves_to_another_cgroup(
    means: Means, containment: Containment, source: CancelSource, where: str
) -> None:
    """As root a command may. What it makes inside its own goes with it; and though it moves out,
    its first process is still known."""
    program = f"""
import os, time
own = open("/proc/self/cgroup").read().rpartition("0::")[2].strip()
here = "{_mount_point()}" + own + ("" if "{where}" == "inside" else "-outside")
os.makedirs(here + "/a/b", exist_ok=True)
open(here + "/a/b/cgroup.procs", "w").write("0")
os.write(1, b"ready\\n")
time.sleep(120)
"""
    mark, _said, _process = await attack(containment, program, source)
    (process,) = containment.processes
    assert (await process.stop(hurry=True)).confirmed
    assert zoo.alive(mark) == []


def _mount_point() -> str:
    own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
    return str(own_directory()).removesuffix(own).rstrip("/")


# Each moves out of its cgroup, as root may, and starts somebody there in a session of its own.
MOVES_OUT = """
import os, signal, sys, time
base = sys.argv[1]
def leave():
    with open(base + "/cgroup.procs", "w") as procs:
        procs.write("0")
def stay():
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"%d ready\\n" % os.getpid())
    time.sleep(120)
"""
LEAVERS = {
    "with its child": "leave()\nif os.fork() == 0: stay()\ntime.sleep(120)",
    "its child alone": "if os.fork() == 0:\n    leave()\n    stay()\ntime.sleep(120)",
    "an orphan": (
        "leave()\nif os.fork() == 0:\n    if os.fork() == 0: stay()\n    os._exit(0)\n"
        "os.wait()\ntime.sleep(120)"
    ),
    "a child without an environment": (
        "leave()\nif os.fork() == 0:\n    os.setsid()\n"
        "    os.write(1, b'%d ready\\n' % os.getpid())\n"
        "    os.execve('/bin/sleep', ['sleep', '120'], {})\ntime.sleep(120)"
    ),
}


@pytest.mark.parametrize("means", [Means.CGROUP] if Means.CGROUP in CERTAIN else [], ids=str)
@pytest.mark.parametrize("kind", LEAVERS)
async def test_whoever_left_the_cgroup_is_ended_and_named(
    containment: Containment, source: CancelSource, kind: str
) -> None:
    said = Said()
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-c", MOVES_OUT + LEAVERS[kind], str(own_directory())],
        cwd="/",
        env={},
        token=source.token,
        on_output=said.hear,
        ladder=SHORT,
    )
    await said.wait_for(b"ready")
    left = int(said.text.split()[0])
    source.cancel(Cause.USER_STOP)
    report = await process.stop()
    assert not zoo.runs(left)
    assert report.confirmed
    assert left in {each.pid for each in report.processes}


@pytest.mark.parametrize("means", [Means.CGROUP] if Means.CGROUP in CERTAIN else [], ids=str)
async def test_what_a_command_left_outside_when_it_ended_is_found_by_the_sweep(
    containment: Containment, source: CancelSource
) -> None:
    said = Said()
    program = MOVES_OUT + "leave()\nif os.fork() == 0: stay()\n"
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-c", program, str(own_directory())],
        cwd="/",
        env={},
        token=source.token,
        on_output=said.hear,
        ladder=SHORT,
    )
    await said.wait_for(b"ready")
    left = int(said.text.split()[0])
    assert (await process.wait()).code == 0
    assert process.alive
    report = await process.stop()
    assert not zoo.runs(left)
    assert report.confirmed
    assert left in {each.pid for each in report.processes}


def can_mark() -> bool:
    program = (
        "from bargein.process.helper.spare import may_be_marked as may; raise SystemExit(not may())"
    )
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# It left, it is nobody's child, and its environment is empty.
WITHOUT_A_TRACE = """
leave()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.write(1, b'%d ready\\n' % os.getpid())
        os.execve('/bin/sleep', ['sleep', '120'], {})
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("means", [Means.CGROUP] if Means.CGROUP in CERTAIN else [], ids=str)
@pytest.mark.parametrize("leader", ["stays", "ends"])
@pytest.mark.skipif(not can_mark(), reason="this kernel or this user has no time namespaces")
async def test_whoever_left_without_a_trace_is_ended_and_named(
    containment: Containment, source: CancelSource, leader: str
) -> None:
    said = Said()
    program = MOVES_OUT + WITHOUT_A_TRACE + ("time.sleep(120)" if leader == "stays" else "")
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-c", program, str(own_directory())],
        cwd="/",
        env={},
        token=source.token,
        on_output=said.hear,
        ladder=SHORT,
    )
    await said.wait_for(b"ready")
    left = int(said.text.split()[0])
    if leader == "ends":
        await process.wait()
        assert process.alive
    source.cancel(Cause.USER_STOP)
    report = await process.stop()
    assert not zoo.runs(left)
    assert report.confirmed
    assert left in {each.pid for each in report.processes}


@pytest.mark.parametrize("means", [Means.CGROUP] if Means.CGROUP in CERTAIN else [], ids=str)
async def test_whoever_leaves_when_it_is_signalled_is_ended_and_named(
    containment: Containment, source: CancelSource
) -> None:
    """By then it is held as a member, and its cgroup becomes empty while it lives."""
    said = Said()
    program = MOVES_OUT + (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(signal.SIGTERM, lambda number, frame: leave())\n"
        "    os.write(1, b'%d ready\\n' % os.getpid())\n"
        "    while True: time.sleep(120)\n"
    )
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-c", program, str(own_directory())],
        cwd="/",
        env={},
        token=source.token,
        on_output=said.hear,
        ladder=Ladder(interrupt_s=0.05, terminate_s=0.5, kill_s=15),
    )
    await said.wait_for(b"ready")
    left = int(said.text.split()[0])
    await process.wait()
    source.cancel(Cause.USER_STOP)
    report = await process.stop()
    assert not zoo.runs(left)
    assert report.confirmed
    assert {each.pid: each.ended_by for each in report.processes}[left] == "SIGKILL"
