"""Durable commits against bare SQLite group commit; opening a session whatever its log's length.

The baseline is the least that makes many small writes durable together: one thread, one `INSERT` a
commit, one `COMMIT` for all that wait, and one call into the loop to tell them. No head, no epoch,
no order, no savepoint, no encoding. Both sides have the same producers on the same loop (uvloop).
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import psutil

from bargein.cli.event_loop import SWITCH_S
from bargein.contracts.event import TextCheckpoint
from bargein.contracts.store import Commit, SessionHead, StaleEpoch, commit_one
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore
from bench.measure import Report, Samples, interleave_async, percentile

PRODUCERS = (1, 16, 256)
COMMITS = {1: 400, 16: 2_000, 256: 5_000}
ROUNDS = 7
TEXT = "x" * 300
STATE = b"s" * 200
LOGS = (10, 100, 1_000, 10_000)
SESSIONS = 10_000
BUSY_ROUND_S = 0.001
BUSY_ROUNDS = 25
BUSY_COMMITS = 5

Write = Callable[[int, int], Awaitable[None]]


class BareJob:
    __slots__ = ("body", "done", "loop")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.done = anyio.Event()
        self.loop: Any = anyio.lowlevel.current_token().native_token


class BareGroupCommit:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.body = msgspec.msgpack.encode(TextCheckpoint("turn", TEXT))
        self.queue: SimpleQueue[BareJob | None] = SimpleQueue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    async def write(self, producer: int, number: int) -> None:
        job = BareJob(self.body)
        self.queue.put(job)
        await job.done.wait()

    def run(self) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, body BLOB)")
        while (job := self.queue.get()) is not None:
            batch = [job]
            try:
                while len(batch) < 512 and (more := self.queue.get_nowait()) is not None:
                    batch.append(more)
            except Empty:
                pass
            connection.execute("BEGIN IMMEDIATE")
            for one in batch:
                connection.execute("INSERT INTO log (body) VALUES (?)", (one.body,))
            connection.execute("COMMIT")
            job.loop.call_soon_threadsafe(self.wake, batch)
        connection.close()

    @staticmethod
    def wake(batch: list[BareJob]) -> None:
        for job in batch:
            job.done.set()

    def count(self) -> int:
        with sqlite3.connect(self.path) as connection:
            (count,) = connection.execute("SELECT count(*) FROM log").fetchone()
        return int(count)


class Ours:
    """One session for each producer; each keeps its head as an engine would."""

    def __init__(self, store: SqliteStore, heads: list[SessionHead]) -> None:
        self.store = store
        self.heads = heads
        self.seqs = [head.seq for head in heads]

    @classmethod
    async def open(cls, path: Path, producers: int) -> Ours:
        store = await SqliteStore.open(path)
        heads = []
        for number in range(producers):
            head = await store.create(f"session-{number}", root=f"session-{number}", at=0.0)
            assert head is not None
            heads.append(head)
        return cls(store, heads)

    async def write(self, producer: int, number: int) -> None:
        head = self.heads[producer]
        await commit_one(
            self.store,
            Commit(
                session=head.id,
                root=head.id,
                epoch=head.epoch,
                expected_seq=self.seqs[producer],
                at=float(number),
                events=(TextCheckpoint("turn", TEXT),),
                state=STATE,
                unfinished=True,
            ),
        )
        self.seqs[producer] += 1

    async def count(self) -> int:
        seqs = []
        for head in self.heads:
            found = await self.store.head(head.id)
            assert found is not None
            seqs.append(found.seq)
            if len(await self.store.events(head.id)) != found.seq:
                return -1
        return sum(seqs)


async def drive(write: Write, producers: int, latencies: list[float]) -> float:
    """All producers write as fast as their commits are acknowledged. Returns seconds per commit."""
    each = COMMITS[producers] // producers

    async def produce(producer: int) -> None:
        for number in range(each):
            began = time.perf_counter()
            await write(producer, number)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for producer in range(producers):
            group.start_soon(produce, producer)
    return (time.perf_counter() - began) / (each * producers)


async def throughput(report: Report, directory: Path) -> None:
    for producers in PRODUCERS:
        bare = BareGroupCommit(directory / f"bare-{producers}.db")
        ours = await Ours.open(directory / f"ours-{producers}.db", producers)
        latencies: Samples = {"bare": [], "ours": []}
        per_commit = await interleave_async(
            {
                "bare": partial(drive, bare.write, producers, latencies["bare"]),
                "ours": partial(drive, ours.write, producers, latencies["ours"]),
            },
            rounds=ROUNDS,
        )
        plural = "producer" if producers == 1 else "producers"
        report.compare(
            f"{producers} {plural}: time for a commit",
            per_commit,
            baseline="bare",
            ours="ours",
            bar=2,
        )
        for percent in (50, 99):
            report.compare(
                f"{producers} {plural}: until acknowledged",
                latencies,
                baseline="bare",
                ours="ours",
                percents=(percent,),
            )
        for name, samples in per_commit.items():
            speed = 1 / percentile(samples, 50)
            report.figure(f"{producers} {plural}: {name}, commits", speed, unit="/s")
        expected = (ROUNDS + 1) * (COMMITS[producers] // producers) * producers
        if bare.count() != expected or await ours.count() != expected:
            report.violation(f"{producers} producers: not every acknowledged commit is there")
        bare.queue.put(None)
        await ours.store.aclose()


async def opening(report: Report, directory: Path) -> None:
    """`head` and `claim` of sessions with ever longer logs, in one file."""
    store = await SqliteStore.open(directory / "logs.db")
    for length in LOGS:
        name = f"log-{length}"
        head = await store.create(name, root=name, at=0.0)
        assert head is not None
        for start in range(0, length, 1_000):
            count = min(1_000, length - start)
            events = tuple(TextCheckpoint("turn", TEXT) for _ in range(count))
            await commit_one(store, Commit(name, name, head.epoch, start, 0.0, events, STATE))

    async def timed(operation: Callable[[str], Awaitable[SessionHead | None]], log: int) -> float:
        began = time.perf_counter()
        head = await operation(f"log-{log}")
        took = time.perf_counter() - began
        if head is None or head.seq != log:
            report.violation(f"log-{log}: not the head that was committed")
        return took

    for name, operation in (("head()", store.head), ("claim()", store.claim)):
        samples = await interleave_async(
            {str(length): partial(timed, operation, length) for length in LOGS},
            rounds=300,
            warm_up_rounds=20,
        )
        for length in LOGS[1:]:
            report.compare(
                f"{name}: a log of {length:,} against one of {LOGS[0]}",
                samples,
                baseline=str(LOGS[0]),
                ours=str(length),
                bar=1.5 if length == LOGS[-1] else None,
            )
    await fence(report, store)
    await store.aclose()


async def fence(report: Report, store: SqliteStore) -> None:
    stale = Commit("log-10", "log-10", 1, 10, 0.0, (TextCheckpoint("turn", ""),), b"")
    try:
        await commit_one(store, stale)
    except StaleEpoch:
        return
    report.violation("a stale epoch could write")


async def beside_a_busy_loop(report: Report, directory: Path) -> None:
    """Commits while the loop is never idle, with Python's default switch interval and with that of
    our programs."""
    store = await SqliteStore.open(directory / "busy.db")
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    seqs = count()

    async def keep_busy() -> None:
        while True:
            until = time.perf_counter() + BUSY_ROUND_S
            while time.perf_counter() < until:
                pass
            await anyio.lowlevel.checkpoint()

    async def timed(switch_s: float) -> float:
        sys.setswitchinterval(switch_s)
        began = time.perf_counter()
        for _ in range(BUSY_COMMITS):
            commit = Commit("s", "s", head.epoch, next(seqs), 0.0, (TextCheckpoint("t", ""),), b"")
            await commit_one(store, commit)
        return (time.perf_counter() - began) / BUSY_COMMITS

    before = sys.getswitchinterval()
    async with anyio.create_task_group() as group:
        group.start_soon(keep_busy)
        samples = await interleave_async(
            {"Python": partial(timed, before), "programs": partial(timed, SWITCH_S)},
            rounds=BUSY_ROUNDS,
        )
        group.cancel_scope.cancel()
    sys.setswitchinterval(before)
    for percent in (50, 90, 100):
        report.compare(
            "a commit beside a loop that is never idle: our programs against Python's default",
            samples,
            baseline="Python",
            ours="programs",
            percents=(percent,),
        )
    await store.aclose()


async def memory(report: Report, directory: Path) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    store = await SqliteStore.open(directory / "memory.db")
    opened = process.memory_info().rss
    ours = Ours(store, [])
    for number in range(SESSIONS):
        head = await store.create(f"session-{number}", root=f"session-{number}", at=0.0)
        assert head is not None
        ours.heads.append(head)
        ours.seqs.append(0)
    ours.heads = ours.heads[:256]
    await drive(ours.write, 256, [])
    filled = process.memory_info().rss
    for _ in range(10):
        await drive(ours.write, 256, [])
    after = process.memory_info().rss
    report.figure("memory of an open store", (opened - before) / 2**20, unit="MiB")
    report.figure(f"  more with {SESSIONS:,} sessions made", (filled - opened) / 2**20, unit="MiB")
    report.figure("  more after 50,000 further commits", (after - filled) / 2**20, unit="MiB")
    await store.aclose()


async def in_memory(report: Report) -> None:
    """Measures the store of the simulation."""
    store = MemoryStore()
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    began = time.perf_counter()
    for number in range(20_000):
        await commit_one(
            store, Commit("s", "s", head.epoch, number, 0.0, (TextCheckpoint("turn", TEXT),), STATE)
        )
    report.figure("a commit to the store in memory", (time.perf_counter() - began) / 20_000)


async def run() -> int:
    report = Report("stores")
    with tempfile.TemporaryDirectory(prefix="bargein-bench-", dir=Path.cwd()) as name:
        directory = Path(name)
        await throughput(report, directory)
        await opening(report, directory)
        await beside_a_busy_loop(report, directory)
        await memory(report, directory)
        await in_memory(report)
    report.note(
        f"Baseline: bare SQLite group commit, WAL, synchronous=FULL. {ROUNDS} rounds of "
        f"{', '.join(f'{COMMITS[n]} commits by {n}' for n in PRODUCERS)}; a body of "
        f"{len(TEXT)} bytes, a state of {len(STATE)}."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(anyio.run(run, backend_options={"use_uvloop": True}))
