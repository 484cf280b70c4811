"""The sandbox: what it costs to start and to stop a command in it.

    ./dev bench sandbox [--quick]

A command outside and the same command in the sandbox, interleaved, run to exit and paced 30 ms
apart, as a session's commands are; and stopped, until the kernel has confirmed that nobody is left.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bargein.cancel import CancelSource, Cause
from bargein.process import Containment, Means, SandboxView, open_containment
from bargein.sandbox.command_sandbox import CommandSandbox
from bench.measure import Report, interleave_async

ENVIRONMENT = dict(os.environ)
START_BAR = 1.5
STOP_BAR = 1.2
PACE_S = 0.03

Sample = Callable[[], Awaitable[float]]


def started(containment: Containment, view: SandboxView | None, folder: str) -> Sample:
    """Until the command has run and nobody is left."""

    async def sample() -> float:
        with CancelSource("bench") as source:
            began = time.perf_counter()
            process = await containment.spawn(
                ["true"], cwd=folder, env=ENVIRONMENT, token=source.token, view=view
            )
            await process.wait()
            await process.settled()
            return time.perf_counter() - began

    return sample


def stopped(
    containment: Containment, view: SandboxView | None, folder: str, report: Report
) -> Sample:
    async def sample() -> float:
        with CancelSource("bench") as source:
            process = await containment.spawn(
                ["sleep", "600"], cwd=folder, env=ENVIRONMENT, token=source.token, view=view
            )
            await asyncio.sleep(0.005)
            began = time.perf_counter()
            source.cancel(Cause.USER_STOP)
            told = await process.stop()
            elapsed = time.perf_counter() - began
        if not told.confirmed:
            report.violation(f"a stop was not confirmed: {told}")
        return elapsed

    return sample


async def measure(report: Report, means: Means, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        private = stack.enter_context(tempfile.TemporaryDirectory())
        workspace = os.path.join(folder, "work")
        subprocess.run(["git", "init", "-q", workspace], check=True)  # noqa: ASYNC221 - nothing runs
        plain = await stack.enter_async_context(await open_containment(means.value))
        closed = await stack.enter_async_context(
            await open_containment(means.value, network="none")
        )
        if not closed.report.sandbox.means:
            report.note(f"{means}: no sandbox works here: {closed.report.sandbox.detail}")
            return
        view = CommandSandbox(closed, workspace, Path(private), ENVIRONMENT).view("bench")
        what = f"{means}, {closed.report.sandbox.means}"
        starts = {
            "outside": started(plain, None, workspace),
            "inside": started(closed, view, workspace),
        }
        for how, pause_s in (("paced 30 ms", PACE_S), ("back to back", 0.0)):
            samples = await interleave_async(starts, rounds=rounds, pause_s=pause_s)
            # Back to back no spare process is ready, inside or outside: a figure, without a bar.
            bar = START_BAR if pause_s else None
            measured = f"{what}: start, run to exit, {how}"
            report.compare(measured, samples, baseline="outside", ours="inside", bar=bar)
        stops = {
            "outside": stopped(plain, None, workspace, report),
            "inside": stopped(closed, view, workspace, report),
        }
        samples = await interleave_async(stops, rounds=rounds, pause_s=PACE_S)
        report.compare(f"{what}: a stop", samples, baseline="outside", ours="inside", bar=STOP_BAR)


async def main(report: Report, *, quick: bool) -> None:
    rounds = 20 if quick else 150
    chosen = (Means.CGROUP, Means.SUPERVISOR) if os.geteuid() == 0 else (Means.SUPERVISOR,)
    for means in chosen:
        await measure(report, means, rounds)


def run() -> int:
    report = Report("sandbox")
    before = os.getloadavg()
    asyncio.run(main(report, quick="--quick" in sys.argv[1:]))
    report.note(f"Load {before[0]:.1f} to {os.getloadavg()[0]:.1f}.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(run())
