"""Random operations, against a model that is a dictionary."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bargein.contracts.event import Event, Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    DuplicateKey,
    OutOfOrder,
    StaleEpoch,
    Store,
    commit_one,
)
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore, search_sql, writer
from bargein.stores.sqlite.search_sql import index_some
from bargein.stores.sqlite.session_sql import sweep
from tests.stores.conformance import said
from tests.stores.indexes import check_index

NAMES = ("a", "b", "c")
WORDS = ("red", "green", "blue")


@dataclass
class Kept:
    root: str
    at: float
    log: list[tuple[float, Event]] = field(default_factory=list)
    keys: dict[str, AcceptKey] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    state: bytes = b""
    title: str = ""
    unfinished: bool = False


class Operation(msgspec.Struct, frozen=True):
    """`owner` picks one of the epochs ever given for the root: -1 is the last."""

    kind: str
    name: str
    under: str = ""
    owner: int = -1
    off_by: int = 0
    count: int = 1
    client_id: str = ""
    words: tuple[str, ...] = ()
    title: str | None = None
    unfinished: bool = False
    full_text: bool = True


operations = st.builds(
    Operation,
    kind=st.sampled_from(
        ("create", "claim", "commit", "commit", "commit", "delete", "reopen", "tidy", "tidy")
    ),
    name=st.sampled_from(NAMES),
    under=st.sampled_from(("", "", *NAMES)),
    owner=st.sampled_from((-1, -1, -1, -2, 0)),
    off_by=st.sampled_from((0, 0, 0, 0, 1, -1)),
    count=st.sampled_from((0, 1, 2, 70)),
    client_id=st.sampled_from(("", "", "c1", "c2")),
    words=st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
    title=st.sampled_from((None, "", "T")),
    unfinished=st.booleans(),
    full_text=st.sampled_from((True, True, False)),
)


Upkeep = Callable[[Store, Operation], Awaitable[Store]]


class Run:
    """A store and what it should have in it. `upkeep` is what changes nothing of that."""

    def __init__(self, store: Store, upkeep: Upkeep) -> None:
        self.store = store
        self.upkeep = upkeep
        self.model: dict[str, Kept] = {}
        self.epochs: dict[str, list[int]] = {}
        self.clock = 0.0

    def current(self, root: str, epoch: int) -> bool:
        return root in self.model and self.epochs[root][-1] == epoch

    def epoch(self, root: str, owner: int) -> int:
        given = self.epochs.get(root) or [0]
        return given[max(owner, -len(given))]

    async def do(self, one: Operation) -> None:
        self.clock += 1
        if one.kind in ("reopen", "tidy"):
            self.store = await self.upkeep(self.store, one)
        else:
            await {
                "create": self.create,
                "claim": self.claim,
                "commit": self.commit,
                "delete": self.delete,
            }[one.kind](one)

    async def create(self, one: Operation) -> None:
        root = one.under or one.name
        if root != one.name and root in self.model and self.model[root].root != root:
            return  # roots of roots are not offered
        epoch = self.epoch(root, one.owner)
        attempt = self.store.create(one.name, root=root, at=self.clock, epoch=epoch)
        if one.name in self.model:
            assert await attempt is None
        elif root != one.name and not self.current(root, epoch):
            with pytest.raises(StaleEpoch):
                await attempt
        else:
            head = await attempt
            assert head is not None
            self.model[one.name] = Kept(root, self.clock)
            if root == one.name:
                self.note_epoch(root, head.epoch)

    def note_epoch(self, root: str, epoch: int) -> None:
        assert epoch > max((max(given) for given in self.epochs.values()), default=0)
        self.epochs.setdefault(root, []).append(epoch)

    async def claim(self, one: Operation) -> None:
        head = await self.store.claim(one.name)
        kept = self.model.get(one.name)
        if kept is None or kept.root != one.name:
            assert head is None
        else:
            assert head is not None
            self.note_epoch(one.name, head.epoch)

    async def commit(self, one: Operation) -> None:
        kept = self.model.get(one.name)
        root = kept.root if kept else one.name
        seq = max(0, len(kept.log) + one.off_by) if kept else 0
        epoch = self.epoch(root, one.owner)
        key = AcceptKey("ann", one.client_id, str(self.clock), b"h")
        commit = Commit(
            session=one.name,
            root=root,
            epoch=epoch,
            expected_seq=seq,
            at=self.clock,
            events=tuple(said(seq + n) for n in range(one.count)),
            state=str(self.clock).encode(),
            unfinished=one.unfinished,
            keys=(key,) if one.client_id else (),
            title=one.title,
            text=" ".join(one.words) if one.count else "",
        )
        attempt = commit_one(self.store, commit)
        if kept is None or not self.current(root, epoch):
            with pytest.raises(StaleEpoch):
                await attempt
        elif seq != len(kept.log):
            with pytest.raises(OutOfOrder):
                await attempt
        elif one.client_id in kept.keys:
            with pytest.raises(DuplicateKey):
                await attempt
        else:
            await attempt
            self.keep(kept, commit)

    def keep(self, kept: Kept, commit: Commit) -> None:
        kept.log += [(commit.at, event) for event in commit.events]
        kept.keys.update({key.client_id: key for key in commit.keys})
        kept.state, kept.unfinished, kept.at = commit.state, commit.unfinished, commit.at
        kept.title = kept.title if commit.title is None else commit.title
        if commit.text:
            kept.texts[len(kept.log)] = commit.text

    async def delete(self, one: Operation) -> None:
        assert await self.store.delete(one.name) is (one.name in self.model)
        for name in [n for n, kept in self.model.items() if one.name in (n, kept.root)]:
            del self.model[name]

    async def check(self) -> None:
        for name in NAMES:
            await self.check_one(name, self.model.get(name))
        roots = [(kept.at, n) for n, kept in self.model.items() if kept.root == n]
        listed = [(one.updated_at, one.id) for one in await self.store.sessions()]
        assert listed == sorted(roots, reverse=True)
        unfinished = {kept.root for kept in self.model.values() if kept.unfinished}
        assert await self.store.unfinished() == sorted(unfinished)
        for word in WORDS:
            texts = [
                (kept.log[seq - 1][0], name, seq)
                for name, kept in self.model.items()
                for seq, text in kept.texts.items()
                if word in text
            ]
            found = [(one.session, one.seq) for one in await self.store.search(word, limit=999)]
            assert found == [(name, seq) for _, name, seq in sorted(texts, reverse=True)]

    async def check_one(self, name: str, kept: Kept | None) -> None:
        head = await self.store.head(name)
        events = await self.store.events(name)
        if kept is None:
            assert (head, events) == (None, [])
            return
        assert head is not None
        assert head.epoch == self.epochs[kept.root][-1]
        assert (head.root, head.seq, head.state, head.title, head.updated_at) == (
            kept.root,
            len(kept.log),
            kept.state,
            kept.title,
            kept.at,
        )
        expected = [Recorded(seq, at, event) for seq, (at, event) in enumerate(kept.log, 1)]
        assert events == expected
        middle = len(expected) // 2
        assert await self.store.events(name, after=middle, limit=5) == expected[middle : middle + 5]
        for client_id in ("c1", "c2"):
            found = await self.store.find_key(name, "ann", client_id)
            assert found == kept.keys.get(client_id)


async def in_memory(steps: list[Operation]) -> None:
    async def upkeep(store: Store, one: Operation) -> Store:
        assert isinstance(store, MemoryStore)
        revived = MemoryStore()
        revived.restore(store.snapshot())
        return revived

    run = Run(MemoryStore(), upkeep)
    for one in steps:
        await run.do(one)
    await run.check()


async def in_sqlite(steps: list[Operation]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"

        async def upkeep(store: Store, one: Operation) -> Store:
            assert isinstance(store, SqliteStore)
            if one.kind == "tidy":
                await tidy(store, swept=one.unfinished)
                return store
            await store.aclose()
            return await SqliteStore.open(path, full_text=one.full_text)

        run = Run(await SqliteStore.open(path), upkeep)
        for one in steps:
            await run.do(one)
        await run.check()
        await run.store.aclose()
        run.store = store = await SqliteStore.open(path)
        while await tidy(store, swept=False):
            await check_index(store)
        await run.check()
        await store.aclose()


async def tidy(store: SqliteStore, *, swept: bool) -> bool:
    """A slice of what the writer does at leisure."""

    def work(connection: sqlite3.Connection) -> bool:
        full_text = store._file.full_text
        if swept and sweep(connection, full_text=full_text):
            return True
        return full_text and index_some(connection)

    return await store._writer.run(work)


SETTINGS = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow], derandomize=False
)


@SETTINGS
@given(st.lists(operations, max_size=30))
def test_the_store_in_memory_does_what_a_dictionary_would(steps: list[Operation]) -> None:
    anyio.run(in_memory, steps)


@SETTINGS
@given(st.lists(operations, max_size=30), st.sampled_from((0.0, 3_600.0)))
def test_the_store_in_sqlite_does_what_a_dictionary_would(
    steps: list[Operation], linger_s: float
) -> None:
    """With the writer tidying up all the time, or only where a step says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "LINGER_S", linger_s)
        patch.setattr(search_sql, "SLICE_TEXTS", 2)
        anyio.run(in_sqlite, steps)
