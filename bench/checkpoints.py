"""What snapshots cost: by the number of files, and in the stop of a turn.

    ./dev bench checkpoints

For each size: the first snapshot, one of an unchanged folder, one after one file changed, and the
undo of that. Then stops of a turn that runs a command, with snapshots of 10,000 files and without;
the bar is 1.1 times. Sizes may be given: `./dev bench checkpoints 1000`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import count
from pathlib import Path

import anyio

from bargein import Agent, Engine
from bargein.checkpoints.plan import plan_undo
from bargein.checkpoints.repository import Repository
from bargein.checkpoints.restore import restore
from bargein.checkpoints.snapshot import take
from bargein.contracts.live import CallOutput, OutputSoFar
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import load_config
from bench.measure import Report, interleave_async

SIZES = (1_000, 10_000, 100_000)
REPEATS = 5
STOPS = 40
STOP_BAR = 1.1
REST_S = 0.3
STOPS_FILES = 10_000


def _fill(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"d{number // 1000}" / f"e{number // 50 % 20}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 20)


def _sizes(place: Path, size: int, report: Report) -> None:
    work = place / "work"
    _fill(work, size)
    with Repository.open(place / "kept", work) as repository:
        first = _timed(lambda: take(repository))
        same = statistics.median(_timed(lambda: take(repository)) for _ in range(REPEATS))
        changed, undone = [], []
        for number in range(REPEATS):
            before = take(repository)
            (work / "d0" / "e0" / "0.txt").write_text(f"changed {number}")
            changed.append(_timed(lambda: take(repository)))
            after = take(repository)
            undone.append(
                _timed(
                    lambda b=before, a=after: restore(  # type: ignore[misc]
                        repository, plan_undo(repository, [(b, a)], take(repository))
                    )
                )
            )
        tidied = _timed(repository.tidy)
        of = f"{size} files"
        report.figure(f"{of}: the first snapshot", first)
        report.figure(f"{of}: nothing changed", same)
        report.figure(f"{of}: one file changed", statistics.median(changed))
        report.figure(f"{of}: its undo", statistics.median(undone))
        report.figure(f"{of}: packing", tidied)
        report.figure(f"{of}: held", repository.held_bytes() / 1024, unit="KiB")
    shutil.rmtree(place)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def _stops(place: Path, report: Report) -> None:
    """Both engines run side by side and stop in turns, so that what else the machine does meets
    both alike. A stop comes when the turn has been at rest for a while: a person's does, and a
    machine that has just worked stops things faster than one that has idled."""
    work = place / "work"
    _fill(work, STOPS_FILES)
    async with AsyncExitStack() as stack:
        samples = {
            name: await _stop_of(stack, work, place / name, enabled=enabled)
            for name, enabled in (("without", False), ("with snapshots", True))
        }
        found = await interleave_async(samples, rounds=STOPS)
    report.compare(
        f"stop of a turn, {STOPS_FILES} files",
        found,
        baseline="without",
        ours="with snapshots",
        bar=STOP_BAR,
    )


async def _stop_of(
    stack: AsyncExitStack, work: Path, home: Path, *, enabled: bool
) -> Callable[[], Awaitable[float]]:
    command = Call("terminal", {"command": "echo ready; sleep 60"})
    model = ScriptedModel([[command] for _ in range(STOPS + 1)] + [[Say("")]])
    config = load_config({"BARGEIN_CHECKPOINTS_ENABLED": "1" if enabled else "0"})
    agent = Agent(model, workspace=work, mode="full")
    engine = await stack.enter_async_context(Engine(agent, home=home, config=config))
    number = count()

    async def stop() -> float:
        session = await engine.session(f"s{next(number)}")
        await session.send("go")
        async with aclosing(session.watch()) as events:
            async for event in events:
                if isinstance(event, CallOutput | OutputSoFar):
                    break
        await anyio.sleep(REST_S)
        began = time.perf_counter()
        await session.interrupt()
        took = time.perf_counter() - began
        # The snapshot after the stop belongs to no stop that is measured.
        await session.preview_undo()
        return took

    return stop


def main() -> int:
    sizes = tuple(int(each) for each in sys.argv[1:]) or SIZES
    report = Report("checkpoints")
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="bargein-bench-") as made:
        for size in sizes:
            _sizes(Path(made) / str(size), size, report)
        anyio.run(_stops, Path(made) / "stops", report)
    report.note(f"Load {before[0]:.1f} to {os.getloadavg()[0]:.1f}.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
