"""Runs systems side by side, scenario by scenario, and keeps every sample.

In each round every system has its turn, in a new random order, so that whatever else the machine
does meets all of them alike. A system that crashes, hangs or cannot be installed is told of and
never ends the run; when it is over no process of it is left.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path

from bench.interruptbench import costs, plays, plays_block, plays_crash, plays_many
from bench.interruptbench.connection import DriverTalk, Gone, ServerTalk, TooLong
from bench.interruptbench.environments import CannotInstall, SystemSpec, interpreter
from bench.interruptbench.processes import end_marked
from bench.interruptbench.results import Results, grouped
from bench.interruptbench.scenarios import Scenario
from bench.interruptbench.script import Script, Step
from bench.interruptbench.stage import Sample, Stage
from bench.measure import describe_machine

ROOT = Path(__file__).parents[2]
TOOLS = ("terminal", "block", "delegate")
WARM_BOUND_S = 30.0
RUN_BOUND_S = 120.0
CRASHES_AT_ONCE = 2

ONE = {
    "stop_model": plays.stop_model,
    "stop_command": plays.stop_command,
    "stop_child": plays.stop_child,
    "stop_between_calls": plays.stop_between_calls,
}
BATCH = {
    "redirect": plays_many.redirect,
    "two_at_once": plays_many.two_at_once,
    "stop_among_many": plays_many.stop_among_many,
    "stop_late": plays_many.stop_late,
}


@dataclass
class System:
    """A system under test: its driver while there is one, and all that is to be said about it."""

    spec: SystemSpec
    python: Path
    environment: dict[str, str] = field(default_factory=dict)
    driver: DriverTalk | None = None
    facts: dict[str, object] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)
    restarts: int = 0


class Runner:
    def __init__(
        self,
        specs: Sequence[SystemSpec],
        scenarios: Sequence[Scenario],
        *,
        folder: Path,
        runs: int | None = None,
        seed: int | None = None,
        minutes: float | None = None,
    ) -> None:
        """No scenario is begun after so many minutes; the results say which are missing."""
        self._specs = specs
        self._scenarios = scenarios
        self._folder = folder
        self._runs = runs
        self._minutes = minutes
        self._skipped: list[str] = []
        self._seed = seed if seed is not None else time.time_ns() % 1_000_000
        self.mark = f"ibrun-{uuid.uuid4().hex}"
        self._systems: list[System] = []
        self._stage: Stage
        self.samples: list[Sample] = []
        self.refusals: dict[str, str] = {}
        self.head: dict[str, object] = {}
        self.left_over = 0

    async def run(self) -> None:
        began_at = time.monotonic()
        load = os.getloadavg()[0]
        environment = self._environment()
        command = [sys.executable, "-m", "bench.interruptbench.server"]
        server = ServerTalk(command, environment, self._folder / "server.log")
        await server.start()
        try:
            await server.until(lambda: server.port or None, 30, "the server")
            self._stage = Stage(server, self._folder, self._seed)
            self._find_systems(environment, server.port)
            await asyncio.gather(*(self._open(system) for system in self._systems))
            for scenario in self._scenarios:
                if self._minutes and time.monotonic() - began_at > self._minutes * 60:
                    self._skipped.append(scenario.id)
                else:
                    await self._play(scenario)
            await self._close()
        finally:
            await server.end()
            self.left_over = end_marked(self.mark)
        self.head = self._describe(load, time.monotonic() - began_at)

    def _environment(self) -> dict[str, str]:
        kept = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        return environment | {
            "HOME": str(self._folder / "home"),
            "IB_RUN": self.mark,
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def _find_systems(self, environment: Mapping[str, str], port: int) -> None:
        for spec in self._specs:
            try:
                python = interpreter(spec)
            except (CannotInstall, OSError) as error:
                self.refusals[spec.name] = str(error)
                continue
            home = self._folder / f"home-{spec.name}"
            home.mkdir()
            own = {
                **environment,
                **spec.environment,
                "HOME": str(home),
                "TMUX_TMPDIR": str(home),
                "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
                "OPENAI_API_KEY": "sk-interruptbench-loopback",
            }
            if spec.python == "project" and "PYTHONPATH" in os.environ:
                # So that another state of this project can be measured.
                own["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])
            self._systems.append(System(spec, python, own))

    def _driver(self, system: System) -> DriverTalk:
        own = "." in system.spec.driver
        module = system.spec.driver if own else f"bench.interruptbench.drivers.{system.spec.driver}"
        return DriverTalk(
            name=system.spec.name,
            command=[str(system.python), "-m", module],
            environment=system.environment,
            log=self._folder / f"{system.spec.name}.log",
        )

    async def _open(self, system: System) -> None:
        """Start the driver that all but two scenarios share."""
        home = self._folder / f"data-{system.spec.name}-{system.restarts}"
        home.mkdir()
        driver = self._driver(system)
        try:
            await driver.open(home, TOOLS)
        except (Gone, TooLong) as error:
            await driver.kill()
            self.refusals[system.spec.name] = f"its driver did not start: {error}"
            return
        await self._warm_up(system, driver)
        system.driver = driver
        system.lacks = driver.lacks
        system.facts = {
            "versions": driver.versions, "python": driver.python,
            "lacks": driver.lacks, "notes": driver.notes,
        }  # fmt: skip

    async def _warm_up(self, system: System, driver: DriverTalk) -> None:
        """Runs one turn that does not count, so that everything loaded on first use is loaded."""
        run = f"warm-{system.spec.name}-{system.restarts}"
        await self._stage.learn(Script(run, (Step(),)))
        self._stage.start(driver, run)
        try:
            await driver.hears("returned", run, bound_s=WARM_BOUND_S)
        except (Gone, TooLong) as error:
            print(f"{run}: {error}", file=sys.stderr, flush=True)

    async def _reopen(self, system: System) -> None:
        """Starts a fresh process after a crash or a hang."""
        if system.driver is not None:
            await system.driver.kill()
            system.driver = None
        system.restarts += 1
        await self._open(system)

    async def _close(self) -> None:
        drivers = [system.driver for system in self._systems if system.driver is not None]
        await asyncio.gather(*(driver.end() for driver in drivers))

    # Scenarios

    async def _play(self, scenario: Scenario) -> None:
        began_at = time.monotonic()
        able = [
            system
            for system in self._systems
            if system.spec.name not in self.refusals
            and not set(scenario.needs) & system.lacks.keys()
        ]
        runs = self._runs or scenario.runs
        samples = {
            system.spec.name: [
                Sample(scenario.id, system.spec.name, f"{scenario.id}-{system.spec.name}-{number}")
                for number in range(runs)
            ]
            for system in able
        }
        if scenario.play == "cost":
            await self._costs(able, samples)
        elif scenario.play == "crash":
            await self._crashes(able, samples)
        else:
            await self._rounds(scenario, able, samples)
        await self._late_looks()
        for mine in samples.values():
            for sample in mine:
                sample.finish()
                self.samples.append(sample)
        spent_s = time.monotonic() - began_at
        violations = sum(len(each.violations) for mine in samples.values() for each in mine)
        print(
            f"{scenario.id:>3} {scenario.title}: {len(able)} systems, {violations} violations, "
            f"{spent_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    async def _rounds(
        self, scenario: Scenario, able: list[System], samples: dict[str, list[Sample]]
    ) -> None:
        runs = max((len(mine) for mine in samples.values()), default=0)
        for begin in range(0, runs, scenario.batch):
            turn = {name: mine[begin : begin + scenario.batch] for name, mine in samples.items()}
            self._stage.chance.shuffle(able)
            if scenario.play == "stop_block":
                pairs = [(s, each) for s in able for each in turn[s.spec.name]]
                await self._guarded_together(scenario, pairs)
                continue
            for system in able:
                mine = turn[system.spec.name]
                await self._guarded(system, mine, self._playing(scenario, system, mine))
                self._stage.watch.look()

    def _playing(
        self, scenario: Scenario, system: System, mine: list[Sample]
    ) -> Callable[[], Awaitable[None]]:
        async def play() -> None:
            driver = system.driver
            if driver is None or driver.ended:
                raise Gone("its driver is not running")
            if scenario.play in ONE:
                await ONE[scenario.play](self._stage, driver, scenario, mine[0])
            else:
                await BATCH[scenario.play](self._stage, driver, scenario, mine)

        return play

    async def _guarded(
        self, system: System, mine: list[Sample], play: Callable[[], Awaitable[None]]
    ) -> None:
        """A run that fails is counted and shown, and its system gets a fresh process."""
        try:
            await asyncio.wait_for(play(), RUN_BOUND_S)
        except (Gone, TooLong, TimeoutError) as error:
            print(f"{mine[0].run}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            for sample in mine:
                sample.violate("driver failed")
            await self._reopen(system)

    async def _guarded_together(
        self, scenario: Scenario, pairs: list[tuple[System, Sample]]
    ) -> None:
        running = [(s.driver, each) for s, each in pairs if s.driver is not None]
        await plays_block.stop_block(self._stage, scenario, running)
        for system in {id(s): s for s, _ in pairs}.values():
            if any("driver failed" in each.violations for s, each in pairs if s is system):
                await self._reopen(system)

    async def _crashes(self, able: list[System], samples: dict[str, list[Sample]]) -> None:
        """Nothing is timed finely here, so two lives at a time."""
        gate = asyncio.Semaphore(CRASHES_AT_ONCE)

        async def one(system: System, sample: Sample) -> None:
            async def open_driver(home: Path) -> DriverTalk:
                driver = self._driver(system)
                await driver.open(home, plays_crash.TOOLS)
                return driver

            async with gate:
                try:
                    life = plays_crash.crash(self._stage, open_driver, sample)
                    await asyncio.wait_for(life, RUN_BOUND_S)
                except (Gone, TooLong, TimeoutError) as error:
                    print(f"{sample.run}: {error}", file=sys.stderr, flush=True)
                    sample.violate("driver failed")
                self._stage.watch.look()

        rounds = zip_longest(*samples.values())
        named = {system.spec.name: system for system in able}
        todo = [one(named[each.system], each) for turn in rounds for each in turn if each]
        await asyncio.gather(*todo)

    async def _costs(self, able: list[System], samples: dict[str, list[Sample]]) -> None:
        """Each sample is a life of its own, from the first import to the end."""
        for number in range(max((len(mine) for mine in samples.values()), default=0)):
            self._stage.chance.shuffle(able)
            for system in able:
                sample = samples[system.spec.name][number]
                await costs.import_time(system.python, system.spec, system.environment, sample)
                await self._cost_life(system, sample)

    async def _cost_life(self, system: System, sample: Sample) -> None:
        home = self._folder / f"{sample.run}.home"
        home.mkdir()
        driver = self._driver(system)
        began_at = time.monotonic()
        try:
            await driver.open(home, ())
            sample.measure("ready_s", time.monotonic() - began_at)
            await asyncio.wait_for(costs.life(self._stage, driver, sample), RUN_BOUND_S)
        except (Gone, TooLong, TimeoutError) as error:
            print(f"{sample.run}: {error}", file=sys.stderr, flush=True)
            sample.violate("driver failed")
            await driver.kill()
        else:
            await driver.end()

    async def _late_looks(self) -> None:
        """Wait until every stopped command was looked at for the last time."""
        while (due_at := self._stage.watch.next_due_at) is not None:
            await asyncio.sleep(max(0.0, due_at - time.monotonic()) + 0.01)
            self._stage.watch.look()

    def results(self) -> Results:
        """Everything that was measured, and how."""
        return Results(self.head, grouped(self.samples))

    def _describe(self, load: float, spent_s: float) -> dict[str, object]:
        return {
            "bench": "interrupt",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "load_at_start": round(load, 2),
            "load_at_end": round(os.getloadavg()[0], 2),
            "spent_s": round(spent_s),
            "seed": self._seed,
            "systems": {
                system.spec.name: {
                    "title": system.spec.title, "restarts": system.restarts, **system.facts,
                }
                for system in self._systems
            },
            "refusals": self.refusals,
            "skipped": self._skipped,
            "left_over_processes": self.left_over,
        }  # fmt: skip
