"""Stopping tools that block and never look: of all systems at once.

Such a tool sleeps for seconds and uses no processor, so the systems wait side by side. The stops
come one at a time, and each driver takes the times itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.interruptbench.connection import DriverTalk, Gone, TooLong
from bench.interruptbench.plays import block_script, block_words, blocks_run
from bench.interruptbench.scenarios import Scenario
from bench.interruptbench.script import Script, Step
from bench.interruptbench.stage import RETURN_BOUND_S, SETUP_BOUND_S, Sample, Stage

Pair = tuple[DriverTalk, Sample]
BETWEEN_STOPS_S = 0.02


async def stop_block(stage: Stage, scenario: Scenario, pairs: Sequence[Pair]) -> None:
    """Stop while tools block; then see what the loop and the history made of it."""
    drivers = list({id(driver): driver for driver, _ in pairs}.values())
    await asyncio.gather(*(driver.ask("beat", "beat", on=True) for driver in drivers))
    one_at_a_time = asyncio.Lock()
    await asyncio.gather(*(_guarded(stage, scenario, pair, one_at_a_time) for pair in pairs))
    going_on = [pair for pair in pairs if "driver failed" not in pair[1].violations]
    for driver in {id(driver): driver for driver, _ in going_on}.values():
        beat = await driver.ask("beat", "beat", on=False)
        for sample in [sample for each, sample in going_on if each is driver]:
            sample.measure("loop_pause_s", beat["longest_s"])
    for pair in going_on:
        await _look_for_late_results(stage, scenario, pair)


async def _guarded(
    stage: Stage, scenario: Scenario, pair: Pair, one_at_a_time: asyncio.Lock
) -> None:
    """Marks a system that fails, and stops its run."""
    try:
        await _stop_one(stage, scenario, pair, one_at_a_time)
    except (TooLong, Gone):
        pair[1].violate("driver failed")


async def _stop_one(
    stage: Stage, scenario: Scenario, pair: Pair, one_at_a_time: asyncio.Lock
) -> None:
    driver, sample = pair
    await stage.learn(block_script(driver, scenario, sample.run))
    stage.start(driver, sample.run)
    await blocks_run(driver, scenario, sample)
    async with one_at_a_time:
        driver.do("stop", run=sample.run, session=sample.run)
        await asyncio.sleep(BETWEEN_STOPS_S)
    await stage.returned(driver, sample)
    stage.expect_no_more_requests(sample, sample.run)
    for word in block_words(scenario, sample.run):
        if driver.heard("tool", word) is not None:
            await driver.hears("tool_over", word, bound_s=SETUP_BOUND_S)


async def _look_for_late_results(stage: Stage, scenario: Scenario, pair: Pair) -> None:
    """Asks something in the same session, and checks what the model sees."""
    driver, sample = pair
    following = f"{sample.run}.next"
    await stage.learn(Script(following, (Step(),)))
    stage.start(driver, following, sample.run)
    try:
        await driver.hears("returned", following, bound_s=RETURN_BOUND_S)
    except TooLong:
        pass
    if not stage.answered(driver, following):
        sample.violate("next message not answered")
    await stage.catch_up()
    returned = driver.heard("returned", sample.run)
    shown = {word for request in stage.server.of(following) for word in request.words}
    for word in block_words(scenario, sample.run):
        over = driver.heard("tool_over", word)
        late = returned is not None and over is not None and over["at"] > returned["at"]
        if late and f"LATE-{word}" in shown:
            sample.violate("late result in the history")
