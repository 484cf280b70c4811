"""How sessions write: each in order, all of them together.

A session has a `Journal`. `append` puts events in their place at once and never waits. During a
commit the journal gathers the events that follow, and writes them together in the next commit, with
the session's state at that time. Events that nobody waits for linger for a moment first, so that
the end of a turn is one commit.

The engine has one `GroupCommitter`. A journal with something to write registers there. A moment
later the committer takes the commits of all registered journals and gives them to the store in one
call. Several such calls may be in flight; a journal takes part in at most one of them. A large
commit has a call of its own, so that no other session waits for it.

What holds:

- Nothing is announced or answered before it is durable. Every commit carries the session's epoch.
- A failed commit breaks its journal: every later one fails too, and the session starts again from
  what is durable. So nothing is written on top of a gap.
- A failure or a bug in one session does not affect another.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Protocol

from bargein.cancel._loops import loop_time
from bargein.cancel.latch import Latch
from bargein.contracts.event import (
    AssistantSaid,
    Event,
    ModelUsed,
    SessionTitled,
    UserSaid,
)
from bargein.contracts.model import Text
from bargein.contracts.store import Commit, Store, StoreFailed, is_large
from bargein.errors import BargeinError, BugError
from bargein.session.reply import Reply

SAID = (UserSaid, AssistantSaid)
TOLD = (AssistantSaid, ModelUsed)
"""Events to remember if they cannot be stored: the model's answers and their cost."""
WITH_WORDS = {*SAID, SessionTitled}

TOGETHER_MAX = 128
RESTING_MAX = 16

_log = logging.getLogger("bargein.session")


class JournalBroken(BargeinError):
    """A write of this session failed; anything that was not confirmed before may be missing."""


class Journal:
    """What one session writes, in order.

    `state` returns the session's encoded state, and whether it is unfinished. When a commit is
    durable the journal calls `announce` with it, then `durable` with each of its replies.
    """

    def __init__(
        self,
        committer: "GroupCommitter",
        *,
        session: str,
        root: str,
        epoch: int,
        seq: int,
        state: Callable[[], tuple[bytes, bool]],
        announce: Callable[[Commit], None],
        durable: Callable[[Reply], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._committer = committer
        self._session = session
        self._root = root
        self._epoch = epoch
        self.durable_seq = seq
        self._state = state
        self._announce = announce
        self._durable = durable
        self._on_broken = on_broken
        self._waiting: list[Reply] = []
        self._under_way: list[Reply] = []
        self._in_a_hurry = False
        self._broken: BaseException | None = None
        self._idle: Latch | None = None
        self._moved: Latch | None = None
        self.lost: list[tuple[int, AssistantSaid | ModelUsed]] = []
        self._lost_seq = 0

    def append(self, reply: Reply, lingers: bool) -> None:
        """Write the events of `reply` and the state after them. Fails `reply` if they can never be
        durable."""
        if self._broken is not None:
            self._note_lost(reply)
            _lose(reply, self._broken)
            return
        self._waiting.append(reply)
        if not lingers:
            self._hurry()
        elif len(self._waiting) == 1 and not self._under_way:
            self._committer.commit_soon(self)

    def _hurry(self) -> None:
        if self._waiting and not self._in_a_hurry:
            self._in_a_hurry = True
            if not self._under_way:
                self._committer.commit(self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the store."""
        return not self._waiting and not self._under_way

    async def idle(self) -> None:
        self._hurry()
        while not self.is_idle:
            self._idle = self._idle or Latch()
            await self._idle.wait()

    async def reached(self, seq: int) -> bool:
        """Wait until the event `seq` is durable. Returns False if it never will be."""
        self._hurry()
        while self.durable_seq < seq and self._broken is None:
            self._moved = self._moved or Latch()
            await self._moved.wait()
        return self.durable_seq >= seq

    def _tell_of_move(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    def give_up(self, error: BaseException) -> None:
        """Stop waiting for the store. Every reply that it has not confirmed fails."""
        if self._broken is None:
            self._broken = error
            self._tell_of_move()
            self._lost_seq = self.durable_seq
            for reply in [*self._under_way, *self._waiting]:
                self._note_lost(reply)
                _lose(reply, error)
            self._waiting = []
            if not self._under_way:
                self._rest()

    def _note_lost(self, reply: Reply) -> None:
        """Remember events with the seqs they would have had: some may be in the store after all."""
        for event in reply.events:
            self._lost_seq += 1
            if isinstance(event, TOLD):
                self.lost.append((self._lost_seq, event))

    # Called by the committer

    def take(self, at: float) -> Commit | None:
        """Return one commit of all waiting events; None if there is nothing to write."""
        if not self._waiting:
            return None
        self._under_way, self._waiting = self._waiting, []
        self._in_a_hurry = False
        events, keys = self._under_way[0].events, self._under_way[0].keys
        for reply in self._under_way[1:]:
            events += reply.events
            keys += reply.keys
        state, unfinished = self._state()
        title, text = _words_of(events)
        return Commit(
            session=self._session,
            root=self._root,
            epoch=self._epoch,
            expected_seq=self.durable_seq,
            at=at,
            events=events,
            state=state,
            unfinished=unfinished,
            keys=keys,
            title=title,
            text=text,
        )

    def written(self, commit: Commit) -> None:
        """Note that the commit is durable. After `give_up` nobody waits for it any more."""
        if self._broken is None:
            self._announce(commit)
            self.durable_seq += len(commit.events)
            self._tell_of_move()
            for reply in self._under_way:
                # A reply stays in memory with its message's id; free the rest, the store has it.
                reply.events, reply.keys = (), ()
                self._durable(reply)
        self._go_on()

    def not_written(self, error: Exception) -> None:
        if self._broken is None:
            self.give_up(error)
            self._on_broken(error)
        self._go_on()

    def _go_on(self) -> None:
        self._under_way = []
        if not self._waiting:
            self._rest()
        elif self._in_a_hurry:
            self._committer.commit(self)
        else:
            self._committer.commit_soon(self)

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None


def _words_of(events: tuple[Event, ...]) -> tuple[str | None, str]:
    """Return the title that these events give the session, if any, and the text said in them."""
    title: str | None = None
    text = ""
    for event in events:
        if type(event) not in WITH_WORDS:
            continue
        if isinstance(event, SAID):
            content = event.content if isinstance(event, UserSaid) else event.message.content
            said = [part.text for part in content if isinstance(part, Text)]
            text = "\n".join([text, *said] if text else said)
        elif isinstance(event, SessionTitled):
            title = event.title
    return title, text


def _lose(reply: Reply, error: BaseException) -> None:
    broken = JournalBroken(f"could not be stored: {error}")
    broken.__cause__ = error
    reply.fail(broken)


# --- all sessions together


class Committing(Protocol):
    """A journal, as the committer uses it."""

    def take(self, at: float) -> Commit | None: ...

    def written(self, commit: Commit) -> None: ...

    def not_written(self, error: Exception) -> None: ...


Taken = tuple[Committing, Commit]


class GroupCommitter:
    """Writes for all sessions of an engine. A commit that nobody waits for waits `linger_s`.
    `spawn` starts a task of the engine."""

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
        self._ready: dict[Committing, None] = {}
        self._large: deque[Taken] = deque()
        self._lingering: dict[Committing, float] = {}
        self._resting: list[Latch] = []
        self._over = Latch()

    def open(self) -> None:
        self._spawn(self._end_lingering)

    def commit(self, journal: Committing) -> None:
        """Take this journal's commit once all tasks that can run now have run."""
        self._lingering.pop(journal, None)
        self._ready[journal] = None
        if len(self._ready) == 1:
            self._call_a_task()

    def commit_soon(self, journal: Committing) -> None:
        """Take this journal's commit after `linger_s`, unless it calls `commit` before."""
        self._lingering[journal] = loop_time() + self._linger_s
        if len(self._lingering) == 1:
            self._over.wait_no_longer(self._linger_s)

    async def _end_lingering(self) -> None:
        while True:
            await self._over.wait(self._commit_overdue())

    def _commit_overdue(self) -> float | None:
        """Commit journals that have lingered long enough. Returns how long the next may still
        linger. A separate function, so that the waiting task refers to no session that has left
        memory."""
        for journal, until in list(self._lingering.items()):
            left_s = until - loop_time()
            if left_s > 0:
                return left_s
            self.commit(journal)
        return None

    def _call_a_task(self) -> None:
        if self._resting:
            self._resting.pop().set()
        else:
            self._spawn(self._commit_on)

    async def _commit_on(self) -> None:
        """Commit until nothing is ready, then rest; end if enough other tasks rest."""
        while True:
            while self._ready or self._large:
                if self._ready:
                    await self._commit_some()
                else:
                    await self._write([self._large.popleft()])
            if len(self._resting) >= RESTING_MAX:
                return
            called = Latch()
            self._resting.append(called)
            try:
                await called.wait()
            except BaseException:
                self._lose_a_task(called)
                raise

    def _lose_a_task(self, called: Latch) -> None:
        """Handle the cancel of a resting task: the engine is closed, or other code cancelled it. If
        it was already called, another task takes over."""
        if not called.is_set:
            self._resting.remove(called)
        elif self._ready or self._large:
            self._call_a_task()

    async def _commit_some(self) -> None:
        journals = list(islice(self._ready, TOGETHER_MAX))
        for journal in journals:
            del self._ready[journal]
        if self._ready:
            self._call_a_task()
        at = self._now()
        together: list[Taken] = []
        large: list[Taken] = []
        for journal in journals:
            try:
                commit = journal.take(at)
            except Exception as error:  # boundary: a bug in one session must not affect others
                self._break(journal, error)
                continue
            if commit is not None:
                (large if is_large(commit) else together).append((journal, commit))
        for taken in large if together else large[1:]:
            self._large.append(taken)
            self._call_a_task()
        if together or large:
            await self._write(together or large[:1])

    async def _write(self, taken: list[Taken]) -> None:
        try:
            outcomes = await self._store.commit([commit for _, commit in taken])
            if len(outcomes) != len(taken):
                raise BugError(f"the store answered {len(outcomes)} commits, not {len(taken)}")
        except Exception as error:  # boundary: each session gets it as the outcome of its commit
            outcomes = [error] * len(taken)
        except GeneratorExit:
            raise  # the loop is gone, and everything that waited in it
        except BaseException:
            # As in `_lose_a_task`. The sessions find out what happened when they start again.
            cut_off = StoreFailed("the task that wrote it was cancelled", retryable=True)
            self._tell(taken, [cut_off] * len(taken))
            raise
        self._tell(taken, outcomes)

    def _tell(self, taken: list[Taken], outcomes: Sequence[Exception | None]) -> None:
        for (journal, commit), outcome in zip(taken, outcomes, strict=True):
            try:
                if outcome is None:
                    journal.written(commit)
                else:
                    journal.not_written(outcome)
            except Exception as error:  # boundary: a bug in one session must not affect others
                self._break(journal, error)

    def _break(self, journal: Committing, error: Exception) -> None:
        _log.error("a session could not continue after a write", exc_info=error)
        try:
            journal.not_written(BugError(f"{type(error).__name__}: {error}"))
        except Exception as another:  # boundary: the other sessions still get their outcomes
            _log.error("a session could not be given up", exc_info=another)
