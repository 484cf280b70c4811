"""What a play has at hand: the model server, a driver, the watch over survivors; and what it
yields."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.interruptbench.connection import DriverTalk, Gone, Request, ServerTalk, TooLong
from bench.interruptbench.processes import SurvivorWatch, Watched
from bench.interruptbench.script import Call, Script, Step, answer_text, mark

COMMANDS = Path(__file__).parent / "commands"
RETURN_BOUND_S = 2.5
SETUP_BOUND_S = 10.0
LEARN_BOUND_S = 20.0


@dataclass
class Sample:
    """One run of one system. `later` are checks that wait until the round, or all, is over."""

    scenario: str
    system: str
    run: str
    measures: dict[str, float | None] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    later: list[Callable[[], None]] = field(default_factory=list)

    def measure(self, name: str, seconds: float | None) -> None:
        self.measures[name] = None if seconds is None else round(seconds, 6)

    def violate(self, what: str) -> None:
        self.violations.append(what)

    def finish(self) -> None:
        for check in self.later:
            check()
        self.later.clear()

    def line(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "system": self.system,
            "run": self.run,
            **self.measures,
            **({"violations": self.violations} if self.violations else {}),
        }


class Stage:
    def __init__(self, server: ServerTalk, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.watch = SurvivorWatch()
        self.chance = random.Random(seed)
        self._numbers = itertools.count()
        self._started: dict[str, DriverTalk] = {}

    async def learn(self, *scripts: Script) -> None:
        """Hand scripts to the server, and go on when it knows them."""
        for script in scripts:
            self.server.say(msgspec.json.encode(script))
        names = {script.id for script in scripts}
        await self.server.until(
            lambda: True if names <= self.server.scripts else None, LEARN_BOUND_S, "the scripts"
        )

    async def catch_up(self) -> None:
        """Goes on when all that the server has seen until now has been heard of here."""
        await self.learn(Script(f"catch-up-{next(self._numbers)}", (Step(),)))

    async def request(self, script: str, *, part: bool = False, step: int = 0) -> Request:
        """The server has got a request for this script, or has begun to answer it."""

        def look() -> Request | None:
            self._refuse_if_back(script)
            for request in self.server.of(script):
                if request.step == step and (request.first_part_at or not part):
                    return request
            return None

        return await self.server.until(look, SETUP_BOUND_S, f"a request for {script}")

    async def exists(self, path: Path, *, bound_s: float = SETUP_BOUND_S) -> None:
        give_up_at = time.monotonic() + bound_s
        while not os.path.exists(path):  # noqa: ASYNC240
            self._refuse_if_back(path.name.removesuffix(".up"))
            if time.monotonic() > give_up_at:
                raise TooLong(f"the command that makes {path.name}")
            await asyncio.sleep(0.002)

    def _refuse_if_back(self, run: str) -> None:
        """Raises if the run ended before it was stopped, because then the awaited event will not
        come."""
        driver = self._started.get(run)
        returned = driver.heard("returned", run) if driver is not None else None
        if returned is not None and returned["outcome"] == "failed":
            raise Gone(f"it came back by itself: {returned.get('error')}")

    async def pause(self, between_s: tuple[float, float]) -> None:
        await asyncio.sleep(self.chance.uniform(*between_s))

    def start(self, driver: DriverTalk, run: str, session: str = "", **more: object) -> None:
        text = f"Please answer {mark(run)}"
        self._started[run] = driver
        driver.do("start", run=run, session=session or run, text=text, **more)

    async def stop(self, driver: DriverTalk, sample: Sample, session: str = "") -> float:
        """Stops a run and measures until its caller is back; returns when the stop was
        requested."""
        driver.do("stop", run=sample.run, session=session or sample.run)
        return await self.returned(driver, sample)

    async def returned(self, driver: DriverTalk, sample: Sample) -> float:
        run = sample.run
        asked_at = float((await driver.hears("asked", run, bound_s=SETUP_BOUND_S))["at"])
        left_s = max(0.0, asked_at + RETURN_BOUND_S - time.monotonic())
        try:
            returned = await driver.hears("returned", run, bound_s=left_s)
        except TooLong:
            sample.measure("returned_s", RETURN_BOUND_S)
            sample.violate("caller not back in time")
        else:
            sample.measure("returned_s", max(0.0, returned["at"] - asked_at))
            if returned["outcome"] == "finished":
                sample.violate("went on to the end")
        return asked_at

    async def disconnect(self, sample: Sample, request: Request, asked_at: float) -> None:
        """Measures until the server saw the client of this request go away."""
        bound_s = asked_at + RETURN_BOUND_S - time.monotonic()
        try:
            await self.server.until(lambda: request.over_at, max(0.01, bound_s), "disconnect")
        except TooLong:
            pass
        if request.gone_at is not None:
            sample.measure("disconnect_s", max(0.0, request.gone_at - asked_at))
        else:
            sample.measure("disconnect_s", RETURN_BOUND_S)
            sample.violate("server saw no disconnect")

    def expect_no_more_requests(self, sample: Sample, script: str) -> None:
        """Checked later: what a stop ended is not asked for again."""
        before = len(self.server.of(script))

        def check() -> None:
            if len(self.server.of(script)) > before:
                sample.violate("model asked again after the stop")

        sample.later.append(check)

    def expect_no_survivors(self, sample: Sample, name: str, asked_at: float) -> Watched:
        watched = self.watch.add(name, asked_at)

        def check() -> None:
            for when, alive in zip(("1s", "5s"), watched.alive, strict=True):
                sample.measures[f"alive_{when}"] = alive
            if any(watched.alive):
                sample.violate("processes alive after the stop")

        sample.later.append(check)
        return watched

    def answered(self, driver: DriverTalk, run: str) -> bool:
        returned = driver.heard("returned", run)
        return returned is not None and answer_text(run) in returned["text"]


def call(driver: DriverTalk, tool: str, **values: object) -> Call:
    """A canonical call in the words of the system: its name of the tool, its arguments."""
    known = driver.calls[tool]
    arguments = {name: filled_in(value, values) for name, value in known["arguments"].items()}
    return Call(known["name"], arguments)


def filled_in(template: object, values: Mapping[str, object]) -> object:
    """The template with each "$name" in it replaced by the value of that name."""
    if isinstance(template, str) and template.startswith("$"):
        return values[template[1:]]
    if isinstance(template, list):
        return [filled_in(each, values) for each in template]
    if isinstance(template, dict):
        return {name: filled_in(each, values) for name, each in template.items()}
    return template


def calling(run: str, calls: Sequence[Call], *, strict: bool = False) -> Script:
    """A script that makes these calls and then answers."""
    return Script(run, (Step(calls=tuple(calls)), Step()), strict)


def command_line(name: str, *arguments: object) -> str:
    """One of the commands of the bench, for a shell."""
    return shlex.join(["sh", str(COMMANDS / f"{name}.sh"), *map(str, arguments)])
