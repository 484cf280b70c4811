"""The seeded trio scheduler: trio's own mock clock, with its random numbers from the seed.

trio shuffles the tasks of each round. To make that repeatable it has a private switch and a private
random number generator for test frameworks; both are set for the run and restored after it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, TypeVar

import anyio

from bargein.testing.seeded import BUSY_ROUNDS_MAX, THREAD_S_MAX

try:
    import trio
    import trio.testing
except ImportError as error:
    raise ImportError(
        "a seeded run on trio needs trio, which is not installed: "
        "pip install 'bargein[testing]', or choose backend='asyncio'"
    ) from error

if TYPE_CHECKING:
    from bargein.testing.seeded import Scenario

T = TypeVar("T")


def run_on_trio(scenario: "Scenario[T]") -> T:
    clock = trio.testing.MockClock(autojump_threshold=0)
    options = {"clock": clock, "instruments": [_Watch(clock, scenario.end_as_stuck)]}
    with _seeded_scheduler(scenario.run.seed):
        return anyio.run(scenario.main, backend="trio", backend_options=options)


@contextmanager
def _seeded_scheduler(seed: int) -> Iterator[None]:
    scheduler = vars(import_module("trio._core._run"))
    numbers = scheduler["_r"]
    state, switch = numbers.getstate(), scheduler["_ALLOW_DETERMINISTIC_SCHEDULING"]
    scheduler["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    numbers.seed(seed)
    try:
        yield
    finally:
        scheduler["_ALLOW_DETERMINISTIC_SCHEDULING"] = switch
        numbers.setstate(state)


class _Watch(trio.abc.Instrument):
    """Notices rounds in which nothing is left to do, and runs that never rest."""

    def __init__(self, clock: trio.testing.MockClock, on_stuck: Callable[[], object]) -> None:
        self._clock = clock
        self._on_stuck = on_stuck
        self._idle_since: float | None = None
        self._busy_rounds = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._idle_since = None

    def before_io_wait(self, timeout: float) -> None:
        statistics = trio.lowlevel.current_statistics()
        rest = statistics.seconds_to_next_deadline
        if statistics.tasks_runnable:
            self._busy_rounds += 1
            if self._busy_rounds > BUSY_ROUNDS_MAX and 0 < rest < inf:
                self._clock.jump(rest)
                self._busy_rounds = 0
        else:
            self._busy_rounds = 0
            if rest == inf:
                self._be_idle()

    def _be_idle(self) -> None:
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > THREAD_S_MAX:
            self._on_stuck()
        else:
            # Only a thread could still wake something; trio itself would poll without a pause.
            time.sleep(0.001)
