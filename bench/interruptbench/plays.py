"""How one run of one system goes, for the scenarios in which one thing is stopped."""

from __future__ import annotations

from bench.interruptbench.connection import DriverTalk, TooLong
from bench.interruptbench.scenarios import Scenario
from bench.interruptbench.script import Script, Step, mark
from bench.interruptbench.stage import (
    RETURN_BOUND_S,
    SETUP_BOUND_S,
    Sample,
    Stage,
    call,
    calling,
    command_line,
)


async def stop_model(stage: Stage, driver: DriverTalk, scenario: Scenario, sample: Sample) -> None:
    """Stop while the model streams or is silent."""
    await stage.learn(Script(sample.run, (scenario.step,)))
    stage.start(driver, sample.run)
    request = await stage.request(sample.run, part=scenario.wait_for_part)
    await stage.pause(scenario.delay_s)
    asked_at = await stage.stop(driver, sample)
    await stage.disconnect(sample, request, asked_at)
    stage.expect_no_more_requests(sample, sample.run)


async def stop_command(
    stage: Stage, driver: DriverTalk, scenario: Scenario, sample: Sample
) -> None:
    """Stop while a command of the terminal tool runs."""
    up = stage.folder / f"{sample.run}.up"
    name = f"ibmark-{sample.run}-"
    command = command_line(scenario.command, name, up)
    await stage.learn(calling(sample.run, [call(driver, "terminal", command=command)]))
    stage.start(driver, sample.run)
    await stage.exists(up)
    await stage.pause(scenario.delay_s)
    asked_at = await stage.stop(driver, sample)
    stage.expect_no_survivors(sample, name, asked_at)
    stage.expect_no_more_requests(sample, sample.run)


async def stop_child(stage: Stage, driver: DriverTalk, scenario: Scenario, sample: Sample) -> None:
    """Stop a turn whose sub-agent is being answered."""
    child = f"{sample.run}.child"
    task = f"Please answer {mark(child)}"
    await stage.learn(
        Script(child, (scenario.step,)), calling(sample.run, [call(driver, "delegate", task=task)])
    )
    stage.start(driver, sample.run)
    request = await stage.request(child, part=True)
    await stage.pause(scenario.delay_s)
    asked_at = await stage.stop(driver, sample)
    await stage.disconnect(sample, request, asked_at)
    stage.expect_no_more_requests(sample, child)


def block_words(scenario: Scenario, run: str) -> list[str]:
    return [f"{run}.{number}" for number in range(len(scenario.blocks_s))]


def block_script(driver: DriverTalk, scenario: Scenario, run: str) -> Script:
    """A turn that calls the blocking tool as often as the scenario says, side by side."""
    words = block_words(scenario, run)
    pairs = zip(words, scenario.blocks_s, strict=True)
    return calling(run, [call(driver, "block", seconds=each, word=word) for word, each in pairs])


async def blocks_run(driver: DriverTalk, scenario: Scenario, sample: Sample) -> None:
    """Goes on when all blocking tools run."""
    first, *others = block_words(scenario, sample.run)
    await driver.hears("tool", first, bound_s=3 * SETUP_BOUND_S)
    for word in others:
        try:
            await driver.hears("tool", word, bound_s=0.5)
        except TooLong:
            # A system that runs calls one after another: the stop comes in the first of them.
            sample.measures["one_after_another"] = 1


async def stop_between_calls(
    stage: Stage, driver: DriverTalk, scenario: Scenario, sample: Sample
) -> None:
    """Stop when one of two calls is done and the other is not; the next request is judged."""
    await stage.learn(block_script(driver, scenario, sample.run))
    stage.start(driver, sample.run)
    await blocks_run(driver, scenario, sample)
    await stage.pause(scenario.delay_s)
    await stage.stop(driver, sample)
    following = f"{sample.run}.next"
    await stage.learn(Script(following, (Step(),), strict=True))
    stage.start(driver, following, sample.run)
    try:
        returned = await driver.hears("returned", following, bound_s=2 * RETURN_BOUND_S)
    except TooLong:
        sample.violate("next message not answered")
        return
    await stage.catch_up()
    if any(request.problems for request in stage.server.of(following)):
        sample.violate("transcript refused")
    elif not stage.answered(driver, following):
        sample.violate("next message not answered")
    asked = driver.heard("asked", sample.run)
    if asked is not None:
        sample.measure("answered_s", returned["at"] - asked["at"])
