"""Commits that were asked for in one call, on a file that fails at any statement: what the store
says of each is what is in the file afterwards."""

from __future__ import annotations

import random
import sqlite3
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from bargein.contracts.event import Event
from bargein.contracts.store import (
    Commit,
    DuplicateKey,
    OutOfOrder,
    SessionHead,
    StaleEpoch,
    StoreFailed,
    commit_one,
)
from bargein.errors import BugError
from bargein.stores.sqlite import SqliteStore, commit_sql, writer
from bargein.testing.store_conformance.scene import key, looked, made, said, step, written
from tests.stores.files import OwnConnections, ends_a_transaction

pytestmark = pytest.mark.anyio

READING = sqlite3.SQLITE_IOERR_READ
SYNCING = sqlite3.SQLITE_IOERR_FSYNC
FULL = sqlite3.SQLITE_FULL
BUSY = sqlite3.SQLITE_BUSY
NO_MEMORY = sqlite3.SQLITE_NOMEM


class Failing(sqlite3.Connection):
    """Fails at what it is told to, by the number of the statement or by how it begins (0: not
    this time). The end of a transaction may fail though it was done."""

    at: ClassVar[dict[int, int]] = {}
    at_words: ClassVar[dict[str, list[int]]] = {}
    done_before: ClassVar[bool] = False
    seen: ClassVar[list[str]] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self.seen.append(sql)
        code = self.at.pop(len(self.seen), 0)
        for words, codes in self.at_words.items():
            if sql.startswith(words) and codes:
                code = codes.pop(0)
        if code == NO_MEMORY:
            raise MemoryError
        if code:
            if self.done_before and ends_a_transaction(self, sql):
                super().execute(sql, *parameters)
            error = sqlite3.OperationalError("as the test says")
            error.sqlite_errorcode = code
            raise error
        return super().execute(sql, *parameters)

    @classmethod
    def let_be(cls) -> None:
        cls.at.clear()
        cls.at_words.clear()
        cls.done_before = False
        cls.seen.clear()


class FailingFile(OwnConnections):
    factory = Failing


@pytest.fixture(autouse=True)
def nothing_at_leisure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LINGER_S", 600.0)
    Failing.let_be()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def test_what_failed_before_its_end_is_not_taken_for_what_was_there_before(
    path: Path,
) -> None:
    """The first cannot be looked up, so the second is not even begun; but where its log ends is
    where the writer remembers it."""
    store = SqliteStore(FailingFile(path))
    quiet, head = await made(store, "quiet"), await written(store, "s", 1)
    Failing.at_words["SELECT s.number"] = [READING]
    outcomes = await store.commit([step(quiet, state=b"new"), step(head, said(2))])
    assert outcomes == [None, None]
    assert [one.event for one in await store.events("s")] == [said(1), said(2)]
    assert (await looked(store, "quiet")).state == b"new"
    await store.aclose()


async def test_what_failed_before_its_end_is_not_taken_for_the_burial_of_another(
    path: Path,
) -> None:
    store = SqliteStore(FailingFile(path))
    head = await made(store, "s")
    Failing.at_words["INSERT INTO commit_rows"] = [SYNCING]
    with pytest.raises(StoreFailed):
        await commit_one(store, step(head, said(1)))
    Failing.at_words["SELECT max(indexed"] = [READING]
    with pytest.raises(StoreFailed):
        await store.claim("s")
    assert await looked(store, "s") == head
    await store.aclose()


async def test_what_happened_is_found_though_too_many_are_remembered(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them is the oldest that the writer remembers, and the others are new to it."""
    monkeypatch.setattr(commit_sql, "ENDS_MAX", 2)
    store = SqliteStore(FailingFile(path))
    heads = [await made(store, f"s{number}") for number in range(4)]
    first = await written(store, "first", 1)
    Failing.at_words["INSERT INTO commit_rows"] = [SYNCING]
    Failing.done_before = True
    outcomes = await store.commit([step(head, said(1)) for head in (first, *heads)])
    assert outcomes == [None] * 5
    await store.aclose()


@pytest.mark.parametrize("count", [1, commit_sql.ROWS_MAX])
async def test_what_sqlite_cannot_take_is_told_of_that_commit_alone(path: Path, count: int) -> None:
    store = await SqliteStore.open(path)
    ann, bob, eve = [await made(store, name) for name in ("ann", "bob", "eve")]
    events = [said(number) for number in range(count)]
    outcomes = await store.commit(
        [step(ann, *events), step(bob, *events, epoch=2**70), step(eve, *events)]
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), OverflowError, type(None)]
    await commit_one(store, step(bob, *events))
    for name in ("ann", "bob", "eve"):
        assert [one.event for one in await store.events(name)] == events
    await store.aclose()


async def test_after_a_shortage_of_memory_nothing_is_told_that_is_not_so(path: Path) -> None:
    """A transaction that was begun is not left behind: what comes next would be a part of it."""
    store = SqliteStore(FailingFile(path))
    head = await made(store, "s")
    Failing.at_words["SELECT max(indexed"] = [NO_MEMORY]
    with pytest.raises(BugError, match="MemoryError"):
        await store.claim("s")
    await commit_one(store, step(head, said(1)))
    other = await SqliteStore.open(path)
    assert (await looked(other, "s")).seq == 1
    await other.aclose()
    await store.aclose()


async def test_after_a_shortage_of_memory_what_was_done_is_told_so(path: Path) -> None:
    store = SqliteStore(FailingFile(path))
    heads = [await made(store, name) for name in ("ann", "bob", "eve")]
    Failing.at_words["INSERT INTO commit_rows"] = [READING]
    Failing.at_words["BEGIN"] = [0, NO_MEMORY]
    outcomes = await store.commit([step(head, said(1)) for head in heads])
    assert [type(outcome) for outcome in outcomes] == [type(None), BugError, BugError]
    assert [(await looked(store, head.id)).seq for head in heads] == [1, 0, 0]
    await store.aclose()


async def test_those_who_come_together_wait_for_a_lock_together(path: Path) -> None:
    store = SqliteStore(FailingFile(path, busy_s=0.05))
    heads = [await made(store, f"s{number}") for number in range(5)]
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    Failing.let_be()
    outcomes = await store.commit([step(head, said(1)) for head in heads])
    assert {type(outcome) for outcome in outcomes} == {StoreFailed}
    waited = [sql for sql in Failing.seen if sql.startswith(("INSERT INTO commit_rows", "BEGIN"))]
    assert len(waited) == 1
    other.close()
    assert await store.commit([step(head, said(1)) for head in heads]) == [None] * 5
    await store.aclose()


@pytest.mark.parametrize("count", [commit_sql.ROWS_MAX - 1, commit_sql.ROWS_MAX + 1])
async def test_what_sqlite_cannot_take_undoes_a_transaction_of_several_statements(
    path: Path, count: int
) -> None:
    store = await SqliteStore.open(path)
    head, other = await made(store, "s"), await made(store, "t")
    events = [said(number) for number in range(count)]
    wrong = step(other, *events, text="half of a pair: \ud800")
    outcomes = await store.commit([step(head, *events), wrong])
    assert [type(outcome) for outcome in outcomes] == [type(None), UnicodeEncodeError]
    assert [(await looked(store, name)).seq for name in ("s", "t")] == [count, 0]
    await store.aclose()


class Asked(msgspec.Struct):
    """A commit, and whether it would be refused if nothing failed."""

    commit: Commit
    wrong: type[Exception] | None = None


def some_commits(chance: random.Random, heads: list[SessionHead]) -> list[Asked]:
    """Of each session one or two or none, in any order."""
    asked: list[deque[Asked]] = []
    for head in heads:
        own: deque[Asked] = deque()
        seq = head.seq
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            count = chance.choice((0, 1, 1, 2))
            events: list[Event] = [said(seq + n) for n in range(count)]
            state = f"{head.id} {chance.random()}".encode()
            commit = step(head, *events, expected_seq=seq, state=state)
            match chance.randrange(12):
                case 0:
                    own.append(Asked(msgspec.structs.replace(commit, epoch=10_000), StaleEpoch))
                case 1:
                    wrong = msgspec.structs.replace(commit, expected_seq=seq + 5)
                    own.append(Asked(wrong, OutOfOrder))
                case 2 if events:
                    wrong = msgspec.structs.replace(commit, keys=(key("known"),))
                    own.append(Asked(wrong, DuplicateKey))
                case _:
                    own.append(Asked(commit))
                    seq += count
        asked.append(own)
    together: list[Asked] = []
    while left := [own for own in asked if own]:
        together.append(chance.choice(left).popleft())
    return together


def check(
    asked: list[Asked], outcomes: list[Exception | None], now: dict[str, SessionHead]
) -> None:
    failed: set[str] = set()
    durable: dict[str, tuple[int, bytes]] = {}
    for one, outcome in zip(asked, outcomes, strict=True):
        session = one.commit.session
        if isinstance(outcome, StoreFailed):
            failed.add(session)
        elif session not in failed:
            # Also the one after another of its own that was refused.
            assert type(outcome) is (one.wrong or type(None)), (one, outcome)
        if outcome is None:
            commit = one.commit
            durable[session] = (commit.expected_seq + len(commit.events), commit.state)
    for session, (seq, state) in durable.items():
        # What it could not tell about may have happened all the same.
        assert now[session].seq == seq or (session in failed and now[session].seq > seq), session
        assert session in failed or now[session].state == state


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("rows_max", [commit_sql.ROWS_MAX, 3])
@pytest.mark.parametrize("seed", range(40))
async def test_each_is_told_what_became_of_it_whatever_fails(
    path: Path, seed: int, rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_sql, "ROWS_MAX", rows_max)
    chance = random.Random(seed)
    store = SqliteStore(FailingFile(path))
    names = [f"s{number}" for number in range(chance.randint(2, 6))]
    heads = []
    for name in names:
        head = await made(store, name)
        await commit_one(store, step(head, said(0), keys=(key("known"),)))
        heads.append(await looked(store, name))
    for _ in range(6):
        for name in names:
            if chance.random() < 0.3:
                store._writer.ends.forget(name)
        asked = some_commits(chance, heads)
        if not asked:
            continue
        Failing.let_be()
        Failing.done_before = chance.random() < 0.5
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            Failing.at[chance.randint(1, chance.choice((4, 14)))] = chance.choice(
                (READING, SYNCING, FULL, BUSY)
            )
        outcomes = await store.commit([one.commit for one in asked])
        Failing.let_be()
        now = {name: await looked(store, name) for name in names}
        check(asked, outcomes, now)
        for name in names:
            events = await store.events(name)
            assert [one.seq for one in events] == list(range(1, now[name].seq + 1))
            assert [one.event for one in events] == [said(n) for n in range(now[name].seq)]
        heads = list(now.values())
    await store.aclose()
    store = await SqliteStore.open(path)
    assert [await looked(store, name) for name in names] == heads
    await store.aclose()
