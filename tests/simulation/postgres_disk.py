"""The disk of a simulated world in a real PostgreSQL.

The simulated world has its own time and its own loop; the store has real ones, in a thread. Each
operation blocks the world until it is done, so it takes no time there, and a seed still replays.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

import asyncpg

from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    Found,
    SessionHead,
    StoreFailed,
    commit_one,
)
from bargein.stores.memory import MemorySnapshot, _Kept
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.texts import as_it_was
from bargein.testing.simulation.store import DiskStore

T = TypeVar("T")

_names = itertools.count()


class Background:
    """A loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class PostgresDisk:
    """What `World` asks of its disk. Each life is a node with a lease that does not run out; `bury`
    ends it."""

    def __init__(self, background: Background, address: str) -> None:
        self._background = background
        self._address = address
        self._stores: dict[str, PostgresStore] = {}
        self._open: list[BlockingStore] = []

    def beside(self, owner: str, *, shared: bool = True) -> DiskStore:
        if not shared:
            return cast("DiskStore", Thief(self, owner))
        # A name is for one node: that of a life that is dead does not come back.
        node = f"{owner} {next(_names)}"
        store = self._background.run(PostgresStore.open(self._address, owner=node))
        self._stores[owner] = store
        self._open.append(BlockingStore(self._background, store))
        return self._open[-1]

    def bury(self, owner: str) -> None:
        if owner in self._stores:
            self.sql(
                "UPDATE bargein.nodes SET dead = true WHERE id = $1", self._stores[owner].owner
            )

    def give_up(self) -> None:
        """The machine crashed: nothing that ran on it reaches the database any more."""
        for store in self._open:
            store.is_gone = True
        for owner in self._stores:
            self.bury(owner)

    def restore(self, snapshot: MemorySnapshot) -> None:
        """Nothing: PostgreSQL has it."""

    def close(self) -> None:
        for store in self._stores.values():
            self._background.run(store.aclose())

    def sql(self, statement: str, *values: object) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(self._address)
            try:
                await connection.execute(statement, *values)
            finally:
                connection.terminate()

        self._background.run(run())

    def snapshot(self) -> MemorySnapshot:
        return self._background.run(self._snapshot())

    async def _snapshot(self) -> MemorySnapshot:
        connection = await asyncpg.connect(self._address)
        try:
            rows = await connection.fetch("SELECT number, id, title, state FROM bargein.sessions")
            found: dict[str, _Kept] = {}
            for number, name, title, state in rows:
                kept = _Kept("", 0.0, 0.0, title=as_it_was(title), state=state)
                kept.events = [
                    (at, body)
                    for at, body in await connection.fetch(
                        "SELECT at, body FROM bargein.events WHERE session = $1 ORDER BY seq",
                        number,
                    )
                ]
                found[as_it_was(name)] = kept
            return MemorySnapshot(0, found)
        finally:
            connection.terminate()


class BlockingStore:
    """One life's store."""

    def __init__(self, background: Background, store: PostgresStore) -> None:
        self._background = background
        self._store = store
        self.is_gone = False

    @property
    def owner(self) -> str:
        return self._store.owner

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_gone:
            work.close()
            raise StoreFailed("the machine crashed (simulated)", retryable=True)
        return self._background.run(work)

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        return self._run(self._store.create(session, root=root, at=at, epoch=epoch))

    async def claim(self, session: str) -> SessionHead | None:
        return self._run(self._store.claim(session))

    async def commit_one(self, commit: Commit) -> None:
        self._run(commit_one(self._store, commit))

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        return self._run(self._store.commit(commits))

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        return self._run(self._store.delete(session, epoch=epoch))

    async def head(self, session: str) -> SessionHead | None:
        return self._run(self._store.head(session))

    async def events(self, session: str, **bounds: Any) -> list[Recorded]:
        return self._run(self._store.events(session, **bounds))

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        return self._run(self._store.find_key(session, sender, client_id))

    async def sessions(self, **which: Any) -> list[SessionHead]:
        return self._run(self._store.sessions(**which))

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        return self._run(self._store.unfinished(limit=limit, after=after))

    async def search(self, words: str, **which: Any) -> list[Found]:
        return self._run(self._store.search(words, **which))

    async def backup(self, path: str) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self._run(self._store.aclose())


class Thief:
    """A program that got past a lock: it takes a session from a node that is alive."""

    def __init__(self, disk: PostgresDisk, owner: str) -> None:
        self._disk = disk
        self._owner = owner

    async def claim(self, session: str) -> None:
        self._disk.sql(
            "UPDATE bargein.sessions SET epoch = nextval('bargein.epoch'), owner = $2 "
            "WHERE id = $1 AND root IS NULL",
            session,
            self._owner,
        )

    async def aclose(self) -> None:
        pass
