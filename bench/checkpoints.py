"""What snapshots cost: by the number of files, and in the stop of a turn.

    ./dev bench checkpoints

For each size: the first snapshot, one of an unchanged folder, one after one file changed, and the
undo of that. Then stops of a turn that runs a command, with snapshots of 10,000 files and without;
the bar is 1.1 times.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
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

SIZES = (1_000, 10_000, 100_000)
REPEATS = 5
STOPS = 15
STOPS_FILES = 10_000


def main() -> None:
    sizes = tuple(int(each) for each in sys.argv[1:]) or SIZES
    with tempfile.TemporaryDirectory(prefix="bargein-bench-") as made:
        for size in sizes:
            _sizes(Path(made) / str(size), size)
        _stops(Path(made) / "stops")


def _fill(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"d{number // 1000}" / f"e{number // 50 % 20}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 20)


def _sizes(place: Path, size: int) -> None:
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
        print(
            f"{size:>7} files: first {first:.2f} s, unchanged {same * 1000:.0f} ms, one changed "
            f"{statistics.median(changed) * 1000:.0f} ms, its undo "
            f"{statistics.median(undone) * 1000:.0f} ms, packed in {tidied:.1f} s to "
            f"{repository.held_bytes() >> 10} KiB"
        )
    shutil.rmtree(place)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _stops(place: Path) -> None:
    work = place / "work"
    _fill(work, STOPS_FILES)
    # In turns, so that what else the machine does meets both alike.
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(3):
        for enabled in (True, False):
            found[enabled] += anyio.run(_measure_stops, work, place / f"{number}{enabled}", enabled)
    on, off = (statistics.median(found[enabled]) for enabled in (True, False))
    print(
        f"stop of a turn with {STOPS_FILES} files: {on * 1000:.1f} ms with snapshots, "
        f"{off * 1000:.1f} ms without: {on / off:.2f} x (bar 1.1 x)"
    )


async def _measure_stops(work: Path, home: Path, enabled: bool) -> list[float]:
    took: list[float] = []
    command = Call("terminal", {"command": "echo ready; sleep 60"})
    model = ScriptedModel([[command] for _ in range(STOPS)] + [[Say("")]])
    config = load_config({"BARGEIN_CHECKPOINTS_ENABLED": "1" if enabled else "0"})
    async with Engine(
        Agent(model, workspace=work, mode="full"), home=home, config=config
    ) as engine:
        for number in range(STOPS):
            session = await engine.session(f"s{number}")
            await session.send("go")
            async with aclosing(session.watch()) as events:
                async for event in events:
                    if isinstance(event, CallOutput | OutputSoFar):
                        break
            began = time.perf_counter()
            await session.interrupt()
            took.append(time.perf_counter() - began)
    return took


if __name__ == "__main__":
    main()
