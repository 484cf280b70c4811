"""Our stores pass the shipped conformance suite; stores that are broken on purpose do not."""

# ruff: noqa: ASYNC240  (that a test touches files holds nobody up)

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    DuplicateKey,
    Found,
    SessionHead,
    SessionUnreadable,
    StaleEpoch,
    Store,
)
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import search_sql, writer
from bargein.testing.store_conformance import (
    CHECKS,
    DAMAGE_CHECKS,
    SEARCH_CHECKS,
    SHARED_CHECKS,
    StoreCheck,
    check_random_operations,
)
from bargein.testing.store_conformance.random_operations import StoreOperation, run_operations
from tests.stores.kinds import MemoryStores, SqliteStores, SqliteWithoutFullText, TidiedSqlite


@pytest.mark.anyio
@pytest.mark.parametrize("check", [*CHECKS, *DAMAGE_CHECKS], ids=str)
async def test_sqlite(check: StoreCheck, tmp_path: Path) -> None:
    await check(SqliteStores(tmp_path))


@pytest.mark.anyio
@pytest.mark.parametrize("check", SEARCH_CHECKS, ids=str)
async def test_sqlite_without_full_text(check: StoreCheck, tmp_path: Path) -> None:
    await check(SqliteWithoutFullText(tmp_path))


@pytest.mark.anyio
@pytest.mark.parametrize("check", [*CHECKS, *SHARED_CHECKS, *DAMAGE_CHECKS], ids=str)
async def test_memory(check: StoreCheck, tmp_path: Path) -> None:
    await check(MemoryStores(tmp_path))


def test_memory_answers_as_a_dictionary_would() -> None:
    check_random_operations(MemoryStores)


@pytest.mark.parametrize("linger_s", [0.0, 3_600.0])
def test_sqlite_answers_as_a_dictionary_would(
    linger_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the writer tidying up all the time, or only where an operation says so."""
    monkeypatch.setattr(writer, "LINGER_S", linger_s)
    monkeypatch.setattr(search_sql, "SLICE_TEXTS", 2)
    check_random_operations(TidiedSqlite, examples=50)


def test_the_suite_needs_neither_pytest_nor_hypothesis_to_be_imported() -> None:
    code = (
        "import sys, bargein.testing.store_conformance\n"
        "print([name for name in ('pytest', 'hypothesis') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- stores that are broken


class LosesACommit(MemoryStore):
    """Acknowledges the second of two commits that come together, and does not write it."""

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        if len(commits) == 2:
            return [*await super().commit(commits[:1]), None]
        return await super().commit(commits)


class LosesKeys(MemoryStore):
    async def commit_one(self, commit: Commit) -> None:
        await super().commit_one(msgspec.structs.replace(commit, keys=()))


class AcceptsAStaleEpoch(MemoryStore):
    def _check_epoch(self, root: str, epoch: int | None) -> None:
        pass


class AcceptsAStaleEpochUnderARoot(MemoryStore):
    """As a join that reads the root's row before the claim was committed."""

    async def commit_one(self, commit: Commit) -> None:
        root = await self.head(commit.root)
        if root is not None and commit.root != commit.session:
            commit = msgspec.structs.replace(commit, epoch=root.epoch)
        await super().commit_one(commit)


class ABatchFailsTogether(MemoryStore):
    """One transaction without savepoints."""

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        before = self.snapshot()
        outcomes = await super().commit(commits)
        error = next((outcome for outcome in outcomes if outcome is not None), None)
        if error is not None:
            self.restore(before)
            return [error] * len(outcomes)
        return outcomes


class KeepsHalfOfARefusedCommit(MemoryStore):
    """Writes the keys before it checks them."""

    async def commit_one(self, commit: Commit) -> None:
        try:
            await super().commit_one(commit)
        except DuplicateKey:
            kept = self._disk.kept[commit.session]
            kept.keys.update({(key.sender, key.client_id): key for key in commit.keys})
            raise


class IgnoresTheOrder(MemoryStore):
    async def commit_one(self, commit: Commit) -> None:
        kept = self._disk.kept.get(commit.session)
        if kept is not None:
            commit = msgspec.structs.replace(commit, expected_seq=len(kept.events))
        await super().commit_one(commit)


class ReadsBackwards(MemoryStore):
    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        found = await super().events(session, after=after, limit=limit, bytes_max=bytes_max)
        return found[::-1]


class TakesAKeyTwice(MemoryStore):
    async def commit_one(self, commit: Commit) -> None:
        kept = self._disk.kept.get(commit.session)
        if kept is not None:
            for key in commit.keys:
                kept.keys.pop((key.sender, key.client_id), None)
        names = {(key.sender, key.client_id): key for key in commit.keys}
        await super().commit_one(msgspec.structs.replace(commit, keys=tuple(names.values())))


class FindsKeysOfOthers(MemoryStore):
    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        return await super().find_key(session, "ann", client_id)


class ForgetsWhatIsUnfinishedUnderARoot(MemoryStore):
    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        found = await super().unfinished(limit=limit, after=after)
        return [root for root in found if self._disk.kept[root].unfinished]


class DeletesTheRootAlone(MemoryStore):
    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        under = [(name, kept) for name, kept in self._disk.kept.items() if kept.root == session]
        found = await super().delete(session, epoch=epoch)
        for name, kept in under:
            if name != session:
                kept.root = name
                self._disk.kept[name] = kept
        return found


class ADeletedLogComesBack(MemoryStore):
    """With the next session of the same name."""

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        kept = self._disk.kept.get(session)
        if kept is not None:
            DELETED[session] = kept.events
        return await super().delete(session, epoch=epoch)

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        head = await super().create(session, root=root, at=at, epoch=epoch)
        if head is not None and session in DELETED:
            self._disk.kept[session].events = DELETED.pop(session)
        return self._head(session) if head is not None else None


DELETED: dict[str, list[tuple[float, bytes]]] = {}


class GivesEpochsAgain(MemoryStore):
    """Each session counts for itself, from 1."""

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        self._disk.epoch = 0
        return await super().create(session, root=root, at=at, epoch=epoch)


class ClaimsWithoutANewEpoch(MemoryStore):
    async def claim(self, session: str) -> SessionHead | None:
        head = await super().claim(session)
        if head is not None:
            self._disk.kept[session].epoch -= 1
        return await self.head(session) if head is not None else None


class ClaimsEverything(MemoryStore):
    """Steals from owners that are alive."""

    def beside(self, owner: str, *, shared: bool = True) -> MemoryStore:
        return super().beside(owner, shared=False)


class NeverClaimsFromTheDead(MemoryStore):
    def bury(self, owner: str) -> None:
        pass


class DoesNotNameTheOwner(MemoryStore):
    def _head(self, session: str) -> SessionHead:
        return msgspec.structs.replace(super()._head(session), owner="")


class FencesOnlyWhatIsAlive(MemoryStore):
    """Refuses all writes of a dead owner, although nobody has claimed the session."""

    async def commit_one(self, commit: Commit) -> None:
        if self.owner not in self._disk.living:
            raise StaleEpoch("dead")
        await super().commit_one(commit)


class FindsSessionsOfOthers(MemoryStore):
    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        return await super().search(words, limit=limit)


class ListsTheOldestFirst(MemoryStore):
    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        return (await super().sessions(limit=limit, before=before, under=under))[::-1]


class AnswersAfterClosing(MemoryStore):
    def _check_open(self) -> None:
        pass


class OverwritesABackup(MemoryStore):
    async def backup(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)
        await super().backup(path)


class LeavesOutWhatItCannotRead(MemoryStore):
    async def events(self, session: str, **page: Any) -> list[Recorded]:
        try:
            return await super().events(session, **page)
        except SessionUnreadable as error:
            after = {**page, "after": error.seq}
            return await self.events(session, **after)


class ListsOnlyWhatItCanRead(MemoryStore):
    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        found = await super().unfinished(limit=limit, after=after)
        for session in found:
            await self.events(session)
        return found


class LooksIntoStates(MemoryStore):
    async def sessions(self, **page: Any) -> list[SessionHead]:
        found = await super().sessions(**page)
        return [head for head in found if head.state != b"\xc1"]


BROKEN = {
    LosesACommit: "an_acknowledged_commit_is_there_for_the_next_owner",
    LosesKeys: "a_key_is_found_again",
    AcceptsAStaleEpoch: "a_stale_epoch_writes_nothing",
    AcceptsAStaleEpochUnderARoot: "a_session_under_a_root_has_the_roots_epoch",
    ABatchFailsTogether: "each_commit_of_a_call_has_its_own_outcome",
    KeepsHalfOfARefusedCommit: "a_key_is_unique_by_session_sender_and_client_id",
    IgnoresTheOrder: "a_commit_out_of_order_is_refused",
    ReadsBackwards: "events_come_back_as_they_were",
    TakesAKeyTwice: "a_key_is_unique_by_session_sender_and_client_id",
    FindsKeysOfOthers: "a_key_is_found_again",
    ForgetsWhatIsUnfinishedUnderARoot: "unfinished_sessions_are_found_by_their_roots",
    DeletesTheRootAlone: "a_deleted_session_is_gone_with_all_under_it",
    ADeletedLogComesBack: "a_deleted_session_is_gone_with_all_under_it",
    GivesEpochsAgain: "an_epoch_is_never_given_twice",
    ClaimsWithoutANewEpoch: "a_claim_raises_the_epoch_and_keeps_the_rest",
    ClaimsEverything: "a_living_owner_keeps_its_sessions",
    NeverClaimsFromTheDead: "a_new_owner_takes_the_sessions_of_a_dead_one",
    DoesNotNameTheOwner: "a_new_session_is_empty_and_owned_by_its_maker",
    FencesOnlyWhatIsAlive: "an_owner_keeps_what_nobody_has_claimed",
    FindsSessionsOfOthers: "search_finds_only_below_the_roots_that_are_named",
    ListsTheOldestFirst: "sessions_come_last_updated_first_and_by_pages",
    AnswersAfterClosing: "after_closing_every_operation_says_so",
    LeavesOutWhatItCannotRead: "a_damaged_event_is_named_and_in_nobodys_way",
    ListsOnlyWhatItCanRead: "an_event_that_cannot_be_read_is_in_nobodys_way",
    LooksIntoStates: "a_state_means_nothing_to_the_store",
    OverwritesABackup: "a_backup_overwrites_nothing",
}


class BrokenStores(MemoryStores):
    """Every store that is opened on the data is of the broken kind."""

    async def open(self, owner: str) -> Store:
        store = await super().open(owner)
        assert isinstance(store, MemoryStore)
        store.__class__ = self.kind
        return store


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_store_fails(kind: type[MemoryStore], tmp_path: Path) -> None:
    failed = []
    for check in (*CHECKS, *SHARED_CHECKS, *DAMAGE_CHECKS):
        directory = tmp_path / check.name
        directory.mkdir()
        stores = BrokenStores(directory)
        stores.kind = kind
        try:
            await check(stores)
        except Exception:
            failed.append(check.name)
    assert BROKEN[kind] in failed


CREATE, COMMIT = (
    StoreOperation("create", "a"),
    StoreOperation("commit", "a", client_id="c1", words=("red",)),
)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("kind", "operation", "said"),
    [
        (MemoryStore, StoreOperation("commit", "a", client_id="c2", count=2), None),
        (IgnoresTheOrder, StoreOperation("commit", "a", off_by=1), "OutOfOrder expected"),
        (TakesAKeyTwice, COMMIT, "DuplicateKey expected"),
        (AcceptsAStaleEpoch, StoreOperation("commit", "a", owner=0), "StaleEpoch expected"),
        (ReadsBackwards, StoreOperation("commit", "a", client_id="c2", count=2), "log of a"),
        (GivesEpochsAgain, StoreOperation("create", "b"), "epoch 1 is not above"),
        (DoesNotNameTheOwner, StoreOperation("delete", "b"), "head of a"),
    ],
)
async def test_random_operations_compare_every_answer(
    kind: type[MemoryStore], operation: StoreOperation, said: str | None, tmp_path: Path
) -> None:
    stores = BrokenStores(tmp_path)
    stores.kind = kind
    operations = [CREATE, COMMIT, StoreOperation("claim", "a"), operation]
    if said is None:
        await run_operations(stores, operations)
    else:
        with pytest.raises(AssertionError, match=said):
            await run_operations(stores, operations)
