"""The engine's hands that write: what its sessions have to write goes to the store together.

A journal that has something to write says so, and is asked for it a moment later, with all others
that have said so by then: one request to the store, however many they are. As many of these are
under way as the store lets come together; a journal is in one of them at most. What one session
has to write, and what becomes of it, touches no other.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Protocol

from bargein.cancel._loops import loop_time
from bargein.cancel.latch import Latch
from bargein.contracts.store import Commit, Store, StoreFailed
from bargein.errors import BugError

TOGETHER_MAX = 128
RESTING_MAX = 16

_log = logging.getLogger("bargein.session")


class Writes(Protocol):
    """A journal, as it is seen from here."""

    def take(self, at: float) -> Commit | None:
        """What is to be written now; None if that has been done, or given up."""
        ...

    def written(self, commit: Commit) -> None: ...

    def not_written(self, error: Exception) -> None: ...


class Scribe:
    """`linger_s` is how long something waits that nobody waits for. `spawn` starts a task of the
    engine."""

    def __init__(
        self,
        store: Store,
        *,
        linger_s: float,
        now: Callable[[], float],
        spawn: Callable[[Callable[[], Coroutine[object, object, None]]], None],
    ) -> None:
        self._store = store
        self._linger_s = linger_s
        self._now = now
        self._spawn = spawn
        self._ready: dict[Writes, None] = {}
        self._lingering: dict[Writes, float] = {}
        self._resting: list[Latch] = []
        self._over = Latch()

    def open(self) -> None:
        self._spawn(self._end_lingering)

    def write(self, journal: Writes) -> None:
        """Ask for what it has as soon as all that runs now has had its say."""
        self._lingering.pop(journal, None)
        self._ready[journal] = None
        if len(self._ready) == 1:
            self._call_a_hand()

    def write_soon(self, journal: Writes) -> None:
        """The same after a while, unless it is in a hurry before that."""
        self._lingering[journal] = loop_time() + self._linger_s
        if len(self._lingering) == 1:
            self._over.wait_no_longer(self._linger_s)

    async def _end_lingering(self) -> None:
        while True:
            await self._over.wait(self._write_overdue())

    def _write_overdue(self) -> float | None:
        """How long the next of those that linger has yet. (Of its own, so that the task that waits
        for it holds on to no session: one that leaves memory is to be gone.)"""
        for journal, until in list(self._lingering.items()):
            left_s = until - loop_time()
            if left_s > 0:
                return left_s
            self.write(journal)
        return None

    def _call_a_hand(self) -> None:
        if self._resting:
            self._resting.pop().set()
        else:
            self._spawn(self._write_on)

    async def _write_on(self) -> None:
        """One hand: it rests while there is nothing to write, unless enough others do."""
        while True:
            while self._ready:
                await self._write_some()
            if len(self._resting) >= RESTING_MAX:
                return
            called = Latch()
            self._resting.append(called)
            try:
                await called.wait()
            except BaseException:
                self._lose_a_hand(called)
                raise

    def _lose_a_hand(self, called: Latch) -> None:
        """It was cancelled: the engine is closed, or somebody has found the task. Nobody calls it
        any more; and what it was called for is left to another."""
        if not called.is_set:
            self._resting.remove(called)
        elif self._ready:
            self._call_a_hand()

    async def _write_some(self) -> None:
        journals = list(islice(self._ready, TOGETHER_MAX))
        for journal in journals:
            del self._ready[journal]
        if self._ready:
            self._call_a_hand()
        at = self._now()
        taken: list[tuple[Writes, Commit]] = []
        for journal in journals:
            try:
                commit = journal.take(at)
            except Exception as error:  # boundary: a bug of one session is its own
                self._break(journal, error)
                continue
            if commit is not None:
                taken.append((journal, commit))
        if not taken:
            return
        try:
            outcomes = await self._store.commit([commit for _, commit in taken])
            if len(outcomes) != len(taken):
                raise BugError(f"the store told of {len(outcomes)} commits, not of {len(taken)}")
        except Exception as error:  # boundary: whatever the store says, the sessions are told
            outcomes = [error] * len(taken)
        except GeneratorExit:
            raise  # the loop is gone, and whoever waited in it
        except BaseException:
            # As in `_lose_a_hand`. What becomes of it is known when they begin anew.
            cut_off = StoreFailed("what wrote it was cancelled on the way", retryable=True)
            self._tell(taken, [cut_off] * len(taken))
            raise
        self._tell(taken, outcomes)

    def _tell(
        self, taken: list[tuple[Writes, Commit]], outcomes: Sequence[Exception | None]
    ) -> None:
        for (journal, commit), outcome in zip(taken, outcomes, strict=True):
            try:
                if outcome is None:
                    journal.written(commit)
                else:
                    journal.not_written(outcome)
            except Exception as error:  # boundary: a bug of one session is its own
                self._break(journal, error)

    def _break(self, journal: Writes, error: Exception) -> None:
        _log.error("a session could not go on after writing", exc_info=error)
        try:
            journal.not_written(BugError(f"{type(error).__name__}: {error}"))
        except Exception as another:  # boundary: the others are told all the same
            _log.error("a session could not be given up", exc_info=another)
