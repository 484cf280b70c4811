"""Copies all sessions of one store into another, as they are: logs, keys, texts, epochs, owners.

`copy_sessions` is verified and can be resumed. A session is copied in one transaction of the
target, and a session that the target has already, with the same epoch and the same end, is not
copied again. At the end every session is read on both sides and compared.

Both sides must be quiet, except that PostgreSQL is read as it was at one moment.
"""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bargein.contracts.store import AcceptKey, StoreFailed
from bargein.contracts.value import Value

if TYPE_CHECKING:
    from bargein.stores.postgres import PostgresStore

SLICE_EVENTS = 500

EventRow = tuple[int, float, bytes]
TextRow = tuple[int, float, str]


class RawSession(Value, frozen=True):
    """A session's row. `root` is "" for a root. `number` is the side's own."""

    number: int
    id: str
    root: str
    epoch: int
    owner: str
    seq: int
    unfinished: bool
    created_at: float
    updated_at: float
    title: str
    state: bytes

    @property
    def end(self) -> tuple[object, ...]:
        """What differs if the session was changed since it was copied."""
        return (self.root, self.epoch, self.owner, self.seq, self.updated_at, self.state)


class RawReader(Protocol):
    async def count(self) -> int: ...

    async def last_epoch(self) -> int: ...

    def sessions(self) -> AsyncIterator[RawSession]:
        """Roots first, so that a session comes after its root."""
        ...

    async def find(self, session: str) -> RawSession | None: ...

    async def events(self, session: RawSession, after: int, limit: int) -> list[EventRow]: ...

    async def keys(self, session: RawSession) -> list[AcceptKey]: ...

    async def texts(self, session: RawSession, after: int, limit: int) -> list[TextRow]: ...


class RawWriter(RawReader, Protocol):
    async def begin(self, session: RawSession) -> None:
        """Begin a transaction with this session in it, instead of an older copy of it."""
        ...

    async def put_events(self, rows: list[EventRow]) -> None: ...

    async def put_keys(self, keys: list[AcceptKey]) -> None: ...

    async def put_texts(self, rows: list[TextRow]) -> None: ...

    async def end(self) -> None:
        """Commit the session that was begun."""
        ...

    async def raise_epoch(self, epoch: int) -> None:
        """No later claim may get an epoch up to this one."""
        ...


Progress = Callable[[int, int], object]


async def copy_sessions(
    source: RawReader,
    target: RawWriter,
    *,
    progress: Progress = lambda done, total: None,
    verify: bool = True,
) -> int:
    """Copy everything. Calls `progress` with how many sessions are done, of all. Returns how many
    were copied, without those that were there already."""
    total, copied, done = await source.count(), 0, 0
    await target.raise_epoch(await source.last_epoch())
    async for session in source.sessions():
        there = await target.find(session.id)
        if there is None or there.end != session.end:
            await _copy(source, target, session)
            copied += 1
        done += 1
        progress(done, total)
    if verify:
        await verify_copy(source, target)
    return copied


async def _copy(source: RawReader, target: RawWriter, session: RawSession) -> None:
    await target.begin(session)
    after = 0
    while rows := await source.events(session, after, SLICE_EVENTS):
        await target.put_events(rows)
        after = rows[-1][0]
    await target.put_keys(await source.keys(session))
    after = 0
    while texts := await source.texts(session, after, SLICE_EVENTS):
        await target.put_texts(texts)
        after = texts[-1][0]
    await target.end()


async def verify_copy(source: RawReader, target: RawReader) -> None:
    """Read both sides and compare them. Raises `StoreFailed` that names the first difference."""
    async for session in source.sessions():
        there = await target.find(session.id)
        if there is None or there.end != session.end or there.title != session.title:
            raise StoreFailed(
                f"the copy of session {session.id!r} is not like the original: run the copy again "
                "while nothing writes to either store",
                retryable=False,
            )
        if await digest(source, session) != await digest(target, there):
            raise StoreFailed(
                f"the copied log of session {session.id!r} is not like the original: delete the "
                "copy of it and run the copy again",
                retryable=False,
            )


async def digest(side: RawReader, session: RawSession) -> bytes:
    """A checksum of all that belongs to a session."""
    sums = hashlib.sha256()
    after = 0
    while rows := await side.events(session, after, SLICE_EVENTS):
        for row in rows:
            sums.update(repr(row).encode())
        after = rows[-1][0]
    for key in sorted(await side.keys(session), key=lambda key: (key.sender, key.client_id)):
        sums.update(repr(key).encode())
    after = 0
    while texts := await side.texts(session, after, SLICE_EVENTS):
        for text in texts:
            sums.update(repr(text).encode())
        after = texts[-1][0]
    return sums.digest()


async def copy_to_file(store: "PostgresStore", path: Path) -> None:
    """A backup of a PostgreSQL store: a SQLite file that `sqlite:///...` opens. It has the store as
    it was when the backup began. Complete, or not there; never over an existing file."""
    from bargein.stores.postgres.raw import reading
    from bargein.stores.sqlite.backup import reserved
    from bargein.stores.sqlite.raw import RawSqlite

    with reserved(path) as part:
        target = await RawSqlite.create(part)
        try:
            async with reading(store.address) as source:
                await copy_sessions(source, target, verify=False)
        finally:
            await target.aclose()
