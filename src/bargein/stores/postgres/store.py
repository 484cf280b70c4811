"""The store in a PostgreSQL database, for many machines.

One connection writes, a few read. A write returns when PostgreSQL says that it is durable; writes
that come together share a statement. Every node that opens the database is an owner with a lease
(`nodes`): `claim` takes a session that is free, this node's own, or left by a node that is dead.

The store runs on asyncio's loops, in the one that opened it. A caller that is cancelled only stops
waiting: no statement is cancelled on the wire. An error is a sentence that names the database;
after one the store connects anew and the next operation may succeed.

If the node loses its lease, `on_lost` is called: stop every turn at once. The store then comes back
under a new name by itself, and owns nothing.
"""

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import asyncpg

from bargein.contracts.event import Recorded
from bargein.contracts.store import AcceptKey, Commit, Found, NodeRow, SessionHead
from bargein.errors import BargeinError, UserError
from bargein.stores.encoding import check_text, check_time
from bargein.stores.postgres import schema, search_sql, session_sql
from bargein.stores.postgres.address import PostgresAddress, host_of, parse_address
from bargein.stores.postgres.commit_sql import PLANNED_FOR_GROWTH, PendingCommit
from bargein.stores.postgres.connection import (
    CONNECT_S,
    Connection,
    PostgresConnection,
    ReadConnections,
    Work,
    connect,
)
from bargein.stores.postgres.faults import closed, explain, explain_opening
from bargein.stores.postgres.lease import LeaseTimes
from bargein.stores.postgres.mail import Mailbox
from bargein.stores.postgres.nodes import (
    LeaseKeeper,
    bury,
    bury_and_list_living,
    list_nodes,
    replication,
)
from bargein.stores.postgres.replica import Replica
from bargein.stores.postgres.writer import CommitWriter, Write

T = TypeVar("T")

READERS = 4
# So many of them search at once. The others are for what a turn or a probe waits for.
SEARCHERS = 2
REPLICA_READERS = 2
LINGER_S = 0.1
TIDY_AGAIN_S = 30.0
LOOK_S = 0.5
LOOK_ANYWAY_S = 30.0
ORPHANS_MAX = 200


MAKE_SECRET = "INSERT INTO bargein.cluster VALUES (1, $1) ON CONFLICT (one) DO NOTHING"
SECRET = "SELECT secret FROM bargein.cluster WHERE one = 1"
ANNOUNCE = "UPDATE bargein.nodes SET address = $2 WHERE id = $1"


def new_node_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class PostgresStore:
    """Made by `open`."""

    def __init__(self, address: PostgresAddress, node: str) -> None:
        self.address = address
        self.opened_with = ""
        """The address as `open` was given it. Never show it: it may have a password."""
        self._node = node
        self._closed = False
        self._lease: LeaseKeeper | None = None
        self._on_lost: Callable[[], object] | None = None
        self._readers = ReadConnections(self._make_reader, READERS)
        self._write_link = self._link("writer", _plan_for_growth)
        self._writer = CommitWriter(self._write_link, address.name, lambda: self._node)
        self._replica = self._open_replica()
        self._searchers = asyncio.Semaphore(SEARCHERS)
        self._splitter = ThreadPoolExecutor(1, thread_name_prefix="bargein words")
        self.mail = Mailbox(self._readers, address.direct, lambda: self._node)
        self._to_tidy = asyncio.Event()
        self._lost = asyncio.Event()
        self._to_look = asyncio.Event()
        self._living: frozenset[str] = frozenset()
        self._look_at = 0.0
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._tidy_at_leisure()),
            loop.create_task(self._tell_when_lost()),
        ]

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        owner: str | None = None,
        node_address: str = "",
        lease: LeaseTimes | None = None,
        joins: bool = True,
    ) -> "PostgresStore":
        """Open the database, and make its tables or bring them up to date.

        `owner` is the name of this node: a new one unless given. `node_address` says where other
        nodes reach it. With `joins=False` the store only reads: it is no node and owns nothing.
        """
        parsed = parse_address(address)
        if asyncio._get_running_loop() is None:
            raise UserError(f"{parsed.name} is for asyncio's event loops; this is another one")
        await prepare(parsed)
        store = cls(parsed, owner or new_node_name())
        store.opened_with = address
        try:
            if joins:
                await store._join(node_address, lease)
        except BaseException:
            with suppress(BargeinError):
                await store.aclose()
            raise
        return store

    @property
    def owner(self) -> str:
        return self._node

    @property
    def name(self) -> str:
        """How messages name the database."""
        return self.address.name

    def on_lost(self, call: Callable[[], object]) -> None:
        """Have the loop of this store call `call` when the node has lost its lease."""
        self._on_lost = call

    def on_deadline(self, call: Callable[[float], object]) -> None:
        """Have `call` called with the time of CLOCK_BOOTTIME by which nothing of this node may run
        any more: now, and in the lease's thread whenever it moves. It must not block."""
        if self._lease is not None:
            self._lease.tell_deadline(call)

    # --- writing

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        check_text(session, root)
        check_time(at)

        async def work(connection: Connection, generation: int) -> SessionHead | None:
            return await session_sql.create(
                connection, self._node, generation, session, root, at, epoch
            )

        return await self._write(work, session)

    async def claim(self, session: str) -> SessionHead | None:
        check_text(session)

        async def work(connection: Connection, generation: int) -> SessionHead | None:
            return await session_sql.claim(connection, self._node, generation, session)

        return await self._write(work, session)

    async def release(self, session: str, *, epoch: int) -> bool:
        """Give up a root session, at a raised epoch: it is free. Returns False if it was not this
        node's at this epoch any more."""
        check_text(session)

        async def work(connection: Connection, generation: int) -> bool:
            return await session_sql.release(connection, self._node, generation, session, epoch)

        return await self._write(work, session)

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        if self._closed:
            raise closed(self.name)
        steps = [PendingCommit(commit) for commit in commits]
        sound = [step for step in steps if step.error is None]
        if sound:
            await self._writer.commit(sound)
            if any(step.commit.text for step in sound):
                self._to_tidy.set()
        return [step.error for step in steps]

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        check_text(session)

        async def work(connection: Connection, generation: int) -> bool:
            return await session_sql.delete(connection, self._node, generation, session, epoch)

        gone = await self._write(work, session)
        if gone:
            self._to_tidy.set()
        return gone

    async def _write(self, work: Write[T], session: str) -> T:
        try:
            return await self._writer.run(work, session)
        except asyncpg.PostgresError as error:
            raise explain(error, self.name) from error

    # --- reading about one session

    async def head(self, session: str) -> SessionHead | None:
        check_text(session)
        return await self._read_one(session, partial(session_sql.head, session=session))

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        check_text(session)
        return await self._read_one(
            session,
            partial(
                session_sql.events, session=session, after=after, limit=limit, bytes_max=bytes_max
            ),
        )

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        check_text(session, sender, client_id)
        return await self._read_one(
            session,
            partial(session_sql.find_key, session=session, sender=sender, client_id=client_id),
        )

    async def _read_one(self, session: str, work: Work[T]) -> T:
        """Read behind a pending write of the same session: its caller may have been cancelled or
        not know the outcome, and it must be decided when this answers."""
        if not self._writer.is_pending(session):
            return await self._read(work)

        async def behind(connection: Connection, generation: int) -> T:
            return await work(connection)

        return await self._write(behind, session)

    # --- reading about many

    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        work = partial(session_sql.sessions, limit=limit, before=before, under=under)
        # What is under a root decides how a session goes on.
        return await (self._read_for_people(work) if under is None else self._read(work))

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        return await self._read(partial(session_sql.unfinished, limit=limit, after=after))

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        work = partial(
            search_sql.search, words=words, limit=limit, roots=roots, splitter=self._splitter
        )
        async with self._searchers:
            return await self._read_for_people(work)

    async def _read_for_people(self, work: Work[T]) -> T:
        """May be a moment old, if there is a replica."""
        found = await self._replica.try_(work) if self._replica is not None else None
        return found[0] if found is not None else await self._read(work)

    async def orphans(self) -> list[str]:
        """Wait until there are unfinished roots that no living node has; return some of them.

        Looks when a node died or left, when the bell rings, and now and then. Buries nodes whose
        lease is over.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._to_look.wait()
            with suppress(BargeinError):
                living = await self._read(bury_and_list_living)
                now = time.monotonic()
                if not (self._to_look.is_set() or self._living - living or now > self._look_at):
                    self._living = living
                    continue
                self._to_look.clear()
                found = await self._read(partial(session_sql.orphans, limit=ORPHANS_MAX))
                if len(found) == ORPHANS_MAX:
                    self._to_look.set()
                self._living, self._look_at = living, now + LOOK_ANYWAY_S
                if found:
                    # Not all nodes in the same order: each takes what it comes to first.
                    random.shuffle(found)
                    return found

    @property
    def server_host(self) -> str:
        return host_of(self.address.direct)

    async def cluster_secret(self) -> str:
        made = secrets.token_urlsafe(32)
        await self._read(lambda connection: connection.execute(MAKE_SECRET, made))
        found = await self._read(lambda connection: connection.fetchval(SECRET))
        return str(found)

    async def announce(self, address: str) -> None:
        """Tell the others where this node is."""
        if self._lease is None:
            return
        self._lease.address = address
        await self._read(lambda connection: connection.execute(ANNOUNCE, self._node, address))

    async def nodes(self) -> list[NodeRow]:
        return await self._read(list_nodes)

    async def bury(self, node: str) -> bool:
        """Declare a node dead whose lease is over. Returns False if it is not."""
        return await self._read(partial(bury, node=node))

    async def replication(self) -> str:
        """What a failover can lose, in a few words."""
        return await self._read(replication)

    async def _read(self, work: Work[T]) -> T:
        try:
            return await self._readers.run(work)
        except asyncpg.PostgresError as error:
            raise explain(error, self.name) from error

    # --- the whole of it

    async def backup(self, path: str) -> None:
        if self._closed:
            raise closed(self.name)
        from bargein.stores.copying import copy_to_file

        await copy_to_file(self, Path(path))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.mail.aclose()
        await self._writer.aclose()
        if self._lease is not None:
            # Last of the writes: from now on others may take this node's sessions.
            await asyncio.get_running_loop().run_in_executor(self._splitter, self._lease.end)
        await self._write_link.aclose()
        await self._readers.aclose()
        if self._replica is not None:
            await self._replica.aclose()
        self._splitter.shutdown(wait=False)

    # --- inside

    def _link(self, purpose: str, on_connect: Work[object] | None = None) -> PostgresConnection:
        """`on_connect` is left out behind a pooler, which would leave its settings to others."""
        return PostgresConnection(
            self.address.pooled,
            self.address.name,
            keeps_statements=not self.address.is_pooled,
            purpose=purpose,
            on_connect=None if self.address.is_pooled else on_connect,
        )

    def _open_replica(self) -> Replica | None:
        if not self.address.replica:
            return None

        def link() -> PostgresConnection:
            return PostgresConnection(self.address.replica, self.name, purpose="replica")

        def lease() -> tuple[str, float]:
            return self._node, self._lease.renewed_until if self._lease is not None else 0.0

        return Replica(ReadConnections(link, REPLICA_READERS), lease)

    def _make_reader(self) -> PostgresConnection:
        return self._link("reader")

    async def _join(self, node_address: str, times: LeaseTimes | None) -> None:
        loop = asyncio.get_running_loop()
        self._lease = LeaseKeeper(
            self.address.direct,
            self.address.name,
            node=self._node,
            new_name=new_node_name,
            node_address=node_address,
            times=times,
            on_lost=lambda node: loop.call_soon_threadsafe(self._lost.set),
            on_joined=lambda node: loop.call_soon_threadsafe(self._joined, node),
        )
        await loop.run_in_executor(self._splitter, self._lease.start)
        self.mail.listen(self._to_look.set)

    async def _tell_when_lost(self) -> None:
        """In a task of its own, because what is called may start tasks."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            if self._on_lost is not None:
                self._on_lost()

    def _joined(self, node: str) -> None:
        self._node = node

    async def _tidy_at_leisure(self) -> None:
        """Index texts and sweep up deleted sessions, a slice at a time. Also what other nodes left
        undone."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TIDY_AGAIN_S):
                    await self._to_tidy.wait()
            self._to_tidy.clear()
            await asyncio.sleep(LINGER_S)
            # The next text, deletion or look tries again.
            with suppress(BargeinError):
                while await self.tidy():
                    pass

    async def tidy(self) -> bool:
        """One slice. Returns False when nothing is left to do."""
        swept = await self._read(session_sql.sweep)
        texts = await self._read(search_sql.texts_to_index)
        if texts:
            loop = asyncio.get_running_loop()
            split = [
                (
                    session,
                    seq,
                    await loop.run_in_executor(self._splitter, search_sql.words_to_index, text),
                )
                for session, seq, text in texts
            ]
            await self._read(partial(search_sql.put_in_index, texts=split))
        return swept or bool(texts)


async def _plan_for_growth(connection: Connection) -> None:
    await connection.execute(PLANNED_FOR_GROWTH)


async def prepare(address: PostgresAddress) -> None:
    """Check the server and make the tables. Errors of the operator are a `UserError`."""
    try:
        connection = await connect(
            address.direct, keeps_statements=True, purpose="schema", bound_s=CONNECT_S
        )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise explain_opening(error, address.name) from error
    try:
        await schema.migrate(connection)
    except UserError as error:
        raise UserError(f"{address.name} {error}") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise explain_opening(error, address.name) from error
    finally:
        connection.terminate()
