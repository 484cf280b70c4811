"""Random operations on a store, compared with a dictionary. Needs Hypothesis when it runs."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.contracts.event import Event, Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    DuplicateKey,
    OutOfOrder,
    SessionHead,
    StaleEpoch,
    Store,
    commit_one,
)
from bargein.testing.store_conformance.scene import (
    StoreUnderTest,
    equal,
    known,
    refused,
    said,
    true,
)

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

NAMES = ("a", "b", "c")
WORDS = ("red", "green", "blue")


def check_random_operations(make: Callable[[Path], StoreUnderTest], *, examples: int = 100) -> None:
    """Run sequences of random operations on new stores that `make` gives for empty directories.

    Raises AssertionError for a sequence after which a store answers differently from a dictionary.
    Hypothesis shrinks the sequence first and prints it.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    # Left to itself Hypothesis makes short lists, in which little happens; it shrinks to those.
    operations = _operations()
    short, long = st.lists(operations, max_size=30), st.lists(operations, min_size=15, max_size=30)

    @settings(
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
    )
    @given(st.one_of(short, long))
    def check(chosen: list[StoreOperation]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            anyio.run(run_operations, make(Path(directory)), chosen)

    check()


class StoreOperation(msgspec.Struct, frozen=True):
    """`owner` picks one of the epochs that were given for the root: -1 is the last."""

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


def _operations() -> "SearchStrategy[StoreOperation]":
    from hypothesis import strategies as st

    return st.builds(
        StoreOperation,
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
    )


async def run_operations(stores: StoreUnderTest, operations: list[StoreOperation]) -> None:
    """Run these operations, and compare every answer."""
    run = _Run(stores, await stores.open("owner 0"))
    try:
        for operation in operations:
            await run.do(operation)
        await run.check()
        await run.reopen()
        await stores.tidy(run.store, whole=True)
        await run.check()
    finally:
        await run.store.aclose()


@dataclass
class _Expected:
    """What a session should have in it."""

    root: str
    at: float
    owner: str
    log: list[tuple[float, Event]] = field(default_factory=list)
    keys: dict[str, AcceptKey] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    state: bytes = b""
    title: str = ""
    unfinished: bool = False


class _Run:
    """A store, and what it should have in it."""

    def __init__(self, stores: StoreUnderTest, store: Store) -> None:
        self.stores = stores
        self.store = store
        self.model: dict[str, _Expected] = {}
        self.epochs: dict[str, list[int]] = {}
        self.owners = 1
        self.clock = 0.0

    async def do(self, one: StoreOperation) -> None:
        self.clock += 1
        if one.kind == "reopen":
            await self.reopen()
        elif one.kind == "tidy":
            await self.stores.tidy(self.store, whole=False)
        else:
            operations = {
                "create": self.create,
                "claim": self.claim,
                "commit": self.commit,
                "delete": self.delete,
            }
            await operations[one.kind](one)

    async def reopen(self) -> None:
        await self.store.aclose()
        self.store = await self.stores.open(f"owner {self.owners}")
        self.owners += 1

    def is_current(self, root: str, epoch: int) -> bool:
        return root in self.model and self.epochs[root][-1] == epoch

    def epoch(self, root: str, owner: int) -> int:
        given = self.epochs.get(root) or [0]
        return given[max(owner, -len(given))]

    async def create(self, one: StoreOperation) -> None:
        root = one.under or one.name
        if root != one.name and root in self.model and self.model[root].root != root:
            return  # a session under another one cannot be a root
        epoch = self.epoch(root, one.owner)
        attempt = self.store.create(one.name, root=root, at=self.clock, epoch=epoch)
        if one.name in self.model:
            equal(await attempt, None)
        elif root != one.name and not self.is_current(root, epoch):
            await refused(StaleEpoch, attempt)
        else:
            head = known(await attempt)
            owner = self.store.owner if root == one.name else self.model[root].owner
            self.model[one.name] = _Expected(root, self.clock, owner)
            if root == one.name:
                self.note_epoch(head)

    def note_epoch(self, head: SessionHead) -> None:
        highest = max((max(given) for given in self.epochs.values()), default=0)
        true(head.epoch > highest, f"epoch {head.epoch} is not above {highest}")
        self.epochs.setdefault(head.id, []).append(head.epoch)

    async def claim(self, one: StoreOperation) -> None:
        head = await self.store.claim(one.name)
        expected = self.model.get(one.name)
        if expected is None or expected.root != one.name:
            equal(head, None)
            return
        self.note_epoch(known(head))
        for each in self.model.values():
            if each.root == one.name:
                each.owner = self.store.owner

    async def commit(self, one: StoreOperation) -> None:
        expected = self.model.get(one.name)
        root = expected.root if expected else one.name
        seq = max(0, len(expected.log) + one.off_by) if expected else 0
        epoch = self.epoch(root, one.owner)
        if expected and expected.owner != self.store.owner and self.is_current(root, epoch):
            return  # only the owner that got an epoch uses it; a store may check that, or not
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
        if expected is None or not self.is_current(root, epoch):
            await refused(StaleEpoch, attempt)
        elif seq != len(expected.log):
            await refused(OutOfOrder, attempt)
        elif one.client_id in expected.keys:
            await refused(DuplicateKey, attempt)
        else:
            await attempt
            _keep(expected, commit)

    async def delete(self, one: StoreOperation) -> None:
        equal(await self.store.delete(one.name), one.name in self.model)
        for name in [n for n, each in self.model.items() if one.name in (n, each.root)]:
            del self.model[name]

    async def check(self) -> None:
        for name in NAMES:
            await self.check_one(name, self.model.get(name))
        roots = [(each.at, name) for name, each in self.model.items() if each.root == name]
        listed = [(one.updated_at, one.id) for one in await self.store.sessions()]
        equal(listed, sorted(roots, reverse=True), "sessions")
        unfinished = {each.root for each in self.model.values() if each.unfinished}
        equal(await self.store.unfinished(), sorted(unfinished), "unfinished")
        for word in WORDS:
            texts = [
                (each.log[seq - 1][0], name, seq)
                for name, each in self.model.items()
                for seq, text in each.texts.items()
                if word in text
            ]
            found = [(one.session, one.seq) for one in await self.store.search(word, limit=999)]
            equal(found, [(name, seq) for _, name, seq in sorted(texts, reverse=True)], word)

    async def check_one(self, name: str, expected: _Expected | None) -> None:
        head = await self.store.head(name)
        events = await self.store.events(name)
        if expected is None:
            equal((head, events), (None, []))
            return
        head = known(head)
        equal(head.epoch, self.epochs[expected.root][-1], f"epoch of {name}")
        equal(
            (head.root, head.owner, head.seq, head.state, head.title, head.updated_at),
            (
                expected.root,
                expected.owner,
                len(expected.log),
                expected.state,
                expected.title,
                expected.at,
            ),
            f"head of {name}",
        )
        wanted = [Recorded(seq, at, event) for seq, (at, event) in enumerate(expected.log, 1)]
        equal(events, wanted, f"log of {name}")
        middle = len(wanted) // 2
        page = await self.store.events(name, after=middle, limit=5)
        equal(page, wanted[middle : middle + 5], f"a page of {name}")
        for client_id in ("c1", "c2"):
            found = await self.store.find_key(name, "ann", client_id)
            equal(found, expected.keys.get(client_id), f"key {client_id} of {name}")


def _keep(expected: _Expected, commit: Commit) -> None:
    expected.log += [(commit.at, event) for event in commit.events]
    expected.keys.update({key.client_id: key for key in commit.keys})
    expected.state, expected.unfinished, expected.at = commit.state, commit.unfinished, commit.at
    expected.title = expected.title if commit.title is None else commit.title
    if commit.text:
        expected.texts[len(expected.log)] = commit.text
