"""A command that takes too much ends itself, and nobody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from bargein.cancel import CancelSource
from bargein.process import CommandLimits, Means, Network, Process, SandboxView, open_containment
from bargein.process.limits import open_limiter
from tests.process.conftest import CERTAIN
from tests.process.ordinary_user import as_ordinary_user

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(100)]

ROOT = os.geteuid() == 0
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
HOG = f"{PYTHON} -I -S -c 'x = bytearray(400 << 20)'; echo after"
# The shell can start nothing more once the bomb is there: it starts it as one process, and waits by
# itself.
BOMB = "exec 3< <(sleep 5); bomb() { bomb | bomb & }; bomb & read -t 0.3 -u 3; echo after"
MEMORY = CommandLimits(memory_bytes=64 << 20)
PROCESSES = CommandLimits(memory_bytes=64 << 20, processes=40)


async def ran(
    command: str, tmp_path: Path, means: Means, limits: CommandLimits, network: Network | None
) -> Process:
    async with await open_containment(means.value, limits=limits, network=network) as containment:
        report = containment.report.limits
        if limits.processes is not None and not report.processes:
            pytest.skip("nothing here limits processes")
        view = SandboxView(str(tmp_path)) if containment.report.sandbox.means else None
        with CancelSource("test", timeout_s=60) as source:
            process = await containment.spawn(
                ["bash", "-c", command],
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                token=source.token,
                view=view,
            )
            await process.wait()
            stopped = await process.stop()
            assert stopped.confirmed
            # The next command of the same containment is not concerned.
            other = await containment.spawn(
                ["sh", "-c", "echo fine"], cwd="/", env={}, token=source.token, view=view
            )
            await other.wait()
            assert other.output.text() == "fine\n"
            return process


@pytest.mark.parametrize("network", [None, "none"], ids=["outside", "sandbox"])
@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_a_memory_hog_ends_and_the_rest_goes_on(
    tmp_path: Path, means: Means, network: Network | None
) -> None:
    process = await ran(HOG, tmp_path, means, MEMORY, network)
    assert process.output.text().splitlines()[-1] == "after"
    killed = process.limits_reached == ("memory",)
    assert killed or "MemoryError" in process.output.text()


@pytest.mark.skipif(not ROOT, reason="without cgroups the limit is the whole user's")
@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_a_fork_bomb_stays_in_its_call(tmp_path: Path, means: Means) -> None:
    process = await ran(BOMB, tmp_path, means, PROCESSES, None)
    assert process.limits_reached == ("processes",)
    assert "after" in process.output.text()


async def test_cpu_time_and_file_size_are_limited(tmp_path: Path) -> None:
    limits = CommandLimits(cpu_s=1, file_bytes=1 << 16)
    process = await ran("exec 3<&0; while :; do :; done", tmp_path, CERTAIN[0], limits, None)
    assert process.exit is not None
    assert process.exit.signal in (24, 9)  # SIGXCPU; the kernel may go on to SIGKILL
    command = f"head -c 1000000 /dev/zero > {tmp_path}/big; echo $?"
    process = await ran(command, tmp_path, CERTAIN[0], limits, None)
    assert (tmp_path / "big").stat().st_size == 1 << 16


async def test_without_limits_nothing_is_made() -> None:
    limiter = open_limiter(CommandLimits(), None)
    assert limiter.make().directories == []
    assert limiter.rlimits == ()


async def test_nothing_of_the_limits_is_left_behind(tmp_path: Path) -> None:
    await ran("true", tmp_path, CERTAIN[0], PROCESSES, None)
    assert left_behind() == []


def left_behind() -> list[Path]:
    """Of the v1 hierarchies, if they are there."""
    names = [f"{controller}/**/bargein-{os.getpid()}-*" for controller in ("memory", "pids")]
    return [path for name in names for path in Path("/sys/fs/cgroup").glob(name)]


@pytest.mark.parametrize("wrong", [0, -1])
def test_limits_are_more_than_nothing(wrong: int) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        CommandLimits(processes=wrong)


USERS = """
import asyncio
from bargein.cancel import CancelSource
from bargein.process import CommandLimits, open_containment

async def main():
    limits = CommandLimits(memory_bytes=200 << 20)
    async with await open_containment("supervisor", limits=limits) as containment:
        with CancelSource("x") as source:
            process = await containment.spawn(
                ["sh", "-c", "ulimit -v"], cwd="/", env={}, token=source.token
            )
            await process.wait()
            print(containment.report.limits.memory, process.output.text().strip())

asyncio.run(main())
"""


async def test_an_ordinary_user_without_cgroups_has_rlimits() -> None:
    done = await anyio.run_process([*as_ordinary_user(), sys.executable, "-c", USERS], check=False)
    told = done.stdout.decode().strip()
    if told.startswith("cgroup"):
        pytest.skip("this user has cgroups of its own")
    assert told == f"rlimit {200 << 10}", done.stderr.decode()
