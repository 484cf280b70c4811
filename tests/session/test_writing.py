"""Journals and their committer on a disk that is slow, full and wrong at any moment, from seeds:
everything appended is told exactly once what became of it, and what is durable is what was
appended, in its order, without a gap."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import anyio
import pytest

from bargein.contracts.event import Event, Recorded, TextCheckpoint
from bargein.contracts.store import Commit, OutOfOrder, StaleEpoch, Store, StoreFailed
from bargein.errors import BargeinError, BugError
from bargein.session.commands import Done
from bargein.session.engine_tasks import EngineTasks
from bargein.session.journal import GroupCommitter, Journal, JournalBroken
from bargein.session.reply import Reply
from bargein.testing.seeded import Backend, Seeded, run_seeded

LINGER_S = 0.05
FULL = StoreFailed("the disk is full, as the seed says", retryable=True)


class Disk:
    """Keeps the log of each session. `troubles` is how likely a commit goes wrong."""

    def __init__(self, chance: random.Random, troubles: float) -> None:
        self.logs: dict[str, list[Event]] = {}
        self.states: dict[str, bytes] = {}
        self.epochs: dict[str, int] = {}
        self.under_way: set[tuple[str, int]] = set()
        self.lives: dict[tuple[str, int], Life] = {}
        self.wrong: list[AssertionError] = []
        self._chance = chance
        self._troubles = troubles

    @contextmanager
    def checks(self) -> Iterator[None]:
        """What is raised to the committer would be taken for a failure of the store."""
        try:
            yield
        except AssertionError as error:
            self.wrong.append(error)

    def claim(self, session: str) -> tuple[int, int]:
        self.epochs[session] = self.epochs.get(session, 0) + 1
        return self.epochs[session], len(self.logs.setdefault(session, []))

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        asked = [(commit.session, commit.epoch) for commit in commits]
        with self.checks():
            assert len(set(asked)) == len(asked)
            assert not self.under_way.intersection(asked), "a journal is in one request at most"
            for life, commit in zip(asked, commits, strict=True):
                self.lives[life].begins_to_write(commit)
        self.under_way.update(asked)
        try:
            return await self._write(commits)
        finally:
            self.under_way.difference_update(asked)
            for life in asked:
                self.lives[life].written_at = anyio.current_time()

    async def _write(self, commits: Sequence[Commit]) -> list[Exception | None]:
        chance = self._chance
        await anyio.sleep(chance.choice((0.0, 0.0, 0.001, 0.02, 0.2, 3.0)))
        if chance.random() < self._troubles / 4:
            raise FULL
        outcomes = [self._put(commit) for commit in commits]
        await anyio.sleep(chance.choice((0.0, 0.0, 0.01)))
        return outcomes

    def _put(self, commit: Commit) -> Exception | None:
        log = self.logs[commit.session]
        if self.epochs[commit.session] != commit.epoch:
            return StaleEpoch(f"{commit.session} has another owner")
        if len(log) != commit.expected_seq:
            return OutOfOrder(f"{commit.session} ends at {len(log)}")
        if self._chance.random() < self._troubles:
            return FULL
        log.extend(commit.events)
        self.states[commit.session] = commit.state
        # It may have happened, and be told to have failed.
        return FULL if self._chance.random() < self._troubles / 2 else None


class Told(Reply):
    """What one append was told, and when it was made. `fails`: what follows it has a bug."""

    def __init__(self, life: Life, events: tuple[Event, ...], lingers: bool, fails: bool) -> None:
        super().__init__()
        self.life = life
        self.events = self.said = events
        self.lingers = lingers
        self.fails = fails
        self.at = anyio.current_time()
        self.last_seq = 0
        self.how: list[str] = []

    def durable(self) -> None:
        self.how.append("durable")
        life = self.life
        with life.disk.checks():
            # After all that was appended before it, and after its own events were announced.
            assert life.appended[len(life.told_to)] is self
            assert len(life.announced) >= self.last_seq - life.began_at
        life.told_to.append(self)
        self.give(Done())
        if self.fails:
            raise KeyError("a bug of the session")

    def fail(self, error: BargeinError) -> None:
        super().fail(error)
        self.how.append("lost")
        with self.life.disk.checks():
            assert isinstance(error, JournalBroken)
            assert error.__cause__ is self.life.journal._broken


class Life:
    """A session in memory, from its claim until its journal breaks or is given up."""

    def __init__(self, disk: Disk, committer: GroupCommitter, session: str) -> None:
        self.session = session
        self.epoch, self.began_at = disk.claim(session)
        self.appended: list[Told] = []
        self.told_to: list[Told] = []
        self.announced: list[Recorded] = []
        self.broken: BaseException | None = None
        self.has_a_bug = False
        self.written_at = 0.0
        self.disk = disk
        self.journal = Journal(
            committer,
            session=session,
            root=session,
            epoch=self.epoch,
            seq=self.began_at,
            state=self._state,
            announce=self._announce,
            durable=self._durable,
            on_broken=self._breaks,
        )
        disk.lives[session, self.epoch] = self

    def _announce(self, commit: Commit) -> None:
        for seq, event in enumerate(commit.events, commit.expected_seq + 1):
            self.announced.append(Recorded(seq, commit.at, event))

    def append(self, chance: random.Random, bugs: float) -> Told:
        first = len(self.appended)
        count = chance.choice((0, 1, 1, 2))
        events: tuple[Event, ...] = tuple(
            TextCheckpoint(f"{self.epoch}", f"{first} {number}") for number in range(count)
        )
        told = Told(self, events, chance.random() < 0.5, chance.random() < bugs)
        told.last_seq = (self.appended[-1].last_seq if self.appended else self.began_at) + count
        self.appended.append(told)
        self.journal.append(told, told.lingers)
        return told

    def _durable(self, reply: Reply) -> None:
        assert isinstance(reply, Told)
        reply.durable()

    def begins_to_write(self, commit: Commit) -> None:
        """Nobody is kept waiting: what lingers is written soon, the rest at once."""
        assert self.broken is None
        now = anyio.current_time()
        new = self.appended[len(self.told_to) :]
        assert commit.events == tuple(event for told in new for event in told.said)
        assert commit.state == str(len(self.appended)).encode()
        for told in new:
            since_s = now - max(told.at, self.written_at)
            assert since_s <= (LINGER_S if told.lingers else 0.0) + 1e-9

    def _state(self) -> tuple[bytes, bool]:
        if self.has_a_bug:
            raise KeyError("a bug of the session")
        return str(len(self.appended)).encode(), True

    def _breaks(self, error: BaseException) -> None:
        self.broken = error
        a_bug = self.has_a_bug or any(told.fails for told in self.told_to)
        with self.disk.checks():
            assert error is FULL or (a_bug and isinstance(error, BugError)), error

    def give_up(self) -> None:
        if self.broken is not None:
            return
        self.broken = StoreFailed("waited for no longer", retryable=True)
        self.journal.give_up(self.broken)

    def check(self) -> None:
        seqs = [recorded.seq for recorded in self.announced]
        assert seqs == list(range(self.began_at + 1, self.began_at + len(seqs) + 1))
        log = self.disk.logs[self.session]
        for recorded in self.announced:
            assert log[recorded.seq - 1] == recorded.event
        mine = [event for told in self.appended for event in told.said]
        durable = [event for event in log if cast(TextCheckpoint, event).turn == str(self.epoch)]
        assert durable == mine[: len(durable)]
        a_bug = any(told.fails for told in self.told_to)
        for told in self.appended:
            # One that was told may be told the contrary after a bug in what followed it.
            twice = a_bug and told.how == ["durable", "lost"]
            assert twice or told.how in (["durable"], ["lost"])
            if told.how == ["durable"]:
                assert log[told.last_seq - len(told.said) : told.last_seq] == list(told.said)


class Play:
    """Some sessions at once, each with its own life after life."""

    def __init__(self, run: Seeded) -> None:
        chance = self._chance = random.Random(run.seed)
        self.bugs = chance.choice((0.0, 0.0, 0.02))
        self.disk = Disk(chance, chance.choice((0.0, 0.02, 0.2)))
        self.home = EngineTasks()
        self.committer = GroupCommitter(
            cast(Store, self.disk), linger_s=LINGER_S, now=lambda: 1.0, spawn=self.home.spawn
        )

    async def run(self) -> None:
        self.home.open()
        self.committer.open()
        chance = self._chance
        with anyio.move_on_after(chance.choice((0.3, 1.0, math.inf, math.inf))) as cut:
            async with anyio.create_task_group() as group:
                for number in range(chance.randint(1, 5)):
                    group.start_soon(self._live, f"s{number}")
            # Nobody asks for it, and it is written all the same.
            await anyio.sleep(60.0)
            assert all(life.journal.is_idle for life in self.disk.lives.values())
            assert (self.committer._ready, self.committer._lingering) == ({}, {})
        if cut.cancelled_caught:
            for life in self.disk.lives.values():
                life.give_up()
        await self.home.close()
        assert not self.disk.wrong
        for life in self.disk.lives.values():
            life.check()

    async def _live(self, session: str) -> None:
        chance = self._chance
        life = Life(self.disk, self.committer, session)
        async with anyio.create_task_group() as group:
            for _ in range(chance.randint(5, 40)):
                if life.broken is not None and chance.random() < 0.8:
                    life = Life(self.disk, self.committer, session)
                act = chance.random()
                if act < 0.6:
                    told = life.append(chance, self.bugs)
                    if chance.random() < 0.5:
                        group.start_soon(self._wait, told)
                elif act < 0.8:
                    await anyio.sleep(chance.choice((0.0, 0.0, 0.001, 0.03, LINGER_S, 0.5)))
                elif act < 0.87:
                    group.start_soon(life.journal.idle)
                elif act < 0.93:
                    with anyio.move_on_after(chance.choice((0.0, 0.01, math.inf))):
                        await life.journal.idle()
                        assert life.journal.is_idle
                elif act < 0.97 and life.broken is None:
                    await anyio.sleep(0.0)
                    life.give_up()
                elif self.bugs and life.broken is None:
                    life.has_a_bug = True

    async def _wait(self, told: Told) -> None:
        try:
            assert await told.wait() == Done()
            assert told.how[0] == "durable"
        except JournalBroken:
            assert told.how == ["lost"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_all_is_told_once_and_what_is_durable_is_in_order(first: int, backend: Backend) -> None:
    for seed in range(first, first + 20):
        run_seeded(lambda run: Play(run).run(), seed, backend=backend)
