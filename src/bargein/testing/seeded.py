"""Run anything under a seeded scheduler on virtual time. The same seed gives the same run.

    def test_it() -> None:
        run_seeded(scenario, seed=7)

    async def scenario(run: Seeded) -> None:
        source = CancelSource("root", clock=run.clock, timeout_s=3600)
        await anyio.sleep(3599)             # takes no time at all
        ...

What is decided by the seed: which of the tasks that could go on goes first, at every step, and
Python's global `random`. Time stands still while anything can be done, then jumps to the next
deadline; it also jumps when something has been done for `BUSY_ROUNDS_MAX` rounds on end, so that
a task that never rests cannot hold time still. When nothing can be done and no deadline is left,
`Deadlock` is raised, which names the tasks that wait.

Two backends. On trio every step is shuffled. On asyncio only the steps of tasks are, among
themselves; plain callbacks keep their order, which libraries rely on. What runs in real threads is
outside of all this and not to be used in such a run.
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

# How long, in real time, a run that cannot go on waits for a thread to wake it.
THREAD_S_MAX = 1.0

# After so many rounds of the scheduler without a rest, time goes on.
BUSY_ROUNDS_MAX = 5_000

_one_at_a_time = threading.Lock()


class Deadlock(AssertionError):
    """Every task waits, and nothing is left that could wake one of them."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """What a seeded run is given: all of it is determined by the seed."""

    seed: int
    backend: Backend
    random: random.Random
    clock: VirtualClock = field(default_factory=VirtualClock)
    gates: Gates = field(default_factory=Gates)


def run_seeded(
    function: Callable[[Seeded], Awaitable[T]], seed: int, *, backend: Backend = "trio"
) -> T:
    """Run `function` to its end and return what it returns.

    It runs under a root token on the virtual clock, so that what asks for the current token (a
    `shield`, say) is on virtual time as well.
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
    """What a backend runs: the function beside its clock, until it ends or cannot."""

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
        """Called by the backend when nothing is left that could happen."""
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
    """The innermost line of a coroutine that is not a library's, as far as it can be followed."""
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
