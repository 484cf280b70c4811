"""Nodes and their leases: who is alive, judged by PostgreSQL's clock alone.

A node has a row in `nodes`. It renews its lease from a thread of its own on a connection of its
own, so that neither a busy event loop nor a slow commit ends it. Another thread-side timer watches
the end: giving up never waits for a renewal. When the lease is lost

- the thread calls `on_lost`, and the engine stops every turn;
- the old name is declared dead and the bells of the others ring, so that they need not wait;
- the node comes back under a new name, and `on_joined` gets that.

Burying another node is one conditional update: it happens only if the lease is over, and it cannot
be undone.
"""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bargein import __version__
from bargein.cancel._loops import end_task
from bargein.contracts.store import NodeRow
from bargein.errors import BargeinError, UserError
from bargein.stores.postgres.connection import Connection, PostgresConnection
from bargein.stores.postgres.faults import explain
from bargein.stores.postgres.lease import LeaseTimes, NodeLease

ATTEMPT_S = 1.0
"""How long a renewal may take before it is tried on another connection."""
AGAIN_S = 0.2
START_S = 15.0
END_S = 3.0
DEAD_KEPT_DAYS = 7

JOIN = """INSERT INTO bargein.nodes (id, address, version, lease_until)
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4::float8))
    ON CONFLICT (id) DO NOTHING RETURNING 1"""
RENEW = """UPDATE bargein.nodes
    SET lease_until = clock_timestamp() + make_interval(secs => $2::float8), address = $3
    WHERE id = $1 AND NOT dead RETURNING extract(epoch FROM lease_until)::float8"""
# A channel's name is made as by `channel_of`.
_RING_OTHERS = """SELECT pg_notify(
        'bargein_' || left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 32), '')
    FROM bargein.nodes WHERE NOT dead AND id <> $1"""
LEAVE = f"""WITH gone AS (DELETE FROM bargein.nodes WHERE id = $1 AND NOT dead)
    {_RING_OTHERS}"""
BURY = """UPDATE bargein.nodes SET dead = true, died_at = clock_timestamp()
    WHERE id = $1 AND NOT dead AND lease_until < clock_timestamp()"""
BURY_ONESELF = f"""WITH dead AS (
        UPDATE bargein.nodes SET dead = true, died_at = clock_timestamp()
        WHERE id = $1 AND NOT dead
    ) {_RING_OTHERS}"""
FORGET = f"""DELETE FROM bargein.nodes WHERE dead
    AND died_at < clock_timestamp() - interval '{DEAD_KEPT_DAYS} days'"""
WHO = "SELECT address, dead, lease_until < clock_timestamp() FROM bargein.nodes WHERE id = $1"
# A node without sessions costs nothing to count; one with many is counted by an index.
NODES = """SELECT n.id, n.address, n.version, n.dead,
        extract(epoch FROM n.lease_until - clock_timestamp())::float8,
        extract(epoch FROM n.joined_at)::float8,
        (SELECT count(*) FROM bargein.sessions s
            WHERE s.owner = n.id AND s.root IS NULL AND s.unfinished)
    FROM bargein.nodes n ORDER BY n.dead, n.joined_at"""


def boottime() -> float:
    """Seconds that also pass while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def channel_of(node: str) -> str:
    """The channel of a node's bell. Node names are longer than PostgreSQL allows for channels."""
    return "bargein_" + hashlib.sha256(node.encode()).hexdigest()[:32]


async def list_nodes(connection: Connection) -> list[NodeRow]:
    return [NodeRow(*row) for row in await connection.fetch(NODES)]


async def bury(connection: Connection, node: str) -> bool:
    """Declare a node dead whose lease is over. Returns False if it is not."""
    return bool(await connection.execute(BURY, node) == "UPDATE 1")


BURY_ALL = """UPDATE bargein.nodes SET dead = true, died_at = clock_timestamp()
    WHERE NOT dead AND lease_until < clock_timestamp()"""
LIVING = "SELECT id FROM bargein.nodes WHERE NOT dead"


async def bury_and_list_living(connection: Connection) -> frozenset[str]:
    """Declare every node dead whose lease is over. Returns the names of the others."""
    await connection.execute(BURY_ALL)
    return frozenset(node for (node,) in await connection.fetch(LIVING))


REPLICATION = """SELECT current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), current_setting('fsync'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
    (SELECT count(*) FROM pg_stat_replication)"""


async def replication(connection: Connection) -> str:
    """What a failover can lose, in a few words."""
    commit, names, fsync, in_step, standbys = await connection.fetchrow(REPLICATION) or ("",) * 5
    if fsync == "off" or commit == "off":
        return (
            "NOT DURABLE: fsync or synchronous_commit is off, so a crash loses what was confirmed"
        )
    if names and commit in ("on", "remote_apply") and in_step:
        return "a synchronous standby has every confirmed write; a failover loses nothing"
    if names and commit in ("on", "remote_apply"):
        return "it waits for a synchronous standby, and none is connected: no write is confirmed"
    if standbys:
        return "its standby is asynchronous: a failover can lose the last confirmed writes"
    return "it has no standby"


class LeaseKeeper:
    """Keeps one node's lease, in a thread. `new_name` makes the names after the first.

    `on_lost` and `on_joined` are called in the thread.
    """

    def __init__(
        self,
        database: str,
        name: str,
        *,
        node: str,
        new_name: Callable[[], str],
        node_address: str = "",
        times: LeaseTimes | None = None,
        on_lost: Callable[[str], object] = lambda node: None,
        on_joined: Callable[[str], object] = lambda node: None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.node = node
        self.address = node_address
        self._database = database
        self._name = name
        self._new_name = new_name
        self._times = times or LeaseTimes()
        self._on_lost = on_lost
        self._on_joined = on_joined
        self.renewed_until = 0.0
        """Until when the lease was renewed last, by PostgreSQL's clock."""
        self._deadline = 0.0
        self._on_deadline: Callable[[float], object] = lambda at: None
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._joined = threading.Event()
        self._refused: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="bargein lease", daemon=True)

    # --- any thread

    def start(self) -> None:
        """Join, and wait until that is done. Blocks; raises why the node cannot join."""
        self._thread.start()
        if not self._joined.wait(START_S):
            self.end()
            raise explain(TimeoutError(), self._name)
        if self._refused is not None:
            raise self._refused

    def tell_deadline(self, call: Callable[[float], object]) -> None:
        """Call `call` with the time by which nothing of the node may run any more, now and in the
        thread whenever it moves."""
        self._on_deadline = call
        call(self._deadline)

    def end(self) -> None:
        """Leave: from now on others may take the node's sessions. Blocks, bounded."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive():
            self._ended.wait(END_S)

    # --- the thread

    def _main(self) -> None:
        try:
            asyncio.run(self._keep())
        except BaseException as error:  # boundary: `start` raises it, or the lease runs out
            self._refused = error
        finally:
            self._joined.set()
            self._ended.set()

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        link = PostgresConnection(self._database, self._name, purpose="lease")
        try:
            lease = await self._join(link)
            self._joined.set()
            while True:
                await self._hold(link, lease)
                self._on_lost(self.node)
                lease = await self._join_again(link)
                self._on_joined(self.node)
        except asyncio.CancelledError:
            with suppress(BargeinError):
                await link.run(lambda connection: connection.execute(LEAVE, self.node), bound_s=1.0)
        finally:
            await link.aclose()

    async def _join(self, link: PostgresConnection) -> NodeLease:
        sent_at = self._clock()
        joined = await link.run(self._try_to_join)
        if not joined:
            raise await link.run(self._why_not)
        lease = NodeLease(self._times, sent_at)
        self._move_deadline(lease)
        return lease

    def _move_deadline(self, lease: NodeLease) -> None:
        self._deadline = lease.kill_at
        self._on_deadline(self._deadline)

    async def _try_to_join(self, connection: Connection) -> bool:
        row = await connection.fetchrow(
            JOIN, self.node, self.address, __version__, self._times.lasts_s
        )
        await connection.execute(FORGET)
        return row is not None

    async def _why_not(self, connection: Connection) -> UserError:
        row = await connection.fetchrow(WHO, self.node)
        address, is_dead, _ = row or ("", False, False)
        if is_dead:
            return UserError(
                f"{self._name}: node {self.node!r} was declared dead and cannot come back under "
                "that name. Give it another, or none"
            )
        where = f" at {address}" if address else ""
        return UserError(
            f"{self._name}: a node named {self.node!r} is alive already{where}. Give this one "
            "another name, or none"
        )

    async def _join_again(self, link: PostgresConnection) -> NodeLease:
        """Under a new name, until it works. The old name is declared dead first, so that nobody has
        to wait for its lease; nothing of it may act any more."""
        old, self.node = self.node, self._new_name()
        while True:
            try:
                await link.run(lambda connection: connection.execute(BURY_ONESELF, old))
                return await self._join(link)
            except BargeinError:
                await asyncio.sleep(AGAIN_S)

    async def _hold(self, link: PostgresConnection, lease: NodeLease) -> None:
        """Renew until the lease is lost. The watch does not wait for a renewal."""
        renewing = asyncio.create_task(self._renew(link, lease))
        try:
            while not lease.is_over(self._clock()):
                left_s = max(0.001, lease.fence_at - self._clock())
                await asyncio.wait({renewing}, timeout=left_s)
                if renewing.done():
                    # It ends only when the server says that the node is dead.
                    renewing.result()
                    return
        finally:
            link.drop()
            await end_task(renewing)

    async def _renew(self, link: PostgresConnection, lease: NodeLease) -> None:
        """Returns when the server says that the node is dead."""
        while True:
            await asyncio.sleep(max(0.0, lease.renew_at - self._clock()))
            sent_at = self._clock()
            try:
                until = await link.run(self._ask_for_more, bound_s=ATTEMPT_S)
            except BargeinError:
                await asyncio.sleep(AGAIN_S)
                continue
            if until is None:
                lease.lost()
                return
            if lease.renewed(sent_at, self._clock()):
                self._move_deadline(lease)
                self.renewed_until = until

    async def _ask_for_more(self, connection: Connection) -> float | None:
        times = self._times
        until: float | None = await connection.fetchval(
            RENEW, self.node, times.lasts_s, self.address
        )
        return until
