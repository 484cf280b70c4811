"""One life of an engine: from its start, with what it finds on the disk, to its end or crash.

A crash is sudden. From that step of the scheduler on, nothing that this life does reaches the disk,
the users or the record. What is left of it is cancelled and awaited, so that the next life begins
in a quiet world. Users' open calls are never answered.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from bargein.contracts.event import Event
from bargein.contracts.store import StoreFailed
from bargein.session.engine import SessionEngine
from bargein.testing.simulation.plan import LifePlan, StoreFault

if TYPE_CHECKING:
    from bargein.testing.simulation.store import Disk
    from bargein.testing.simulation.world import World


class Life:
    def __init__(self, world: "World", number: int, plan: LifePlan, disk: "Disk") -> None:
        self.world = world
        self.record = world.record
        self.number = number
        self.name = f"life {number}"
        self.plan = plan
        self._disk = disk
        self.store = world.make_store(self, disk)
        self.began_at = world.now()
        self.began_at_step = world.steps
        self.engine: SessionEngine | None = None
        self.dead = False
        self.closing = False
        self.ended = anyio.Event()
        self._died = anyio.Event()
        self._close = anyio.Event()
        self._scope = anyio.CancelScope()
        self._callers: set[anyio.CancelScope] = set()
        self._asked: Counter[str] = Counter()
        self._faults = {(fault.event, fault.operation): fault for fault in plan.faults}
        self._operations: Counter[str | None] = Counter()

    @property
    def usable(self) -> bool:
        return self.engine is not None and not self.dead and not self.closing

    async def run(self) -> None:
        try:
            with self._scope:
                await self._run()
        finally:
            self.engine = None
            self._disk.bury(self.name)
            self.ended.set()
            self.world.changed()

    async def _run(self) -> None:
        try:
            async with self.world.make_engine(self) as engine:
                self.engine = engine
                self.note("ready")
                self.world.changed()
                await self._close.wait()
                closes_at = self.world.now()
            if not self.dead:
                self._check_exit(self.world.now() - closes_at)
        except StoreFailed:
            # The store failed while the engine started.
            if self.engine is not None:
                raise

    def _check_exit(self, elapsed_s: float) -> None:
        limits = self.world.limits
        bound_s = limits.receipt_s + 2 * limits.settle_s
        self.note("closed")
        if elapsed_s > bound_s + 1e-6:
            self.record.blame(6, f"the engine took {elapsed_s:.3f} s to close, over {bound_s} s")

    def close(self) -> None:
        """Asks the engine to close properly."""
        if not self.closing:
            self.note("is closed")
            self.closing = True
            self._close.set()
            self.world.changed()

    def crash(self) -> None:
        self.note("crashes")
        self.dead = True
        self.record.crash(self.number)
        self._died.set()
        self._scope.cancel()
        for caller in self._callers:
            caller.cancel()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Wraps a user's call, which never returns from a crash."""
        with anyio.CancelScope() as scope:
            self._callers.add(scope)
            try:
                yield
            finally:
                self._callers.discard(scope)

    @contextmanager
    def asking(self, *sessions: str) -> Iterator[None]:
        """Wraps a user's call that needs these sessions. Watching, or waiting for an answer, needs
        none."""
        self._asked.update(sessions)
        try:
            yield
        finally:
            self._asked.subtract(sessions)

    async def sleep(self, seconds: float) -> None:
        """Sleeps. Everything that takes time in this life uses this, so that a crash ends it."""
        with anyio.move_on_after(seconds):
            await self._died.wait()

    def owns(self, session: str) -> None:
        if not self.dead:
            self.record.owners[session] = self.number
            self.record.refused.discard((self.number, session))

    def is_told_that_it_lost(self, session: str) -> None:
        if not self.dead:
            self.note("is told that it lost", session)
            self.record.refused.add((self.number, session))

    def check_alive(self) -> None:
        if self.dead:
            raise StoreFailed("this life is over (simulated)", retryable=False)

    def is_asked_for(self, session: str) -> bool:
        return self._asked[session] > 0

    def next_fault(self, events: Sequence[Event]) -> StoreFault | None:
        """Returns the fault for the store's next operation; with events, that is a commit."""
        found: StoreFault | None = None
        for name in (None, *{type(event).__name__: None for event in events}):
            found = found or self._faults.get((name, self._operations[name]))
            self._operations[name] += 1
        return None if self.world.calming else found

    def note(self, *words: object) -> None:
        if not self.dead:
            self.world.note(self.number, words)
            if self.world.backend != "trio":
                self.world.step()
