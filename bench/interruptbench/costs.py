"""What a system costs while nobody stops anything: import, memory, a look, a streamed part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from bench.interruptbench.connection import DriverTalk
from bench.interruptbench.environments import SystemSpec
from bench.interruptbench.script import Script, Step
from bench.interruptbench.stage import SETUP_BOUND_S, Sample, Stage

IN_FLIGHT = 20
PARTS = 200
IMPORT = "import time; t = time.perf_counter(); {imports}; print(time.perf_counter() - t)"


async def import_time(
    python: Path, spec: SystemSpec, environment: Mapping[str, str], sample: Sample
) -> None:
    """What the first line of a program that uses it takes, in a fresh interpreter."""
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        IMPORT.format(imports=spec.imports),
        env=dict(environment),
        cwd=os.environ.get("TMPDIR", "/tmp"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    sample.measure("import_s", float(output.split()[-1]))


async def life(stage: Stage, driver: DriverTalk, sample: Sample) -> None:
    """Memory at rest, after a first turn, and with sessions in flight; then processor time."""
    warm = f"{sample.run}.warm"
    await stage.learn(Script(warm, (Step(),)))
    stage.start(driver, warm)
    await driver.hears("returned", warm, bound_s=3 * SETUP_BOUND_S)
    rest = await _cost(driver, "memory")
    runs = [f"{sample.run}.f{number}" for number in range(IN_FLIGHT)]
    await stage.learn(*(Script(run, (Step(parts=12, pace_s=0.1),)) for run in runs))
    for run in runs:
        stage.start(driver, run)
    await asyncio.gather(*(stage.request(run, part=True) for run in runs))
    flight = await _cost(driver, "memory")
    for run in runs:
        await driver.hears("returned", run, bound_s=SETUP_BOUND_S)
    if rest is not None and flight is not None:
        sample.measures["memory_bytes"] = rest
        sample.measures["memory_session_bytes"] = (flight - rest) / IN_FLIGHT
    await _streamed_part(stage, driver, sample)
    sample.measures["check_s"] = await _cost(driver, "check")


async def _streamed_part(stage: Stage, driver: DriverTalk, sample: Sample) -> None:
    await stage.learn(Script(sample.run, (Step(parts=PARTS, pace_s=0.001),)))
    before = await _cost(driver, "cpu")
    stage.start(driver, sample.run)
    await driver.hears("returned", sample.run, bound_s=SETUP_BOUND_S)
    after = await _cost(driver, "cpu")
    if before is not None and after is not None:
        sample.measures["cpu_part_s"] = (after - before) / PARTS


async def _cost(driver: DriverTalk, what: str) -> float | None:
    value = (await driver.ask("cost", "cost", what=what, bound_s=SETUP_BOUND_S))["value"]
    return None if value is None else float(value)
