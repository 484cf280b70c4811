"""Runs anything under a seeded scheduler on virtual time. The same seed gives the same run.

    def test_it() -> None:
        run_seeded(scenario, seed=7)

    async def scenario(run: Seeded) -> None:
        source = CancelSource("root", clock=run.clock, timeout_s=3600)
        await anyio.sleep(3599)             # takes no time at all
        ...

The seed decides, at every step, which of the runnable tasks goes first, and it seeds Python's
global `random`. Time stands still while anything can run, then jumps to the next deadline. It also
jumps after `BUSY_ROUNDS_MAX` rounds without a rest, so that a busy task cannot hold time still. If
nothing can run and no deadline is left, `Deadlock` is raised and names the waiting tasks.

There are two backends. On trio every step is shuffled. On asyncio only the steps of tasks are
shuffled among themselves; plain callbacks keep their order, which libraries rely on. Real threads
are not controlled by the seed; do not use them in such a run.
"""

import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CoroutineType, FrameType, GeneratorType
from typing import Generic, Literal, TypeVar

import anyio

from bargein.cancel import CancelSource, as_current
from bargein.testing.clock import VirtualClock
from bargein.testing.gates import Gates

T = TypeVar("T")

Backend = Literal["trio", "asyncio"]

# How long, in real time, a stuck run waits for a thread to wake it.
THREAD_S_MAX = 1.0

# After this many rounds of the scheduler without a rest, time jumps.
BUSY_ROUNDS_MAX = 5_000

_one_at_a_time = threading.Lock()


class Deadlock(AssertionError):
    """Every task waits, and nothing is left to wake any of them."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """The parts of a seeded run, all determined by the seed."""

    seed: int
    backend: Backend
    random: random.Random
    clock: VirtualClock = field(default_factory=VirtualClock)
    gates: Gates = field(default_factory=Gates)


def run_seeded(
    function: Callable[[Seeded], Awaitable[T]], seed: int, *, backend: Backend = "trio"
) -> T:
    """Runs `function` to its end and returns its result.

    It runs under a root token on the virtual clock, so that code that uses the current token (such
    as `shield`) is on virtual time too.
    """
    run = Seeded(seed, backend, random.Random(seed))
    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError("one seeded run at a time: the schedulers share their random numbers")
    try:
        with _seeded_random(seed):
            return _run_on(backend, Scenario(function, run))
    finally:
        _one_at_a_time.release()


def _run_on(backend: Backend, scenario: "Scenario[T]") -> T:
    if backend == "trio":
        from bargein.testing.seeded_trio import run_on_trio

        return run_on_trio(scenario)
    if backend == "asyncio":
        from bargein.testing.seeded_asyncio import run_on_asyncio

        return run_on_asyncio(scenario)
    raise ValueError(f"backend must be 'trio' or 'asyncio', not {backend!r}")


@contextmanager
def _seeded_random(seed: int) -> Iterator[None]:
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


class Scenario(Generic[T]):
    """What a backend runs: the function beside its clock, until it ends or is stuck."""

    def __init__(self, function: Callable[[Seeded], Awaitable[T]], run: Seeded) -> None:
        self.run = run
        self._function = function
        self._scope: anyio.CancelScope | None = None
        self._stuck = ""

    async def main(self) -> T:
        values: list[T] = []
        error: Exception | None = None
        source = CancelSource(f"seed {self.run.seed}", clock=self.run.clock)
        with anyio.CancelScope() as self._scope, source, as_current(source.token):
            async with anyio.create_task_group() as beside:
                beside.start_soon(self.run.clock.run)
                try:
                    values.append(await self._function(self.run))
                except Exception as raised:  # boundary: raised below, out of the group
                    error = raised
                beside.cancel_scope.cancel()
        if error is not None:
            raise error
        if not values:
            raise Deadlock(self._stuck)
        return values[0]

    def end_as_stuck(self) -> None:
        """Ends the run when nothing is left that could happen. The backend calls it."""
        if not self._stuck and self._scope is not None:
            waiting = "\n".join(sorted(_waiting_tasks()))
            self._stuck = (
                f"seed {self.run.seed} on {self.run.backend}: every task waits, no deadline is left"
                f" and no thread came for {THREAD_S_MAX:g} s\n{waiting}"
            )
            self._scope.cancel()


def _waiting_tasks() -> Iterator[str]:
    for task in anyio.get_running_tasks():
        place = _where(task.coro)
        if place:
            yield f"  {task.name} waits in {place}"


def _where(awaited: object) -> str:
    """Returns the innermost line of a coroutine outside of libraries, as far as it is known."""
    place = ""
    while isinstance(awaited, CoroutineType | GeneratorType):
        if isinstance(awaited, CoroutineType):
            frame, awaited = awaited.cr_frame, awaited.cr_await
        else:
            frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
        if frame is not None and _package(frame) not in ("anyio", "asyncio", "trio"):
            place = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
    return place


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
