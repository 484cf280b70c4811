"""The store of one life of an engine: slow, failing, claimed by others, or gone.

The disk is a `MemoryStore` or another `Disk`, and each life is a separate owner on it. Everything
that becomes durable there enters the record in the same step of the scheduler, so that the two
never differ.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import anyio.lowlevel

from bargein.contracts.event import Event, Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    Found,
    SessionHead,
    StaleEpoch,
    Store,
    StoreFailed,
)
from bargein.stores.memory import MemorySnapshot, one_by_one
from bargein.testing.simulation.plan import Moment, StoreFault, StoreFaultKind

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life


class DiskStore(Store, Protocol):
    """What one owner does on a disk."""

    async def commit_one(self, commit: Commit) -> None: ...


class Disk(Protocol):
    """What outlives all lives: a `MemoryStore`, unless a world makes another."""

    def beside(self, owner: str, *, shared: bool = True) -> DiskStore: ...

    def bury(self, owner: str) -> None: ...

    def snapshot(self) -> MemorySnapshot: ...

    def restore(self, snapshot: MemorySnapshot) -> None: ...


class LifeStore:
    def __init__(self, life: "Life", disk: Disk) -> None:
        self._life = life
        self._whole_disk = disk
        self._disk = disk.beside(life.name)
        self._paced = 0
        self._given: dict[str, list[int]] = {}

    @property
    def owner(self) -> str:
        return self._disk.owner

    # Writing

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        fault = await self._before("create", session)
        try:
            head = await self._disk.create(session, root=root, at=at, epoch=epoch)
        except StaleEpoch:
            self._is_refused(root, epoch)
            raise
        if head is not None:
            self._life.owns(session)
            if epoch is None:
                self._given.setdefault(session, []).append(head.epoch)
        await self._after(fault, "create", session)
        return head

    async def claim(self, session: str) -> SessionHead | None:
        fault = await self._before("claim", session)
        self._check_not_taken_back(session)
        head = await self._disk.claim(session)
        if head is not None:
            self._life.owns(session)
            self._given.setdefault(session, []).append(head.epoch)
        await self._after(fault, "claim", session)
        return head

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes = await one_by_one(self.commit_one, commits)
        # Reported now, for all of them at once, not while some were still being written.
        for commit, outcome in zip(commits, outcomes, strict=True):
            if isinstance(outcome, StaleEpoch):
                self._is_refused(commit.root, commit.epoch)
        return outcomes

    async def commit_one(self, commit: Commit) -> None:
        life, first = self._life, commit.expected_seq + 1
        self._check_epoch(commit)
        life.world.happens(Moment.WRITES, commit.session)
        fault = await self._before("commit", commit.session, commit.events)
        await self._disk.commit_one(commit)
        if not life.dead:
            for seq, event in enumerate(commit.events, first):
                life.world.note(life.number, ("durable", commit.session, seq, event))
                life.record.durable(commit.session, Recorded(seq, commit.at, event))
        life.world.happens(Moment.WRITTEN, commit.session)
        await self._after(fault, "commit", commit.session)

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        fault = await self._before("delete", session)
        found = await self._disk.delete(session, epoch=epoch)
        await self._after(fault, "delete", session)
        return found

    # Reading

    async def head(self, session: str) -> SessionHead | None:
        await self._before("head", session)
        return await self._disk.head(session)

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        await self._before("events", session)
        return await self._disk.events(session, after=after, limit=limit, bytes_max=bytes_max)

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        await self._before("find_key", session)
        return await self._disk.find_key(session, sender, client_id)

    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        await self._before("sessions", "")
        return await self._disk.sessions(limit=limit, before=before, under=under)

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        await self._before("unfinished", "")
        return await self._disk.unfinished(limit=limit, after=after)

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        return await self._disk.search(words, limit=limit, roots=roots)

    async def backup(self, path: str) -> None:
        await self._disk.backup(path)

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()

    # Faults

    def _check_not_taken_back(self, session: str) -> None:
        """Law 4: a session that another owner claimed stays theirs, unless a user asks here."""
        life = self._life
        was_told = (life.number, session) in life.record.refused
        if was_told and not life.is_asked_for(session) and not life.dead:
            life.record.blame(4, f"life {life.number} lost {session}, and takes it back by itself")

    def _is_refused(self, root: str, epoch: int | None) -> None:
        """Notes that the session is another's, unless this life has claimed it again."""
        if self._given[root][-1] == epoch:
            self._life.is_told_that_it_lost(root)

    def _check_epoch(self, commit: Commit) -> None:
        """Law 4: nobody writes under another's epoch, because no fence would stop that."""
        life = self._life
        if commit.epoch not in self._given.get(commit.root, ()) and not life.dead:
            what = f"{commit.session} under epoch {commit.epoch}"
            life.record.blame(4, f"life {life.number} writes {what}, which is another's")

    async def _before(
        self, operation: str, session: str, events: Sequence[Event] = ()
    ) -> StoreFault | None:
        life = self._life
        life.check_alive()
        fault = life.next_fault(events)
        pace_s = life.world.plan.temper.store_pace_s
        if pace_s:
            self._paced += 1
            await life.sleep(life.world.chance("store", life.number, self._paced) * pace_s)
        if fault is None:
            life.check_alive()
            return None
        life.note("the store", operation, session, "meets", fault)
        kind = fault.kind
        if kind is StoreFaultKind.SLOW_BEFORE:
            await life.sleep(fault.seconds)
        elif kind is StoreFaultKind.CRASH_BEFORE:
            life.world.crash()
        elif kind is StoreFaultKind.FAILS_BEFORE:
            life.record.disturbed.add(session)
            raise StoreFailed("the disk is full (simulated)", retryable=True)
        elif kind is StoreFaultKind.STOLEN:
            root = session.partition("/")[0]
            life.record.disturbed.add(root)
            thief = self._whole_disk.beside("thief", shared=False)
            await thief.claim(root)
            await thief.aclose()
            life.record.owners.pop(root, None)
            life.record.stolen.add(root)
        life.check_alive()
        return fault

    async def _after(self, fault: StoreFault | None, operation: str, session: str) -> None:
        life = self._life
        life.check_alive()
        if fault is None:
            return
        if fault.kind is StoreFaultKind.SLOW_AFTER:
            await life.sleep(fault.seconds)
        elif fault.kind is StoreFaultKind.CRASH_AFTER:
            life.world.crash()
        elif fault.kind is StoreFaultKind.FAILS_AFTER:
            life.record.disturbed.add(session)
            raise StoreFailed("the disk was slow to answer (simulated)", retryable=True)
        life.check_alive()
