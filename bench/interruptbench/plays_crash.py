"""kill -9 in the middle of a turn, and a restart on the same data: what is left, what runs
twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.interruptbench.connection import DriverTalk, TooLong
from bench.interruptbench.script import Script, Step, mark
from bench.interruptbench.stage import SETUP_BOUND_S, Sample, Stage, call, calling, command_line

TOOLS = ("terminal",)
FIRST_TURN_BOUND_S = 40.0
"""The first turn of a fresh process: some load much of what they need only then."""
Open = Callable[[Path], Awaitable[DriverTalk]]


async def crash(stage: Stage, open_driver: Open, sample: Sample) -> None:
    """One life, its end, and the next: `open_driver` starts the system on a directory."""
    home = stage.folder / f"{sample.run}.home"
    home.mkdir()
    driver = await open_driver(home)
    try:
        killed_at = await _first_life(stage, driver, sample)
    finally:
        await driver.kill()
    driver = await open_driver(home)
    try:
        await _second_life(stage, driver, sample, killed_at)
    finally:
        await driver.end()


async def _first_life(stage: Stage, driver: DriverTalk, sample: Sample) -> float:
    up, effects = (stage.folder / f"{sample.run}.{name}" for name in ("up", "effects"))
    name = f"ibmark-{sample.run}-"
    command = command_line("effect", name, up, effects)
    queued = f"{sample.run}.queued"
    await stage.learn(
        calling(sample.run, [call(driver, "terminal", command=command)]),
        Script(queued, (Step(),)),
    )
    stage.start(driver, sample.run)
    await stage.exists(up, bound_s=FIRST_TURN_BOUND_S)
    if "inbox" not in driver.lacks:
        await driver.ask(
            "queue", "accepted", session=sample.run, text=f"And then {mark(queued)}", bound_s=5
        )
    os.kill(driver.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    stage.expect_no_survivors(sample, name, killed_at)
    return killed_at


async def _second_life(stage: Stage, driver: DriverTalk, sample: Sample, killed_at: float) -> None:
    following, queued = f"{sample.run}.next", f"{sample.run}.queued"
    driver.do("recover", session=sample.run)
    try:
        await driver.hears("recovered", sample.run, bound_s=SETUP_BOUND_S)
    except TooLong:
        sample.violate("did not recover")
    sample.measure("ready_s", time.monotonic() - killed_at)
    await stage.learn(Script(following, (Step(),), strict=True))
    stage.start(driver, following, sample.run)
    try:
        await driver.hears("returned", following, bound_s=FIRST_TURN_BOUND_S)
    except TooLong:
        pass
    await stage.catch_up()
    if not stage.answered(driver, following):
        sample.violate("next message not answered")
    shown = {word for request in stage.server.of(following) for word in request.words}
    if shown and mark(sample.run) not in shown:
        sample.violate("message lost")
    if "inbox" not in driver.lacks:
        answers = sum(each.finished_at is not None for each in stage.server.of(queued))
        if answers != 1:
            sample.violate("queued message not answered" if not answers else "answered twice")
    effects = (stage.folder / f"{sample.run}.effects").read_text().count("done")
    sample.measures["effects"] = effects
    if effects > 1:
        sample.violate("effect run twice")
