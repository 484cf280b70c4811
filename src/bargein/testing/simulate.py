"""Whole sessions from a seed: the real engine in a simulated world, held to the laws.

    python -m bargein.testing.simulate --seeds 5000        # many worlds
    python -m bargein.testing.simulate --seed 42           # one, with its whole history
    python -m bargein.testing.simulate --seed 42 --shrink  # the smallest plan that fails alike

The same seed gives the same world, step by step. From Python:

    outcome = simulate(42)
    assert outcome.broken is None, outcome.story()
"""

import argparse
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from bargein.testing.seeded import Backend, Seeded, run_seeded
from bargein.testing.simulation.draw import make_plan
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.record import Record
from bargein.testing.simulation.shrink import shrink
from bargein.testing.simulation.world import World

MakeWorld = Callable[[Plan, Seeded], World]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a world. `broken` is the first law that was, or the error that escaped."""

    plan: Plan
    backend: Backend
    broken: Exception | None
    record: Record

    @property
    def kind(self) -> str:
        """Which failure it is, without the numbers that differ from world to world."""
        return re.sub(r"\d+", "#", str(self.broken))[:120]

    def story(self) -> str:
        """The plan, all that happened, and what was wrong with it."""
        lines = [f"seed {self.plan.seed} on {self.backend}", repr(self.plan)]
        for at, life, words in self.record.history:
            lines.append(f"{at:10.3f} {life} " + " ".join(map(str, words)))
        lines.append(f"broken: {self.broken!r}" if self.broken is not None else "no law was broken")
        return "\n".join(lines)


def simulate(
    what: int | Plan, *, backend: Backend = "trio", make_world: MakeWorld = World
) -> Outcome:
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
    return Outcome(plan, backend, world.record.broken or broken, world.record)


def smallest(outcome: Outcome, *, make_world: MakeWorld = World) -> Outcome:
    """The same failure in the smallest world that shows it."""

    def fails_alike(plan: Plan) -> bool:
        found = simulate(plan, backend=outcome.backend, make_world=make_world)
        return found.broken is not None and found.kind == outcome.kind

    plan = shrink(outcome.plan, fails_alike)
    return simulate(plan, backend=outcome.backend, make_world=make_world)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """What goes wrong in a simulated world is meant to; the log need not tell of it."""
    log = logging.getLogger("bargein")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _counted_steps(world: World, backend: Backend) -> Iterator[None]:
    """Have the world told of each step of the scheduler, so that it can crash at any of them."""
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
        prog="simulate", description="Whole sessions from a seed, held to the laws."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="one world, with its history")
    parser.add_argument("--shrink", action="store_true", help="then the smallest that fails alike")
    parser.add_argument("--backend", choices=("trio", "asyncio"), default="trio")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return _show_one(chosen.seed, chosen.backend, chosen.shrink)
    return _run_many(range(chosen.first, chosen.first + chosen.seeds), chosen.backend)


def _show_one(seed: int, backend: Backend, shrinks: bool) -> int:
    outcome = simulate(seed, backend=backend)
    if shrinks and outcome.broken is not None:
        outcome = smallest(outcome)
        say(f"as JSON: {msgspec.json.encode(outcome.plan).decode()}")
    say(outcome.story())
    return int(outcome.broken is not None)


def _run_many(seeds: range, backend: Backend) -> int:
    failures: dict[str, list[int]] = {}
    began_at = shown_at = time.monotonic()
    for seed in seeds:
        outcome = simulate(seed, backend=backend)
        if outcome.broken is not None:
            failures.setdefault(outcome.kind, []).append(seed)
        if time.monotonic() - shown_at > 10:
            shown_at = time.monotonic()
            say(f"  {seed - seeds.start + 1} of {len(seeds)}")
    elapsed_s = time.monotonic() - began_at
    for kind, found in sorted(failures.items(), key=lambda each: -len(each[1])):
        say(f"{len(found)} x {kind}\n    seeds {' '.join(map(str, found[:8]))}")
    failed = sum(map(len, failures.values()))
    say(f"{len(seeds)} seeds, {failed} failed, {len(seeds) / elapsed_s:.0f} a second on {backend}")
    return int(failed > 0)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
