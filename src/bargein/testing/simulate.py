"""Simulates whole sessions from a seed: the real engine in a simulated world, checked by the laws.

    python -m bargein.testing.simulate --seeds 5000        # many worlds
    python -m bargein.testing.simulate --seed 42           # one, with its whole history
    python -m bargein.testing.simulate --seed 42 --shrink  # the smallest plan that fails alike
    python -m bargein.testing.simulate --plan FILE         # such a plan again

The same seed gives the same world, step by step. From Python:

    outcome = simulate(42)
    assert outcome.broken is None, outcome.story()

`check_agent` does the same for an agent of your own: docs/simulation.md has an example.
"""

import argparse
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from bargein.session.turn import AgentFunction
from bargein.testing.seeded import Backend, Seeded, run_seeded
from bargein.testing.simulation.agent import AgentUnderTest, BuildAgent
from bargein.testing.simulation.draw import make_plan
from bargein.testing.simulation.life import Life
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.record import Record
from bargein.testing.simulation.shrink import shrink
from bargein.testing.simulation.world import World

MakeWorld = Callable[[Plan, Seeded], World]

PROGRESS_S = 5.0
KINDS_SHRUNK_MAX = 3


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    """The outcome of a world. `broken` is the first broken law, or the error that escaped."""

    plan: Plan
    backend: Backend
    broken: Exception | None
    record: Record

    @property
    def kind(self) -> str:
        """Names the failure, without the numbers that differ from world to world."""
        return re.sub(r"(?<!^law )(?<!^law 1)\d+", "#", str(self.broken))[:120]

    def story(self) -> str:
        """Returns the plan, everything that happened, and what was wrong."""
        lines = [f"seed {self.plan.seed} on {self.backend}", repr(self.plan)]
        for at, life, words in self.record.history:
            lines.append(f"{at:10.3f} {life} " + " ".join(map(str, words)))
        lines.append(f"broken: {self.broken!r}" if self.broken is not None else "no law was broken")
        return "\n".join(lines)


def simulate(
    what: int | Plan, *, backend: Backend = "trio", make_world: MakeWorld = World
) -> WorldOutcome:
    """Live one world, from a seed or from a plan, to its end or to the first broken law."""
    plan = make_plan(what) if isinstance(what, int) else what
    worlds: list[World] = []

    async def live(run: Seeded) -> None:
        world = make_world(plan, run)
        worlds.append(world)
        with _counted_steps(world, run.backend):
            await world.live()

    broken: Exception | None = None
    try:
        with _quiet_log():
            run_seeded(live, plan.seed, backend=backend)
    except Exception as error:  # boundary: whatever escapes is the finding
        broken = error
    world = worlds[0]
    return WorldOutcome(plan, backend, world.record.broken or broken, world.record)


def smallest(outcome: WorldOutcome, make_world: MakeWorld = World) -> WorldOutcome:
    """Returns the same failure in the smallest world that shows it."""

    def fails_alike(plan: Plan) -> bool:
        found = simulate(plan, backend=outcome.backend, make_world=make_world)
        return found.broken is not None and found.kind == outcome.kind

    plan = shrink(outcome.plan, fails_alike)
    return simulate(plan, backend=outcome.backend, make_world=make_world)


class AgentWorld(World):
    """A world in which an agent of the user's own does the turns."""

    def __init__(self, build: BuildAgent, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self._build = build

    def make_agent(self, life: Life) -> AgentFunction:
        return AgentUnderTest(life, self._build)


def check_agent(
    build: BuildAgent, seeds: Iterable[int] = range(100), *, backend: Backend = "trio"
) -> None:
    """Simulates an agent of your own, one world for each seed.

    `build(model, tools)` returns the agent function for one turn; it must use that model and those
    tools. Raises an AssertionError with the story of the smallest world that breaks a law.
    """
    make_world = partial(AgentWorld, build)
    for seed in seeds:
        outcome = simulate(seed, backend=backend, make_world=make_world)
        if outcome.broken is not None:
            raise AssertionError(smallest(outcome, make_world).story()) from outcome.broken


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Silences the log, because faults in a simulated world are intended."""
    log = logging.getLogger("bargein")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _counted_steps(world: World, backend: Backend) -> Iterator[None]:
    """Reports each step of the scheduler to the world, so that it can crash at any of them."""
    if backend != "trio" or all(life.at_step is None for life in world.plan.lives):
        yield
        return
    import trio

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            world.step()

    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(steps)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="simulate", description="Simulates whole sessions from seeds and checks the laws."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds; default 1000")
    parser.add_argument("--first", type=int, default=0, help="the first seed; default 0")
    parser.add_argument("--workers", type=int, default=1, help="how many processes; default 1")
    parser.add_argument("--seed", type=int, help="simulate one world and show its history")
    parser.add_argument("--plan", type=Path, help="simulate one world from a plan in a JSON file")
    parser.add_argument("--shrink", action="store_true", help="find the smallest plan that fails")
    parser.add_argument("--backend", choices=("trio", "asyncio"), default="trio")
    chosen = parser.parse_args(arguments)
    if chosen.plan is not None:
        try:
            plan = msgspec.json.decode(chosen.plan.read_bytes(), type=Plan)
        except OSError as error:
            parser.error(f"--plan {chosen.plan}: {error.strerror}; name a file with a plan")
        except msgspec.DecodeError as error:
            parser.error(f"--plan {chosen.plan}: not a plan as --shrink prints it ({error})")
        return _show_one(plan, chosen.backend, chosen.shrink)
    if chosen.seed is not None:
        return _show_one(chosen.seed, chosen.backend, chosen.shrink)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    return run_many(seeds, chosen.backend, workers=chosen.workers)


def _show_one(what: int | Plan, backend: Backend, shrinks: bool) -> int:
    outcome = simulate(what, backend=backend)
    if shrinks and outcome.broken is not None:
        outcome = smallest(outcome)
        say(f"as JSON: {msgspec.json.encode(outcome.plan).decode()}")
    say(outcome.story())
    return int(outcome.broken is not None)


def run_many(
    seeds: range, backend: Backend, *, workers: int = 1, make_world: MakeWorld = World
) -> int:
    """Simulates all seeds, reports each failure, and shrinks one of each kind. Returns the exit
    code of the program."""
    failures: dict[str, list[int]] = {}
    began_at = shown_at = time.monotonic()
    kind_of = partial(_kind, backend, make_world)
    for done, (seed, kind) in enumerate(_spread(kind_of, seeds, workers), 1):
        if kind is not None:
            failures.setdefault(kind, []).append(seed)
            if len(failures[kind]) == 1:
                say(f"seed {seed}: {kind}\n    {_replay(seed, backend)}")
        if time.monotonic() - shown_at > PROGRESS_S:
            shown_at = time.monotonic()
            rate = done / (shown_at - began_at)
            say(f"  {done} of {len(seeds)}, {rate:.0f} a second, {len(failures)} kinds of failure")
    elapsed_s = max(time.monotonic() - began_at, 1e-9)
    for kind, found in sorted(failures.items(), key=lambda each: -len(each[1]))[:KINDS_SHRUNK_MAX]:
        say(f"{len(found)} x {kind}\n    seeds {' '.join(map(str, found[:8]))}")
        small = smallest(simulate(found[0], backend=backend, make_world=make_world), make_world)
        say("    the smallest plan that fails alike (put it into a file: --plan FILE):")
        say(msgspec.json.encode(small.plan).decode())
    failed = sum(map(len, failures.values()))
    say(f"{len(seeds)} seeds, {failed} failed, {len(seeds) / elapsed_s:.0f} a second on {backend}")
    return int(failed > 0)


def _kind(backend: Backend, make_world: MakeWorld, seed: int) -> tuple[int, str | None]:
    outcome = simulate(seed, backend=backend, make_world=make_world)
    return seed, outcome.kind if outcome.broken is not None else None


def _spread(
    kind_of: Callable[[int], tuple[int, str | None]], seeds: range, workers: int
) -> Iterator[tuple[int, str | None]]:
    if workers <= 1:
        yield from map(kind_of, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(kind_of, seeds, chunksize=20)


def _replay(seed: int, backend: Backend) -> str:
    where = "" if backend == "trio" else f" --backend {backend}"
    return f"replay: ./dev simulate --seed {seed}{where} [--shrink]"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
