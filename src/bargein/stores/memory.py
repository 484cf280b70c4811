"""A store in memory: for tests, for the simulation, and for sessions that need not be kept.

It keeps the whole contract except durability, and runs on any event loop that anyio supports,
without a thread. It encodes and decodes events like a store on disk, so a value that could not be
stored there fails here too. To simulate a crash, take a `snapshot()` at that moment and `restore()`
it into a new store.

`MemoryStore()` has its data to itself, like SQLite behind its lock: every other owner counts as
dead. `MemoryStore(owner, shared=True)` and the stores that `beside` makes are nodes of a cluster on
the same data: an owner is alive until its store is closed or `bury` declares it dead.

Three hooks make the store slow, make it fail, or stop the world at a chosen point. The store awaits
each with the name of the operation and the session:

- `before_commit`: nothing of the write is durable yet. If the hook raises, the write never happens.
- `after_commit`: the write is durable, but its caller does not know yet.
- `before_read`: nothing was read yet.

A cancel of the caller while a hook runs ends the operation there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    DuplicateKey,
    Found,
    OutOfOrder,
    OwnedElsewhere,
    SessionHead,
    StaleEpoch,
    StoreFailed,
)
from bargein.errors import BugError, UserError
from bargein.stores.encoding import (
    check_commit,
    check_text,
    check_time,
    check_words,
    decode_events,
    encode_events,
)
from bargein.stores.words import SEARCHED_CHARACTERS_MAX, excerpt, has_all, words_of

Hook = Callable[[str, str], Awaitable[object]]


class _Kept(msgspec.Struct):
    """One session. `epoch` and `owner` are set for roots; other sessions have their root's."""

    root: str
    created_at: float
    updated_at: float
    epoch: int = 0
    owner: str = ""
    title: str = ""
    state: bytes = b""
    unfinished: bool = False
    events: list[tuple[float, bytes]] = []
    keys: dict[tuple[str, str], AcceptKey] = {}
    texts: dict[int, str] = {}

    def copy(self) -> "_Kept":
        kept = msgspec.structs.replace(self)
        kept.events, kept.keys, kept.texts = self.events.copy(), self.keys.copy(), self.texts.copy()
        return kept


class MemorySnapshot(msgspec.Struct, frozen=True):
    """Everything that was durable at one moment. Later writes do not change it."""

    epoch: int
    sessions: dict[str, _Kept]


class _Disk:
    """The data, which the stores of several owners may share."""

    def __init__(self) -> None:
        self.epoch = 0
        self.kept: dict[str, _Kept] = {}
        self.turns: dict[str, anyio.Lock] = {}
        self.living: set[str] = set()


class MemoryStore:
    def __init__(
        self,
        owner: str = "memory",
        *,
        shared: bool = False,
        before_commit: Hook | None = None,
        after_commit: Hook | None = None,
        before_read: Hook | None = None,
    ) -> None:
        self.before_commit = before_commit
        self.after_commit = after_commit
        self.before_read = before_read
        self._closed = False
        self._shared = shared
        self._owner = owner
        self._disk = _Disk()
        self._disk.living.add(owner)

    @property
    def owner(self) -> str:
        return self._owner

    def beside(self, owner: str, *, shared: bool = True) -> "MemoryStore":
        """Make another store on the same data. With `shared=False` it treats every other owner as
        dead, like a process that got past a lock."""
        other = MemoryStore(owner, shared=shared)
        other._disk = self._disk
        self._disk.living.add(owner)
        return other

    def bury(self, owner: str) -> None:
        """Declare an owner dead. Its later writes are refused once its sessions are claimed."""
        self._disk.living.discard(owner)

    # --- what is durable

    def snapshot(self) -> MemorySnapshot:
        disk = self._disk
        return MemorySnapshot(disk.epoch, {name: kept.copy() for name, kept in disk.kept.items()})

    def restore(self, snapshot: MemorySnapshot) -> None:
        """Replace the data with that of `snapshot`."""
        self._disk.epoch = snapshot.epoch
        self._disk.kept = {name: kept.copy() for name, kept in snapshot.sessions.items()}

    # --- writing

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        check_text(session, root)
        check_time(at)
        async with self._writing("create", session, root):
            self._check_living()
            if session in self._disk.kept:
                head = None
            else:
                kept = _Kept(root, at, at)
                if root == session:
                    kept.epoch, kept.owner = self._next_epoch(), self._owner
                else:
                    self._check_epoch(root, epoch)
                self._disk.kept[session] = kept
                head = self._head(session)
        return head

    async def claim(self, session: str) -> SessionHead | None:
        async with self._writing("claim", session, session):
            self._check_living()
            kept = self._disk.kept.get(session)
            if kept is None or kept.root != session:
                head = None
            elif not self._may_claim(kept.owner):
                raise OwnedElsewhere(session, kept.owner)
            else:
                kept.epoch, kept.owner = self._next_epoch(), self._owner
                head = self._head(session)
        return head

    def _may_claim(self, owner: str) -> bool:
        """Whether a session of `owner` is free, this store's own, or left by a dead owner."""
        return not self._shared or owner in ("", self._owner) or owner not in self._disk.living

    def _check_living(self) -> None:
        if self._shared and self._owner not in self._disk.living:
            raise StoreFailed(
                f"owner {self._owner!r} was declared dead: open the store under a new name",
                retryable=False,
            )

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        return await one_by_one(self.commit_one, commits)

    async def commit_one(self, commit: Commit) -> None:
        check_commit(commit)
        check_words(commit)
        bodies = encode_events(commit.events)
        async with self._writing("commit", commit.session, commit.root):
            kept = self._disk.kept.get(commit.session)
            if kept is None:
                raise StaleEpoch(f"session {commit.session!r} does not exist any more")
            if kept.root != commit.root:
                raise BugError(
                    f"session {commit.session!r} is under {kept.root!r}, not {commit.root!r}"
                )
            self._check_epoch(commit.root, commit.epoch)
            _check_order(commit, kept)
            kept.keys.update({(key.sender, key.client_id): key for key in commit.keys})
            kept.events.extend((commit.at, body) for body in bodies)
            kept.state, kept.updated_at = commit.state, commit.at
            kept.unfinished = commit.unfinished
            if commit.title is not None:
                kept.title = commit.title
            if commit.text:
                kept.texts[len(kept.events)] = commit.text[:SEARCHED_CHARACTERS_MAX]

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        known = self._disk.kept.get(session)
        async with self._writing("delete", session, known.root if known else session):
            kept = self._disk.kept.get(session)
            if kept is not None:
                if epoch is not None:
                    self._check_epoch(kept.root, epoch)
                del self._disk.kept[session]
                under = [name for name, each in self._disk.kept.items() if each.root == session]
                for name in under:
                    del self._disk.kept[name]
        return kept is not None

    # --- reading

    async def head(self, session: str) -> SessionHead | None:
        await self._reading("head", session)
        return self._head(session) if session in self._disk.kept else None

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        await self._reading("events", session)
        kept = self._disk.kept.get(session)
        after = max(after, 0)
        end = None if limit is None else after + max(limit, 0)
        rows = kept.events[after:end] if kept is not None else []
        if bytes_max is not None:
            sums = accumulate((len(body) for _, body in rows), initial=0)
            rows = [row for row, before in zip(rows, sums, strict=False) if before < bytes_max]
        numbered = [(after + n, at, body) for n, (at, body) in enumerate(rows, 1)]
        return decode_events(session, numbered)

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        await self._reading("find_key", session)
        kept = self._disk.kept.get(session)
        return None if kept is None else kept.keys.get((sender, client_id))

    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        await self._reading("sessions", "")
        found = [
            (kept.updated_at, name)
            for name, kept in self._disk.kept.items()
            if (kept.root == name if under is None else kept.root == under != name)
        ]
        page = sorted((one for one in found if before is None or one < before), reverse=True)
        return [self._head(name) for _, name in page[: max(limit, 0)]]

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        await self._reading("unfinished", "")
        roots = {kept.root for kept in self._disk.kept.values() if kept.unfinished}
        return sorted(root for root in roots if root > after)[: max(limit, 0)]

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        await self._reading("search", "")
        wanted = words_of(words)
        found = [
            (kept.events[seq - 1][0], name, seq, text)
            for name, kept in self._disk.kept.items()
            if roots is None or kept.root in roots
            for seq, text in kept.texts.items()
            if wanted and has_all(text, wanted)
        ]
        newest = sorted(found, reverse=True)[: max(limit, 0)]
        return [Found(name, seq, excerpt(text, wanted)) for _, name, seq, text in newest]

    # --- the whole of it

    async def backup(self, path: str) -> None:
        await self._reading("backup", "")
        _write_new(path, msgspec.msgpack.encode(self.snapshot()))

    @classmethod
    def from_backup(cls, path: str) -> "MemoryStore":
        store = cls()
        store.restore(msgspec.msgpack.decode(Path(path).read_bytes(), type=MemorySnapshot))
        return store

    async def aclose(self) -> None:
        self._closed = True
        self.bury(self._owner)
        await anyio.lowlevel.checkpoint()

    # --- inside

    @asynccontextmanager
    async def _writing(self, operation: str, session: str, root: str) -> AsyncIterator[None]:
        """Run the block as one write: it becomes durable at once and awaits nothing. Writes of one
        root happen in the order in which they were asked for; roots are independent."""
        self._check_open()
        turn = self._disk.turns.setdefault(root, anyio.Lock())
        try:
            async with turn:
                if self.before_commit is not None:
                    await self.before_commit(operation, session)
                self._check_open()
                yield
                if self.after_commit is not None:
                    await self.after_commit(operation, session)
        finally:
            statistics = turn.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._disk.turns.pop(root, None)

    async def _reading(self, operation: str, session: str) -> None:
        self._check_open()
        if self.before_read is not None:
            await self.before_read(operation, session)
        else:
            await anyio.lowlevel.checkpoint()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store in memory is closed", retryable=False)

    def _check_epoch(self, root: str, epoch: int | None) -> None:
        kept = self._disk.kept.get(root)
        if kept is None:
            raise StaleEpoch(f"session {root!r} does not exist any more")
        if kept.epoch != epoch:
            raise StaleEpoch(f"session {root!r} is at epoch {kept.epoch}, not {epoch}")

    def _next_epoch(self) -> int:
        self._disk.epoch += 1
        return self._disk.epoch

    def _head(self, session: str) -> SessionHead:
        kept = self._disk.kept[session]
        root = self._disk.kept[kept.root]
        return SessionHead(
            id=session,
            root=kept.root,
            epoch=root.epoch,
            seq=len(kept.events),
            state=kept.state,
            title=kept.title,
            created_at=kept.created_at,
            updated_at=kept.updated_at,
            owner=root.owner,
        )


def _check_order(commit: Commit, kept: _Kept) -> None:
    if len(kept.events) != commit.expected_seq:
        raise OutOfOrder(
            f"session {commit.session!r} ends at {len(kept.events)}, not {commit.expected_seq}"
        )
    names = [(key.sender, key.client_id) for key in commit.keys]
    twice = [name for name in names if name in kept.keys or names.count(name) > 1]
    if twice:
        raise DuplicateKey(f"session {commit.session!r} already has {twice[0]}")


def _write_new(path: str, body: bytes) -> None:
    try:
        with Path(path).open("xb") as file:
            file.write(body)
    except FileExistsError as error:
        raise UserError(f"{path} exists: choose another name for the backup") from error


async def one_by_one(
    commit_one: Callable[[Commit], Awaitable[None]], commits: Sequence[Commit]
) -> list[Exception | None]:
    """Write the commits one after the other. Returns the outcome of each."""
    outcomes: list[Exception | None] = []
    for commit in commits:
        try:
            await commit_one(commit)
            outcomes.append(None)
        except Exception as error:  # boundary: this commit alone fails
            outcomes.append(error)
    return outcomes
