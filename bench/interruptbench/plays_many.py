"""How runs go that are about many messages or many sessions: counts, rather than times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.interruptbench.connection import DriverTalk, Request, TooLong
from bench.interruptbench.scenarios import Scenario
from bench.interruptbench.script import Script, Step, mark
from bench.interruptbench.stage import SETUP_BOUND_S, Sample, Stage, call, calling, command_line

ANSWER_BOUND_S = 8.0
SESSIONS = 50
MANY_BOUND_S = 60.0
OVERLAP_S = 0.005
"""Less than this is no second run: one connection closes while the next opens."""


async def redirect(
    stage: Stage, driver: DriverTalk, scenario: Scenario, samples: Sequence[Sample]
) -> None:
    """Sends messages that should stop a turn, around the moment at which it ends by itself."""
    await asyncio.gather(*(_redirect_one(stage, driver, scenario, each) for each in samples))


async def _redirect_one(
    stage: Stage, driver: DriverTalk, scenario: Scenario, sample: Sample
) -> None:
    session = sample.run
    first, second, third = (f"{sample.run}.{number}" for number in (1, 2, 3))
    await stage.learn(
        Script(first, (scenario.step,)), Script(second, (Step(),)), Script(third, (Step(),))
    )
    stage.start(driver, first, session)
    request = await stage.request(first, part=True)
    offset_s = stage.chance.uniform(*scenario.delay_s)
    at = (request.first_part_at or 0.0) + scenario.step.length_s + offset_s
    sample.measure("offset_s", offset_s)
    text = f"No, rather answer @@{second}@@"
    driver.do("redirect", run=second, session=session, text=text, at=at)
    try:
        returned = await driver.hears("returned", second, bound_s=ANSWER_BOUND_S)
        sample.measure("answered_s", returned["at"] - at)
    except TooLong:
        pass
    await stage.catch_up()
    if not stage.server.of(second):
        sample.violate("message lost")
    elif not stage.answered(driver, second):
        sample.violate("next turn aborted")
    stage.start(driver, third, session)
    try:
        await driver.hears("returned", third, bound_s=ANSWER_BOUND_S)
    except TooLong:
        pass
    await stage.catch_up()
    if not stage.answered(driver, third):
        sample.violate("next turn aborted")
    if sum(each.finished_at is not None for each in stage.server.of(second)) > 1:
        sample.violate("answered twice")


async def two_at_once(
    stage: Stage, driver: DriverTalk, scenario: Scenario, samples: Sequence[Sample]
) -> None:
    await asyncio.gather(*(_two_at_once(stage, driver, scenario, each) for each in samples))


async def _two_at_once(
    stage: Stage, driver: DriverTalk, scenario: Scenario, sample: Sample
) -> None:
    runs = [f"{sample.run}.{number}" for number in (1, 2)]
    warm = f"{sample.run}.warm"
    await stage.learn(Script(warm, (Step(),)), *(Script(run, (scenario.step,)) for run in runs))
    stage.start(driver, warm, sample.run)
    await driver.hears("returned", warm, bound_s=MANY_BOUND_S)
    at = time.monotonic() + 0.03
    for run in runs:
        stage.start(driver, run, sample.run, at=at)
    for run in runs:
        try:
            await driver.hears("returned", run, bound_s=ANSWER_BOUND_S)
        except TooLong:
            pass
    await stage.catch_up()
    # One answer to both is an answer to each.
    requests = [request for run in runs for request in stage.server.of(run)]
    for run in runs:
        returned = driver.heard("returned", run)
        if returned is not None and returned["outcome"] == "failed":
            sample.measures["refused"] = 1  # in plain sight: the caller can send it again
        elif not any(mark(run) in each.words for each in requests if each.finished_at):
            sample.violate("message not answered")
    if overlap_s(requests) > OVERLAP_S:
        sample.violate("two runs at a time")


def overlap_s(requests: Sequence[Request]) -> float:
    """Returns the longest time for which two requests were under way together."""
    longest = 0.0
    ordered = sorted(requests, key=lambda request: request.at)
    for number, one in enumerate(ordered):
        for other in ordered[number + 1 :]:
            ends = [each.over_at or float("inf") for each in (one, other)]
            longest = max(longest, min(ends) - other.at)
    return longest


async def stop_among_many(
    stage: Stage, driver: DriverTalk, scenario: Scenario, samples: Sequence[Sample]
) -> None:
    """Fifty sessions stream; some are stopped one after another; the others must not notice."""
    others = [f"{samples[0].run}.o{number}" for number in range(SESSIONS - len(samples))]
    runs = [*others, *(sample.run for sample in samples)]
    warm = [f"{run}.warm" for run in runs]
    await stage.learn(*(Script(run, (Step(),)) for run in warm))
    for run, session in zip(warm, runs, strict=True):
        stage.start(driver, run, session)
    for run in warm:
        await driver.hears("returned", run, bound_s=MANY_BOUND_S)
    await stage.learn(*(Script(run, (scenario.step,)) for run in runs))
    for run in runs:
        stage.start(driver, run)
    await asyncio.gather(*(stage.request(run, part=True) for run in runs))
    for sample in samples:
        request = await stage.request(sample.run, part=True)
        asked_at = await stage.stop(driver, sample)
        await stage.disconnect(sample, request, asked_at)
    await _all_answered(stage, driver, others, samples[0])


async def _all_answered(
    stage: Stage, driver: DriverTalk, runs: Sequence[str], sample: Sample
) -> None:
    """Every session that is left in peace is disturbed: a violation each."""
    for run in runs:
        try:
            await driver.hears("returned", run, bound_s=SETUP_BOUND_S)
        except TooLong:
            pass
        if not stage.answered(driver, run):
            sample.violate("another session disturbed")


async def stop_late(
    stage: Stage, driver: DriverTalk, scenario: Scenario, samples: Sequence[Sample]
) -> None:
    """Sessions end; others work on the threads that those used; then the ended ones are stopped."""
    await _commands(stage, driver, [sample.run for sample in samples], 0)
    for sample in samples:
        await driver.hears("returned", sample.run, bound_s=MANY_BOUND_S)
    others = [f"{sample.run}.o" for sample in samples]
    words = await _commands(stage, driver, others, 1)
    for word in words:
        await stage.exists(stage.folder / f"{word}.up")
    for sample in samples:
        driver.do("stop", run=sample.run, session=sample.run)
        await driver.hears("stopped", sample.run, bound_s=SETUP_BOUND_S)
    for sample, run, word in zip(samples, others, words, strict=True):
        await _all_answered(stage, driver, [run], sample)
        await stage.catch_up()
        last = stage.server.of(run)[-1]
        if not sample.violations and f"LATE-{word}" not in last.words:
            sample.violate("another session disturbed")


async def _commands(
    stage: Stage, driver: DriverTalk, runs: Sequence[str], seconds: float
) -> list[str]:
    """A session for each run, whose command says a word that the model is then shown."""
    scripts = []
    for run in runs:
        line = command_line("word", seconds, stage.folder / f"{run}.up", run)
        scripts.append(calling(run, [call(driver, "terminal", command=line)]))
    await stage.learn(*scripts)
    for run in runs:
        stage.start(driver, run)
    return list(runs)
