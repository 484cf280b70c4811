"""The session engine: a stop until it is settled and stored, ten thousand turns, long transcripts.

Each figure stands beside the least that does the same without an engine, written out here or in
`bench._engine_parts` and measured in turn with ours: a task that is cancelled and one commit to
SQLite for a stop; group commit with as many producers for accepted messages. All on uvloop, with
the store on the disk (WAL, synchronous=FULL).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio

from bargein.contracts.message import Mode
from bargein.session.engine import SessionEngine
from bargein.session.session import Session
from bargein.session.turn import AgentFunction, Turn
from bargein.stores.sqlite import SqliteStore
from bargein.testing.simulate import simulate
from bench._engine_parts import (
    NO_LIMITS,
    PACE_S,
    BareStop,
    Heard,
    OtherThread,
    is_settled,
    stop_from,
    talking_agent,
)
from bench.measure import Report, Samples, interleave_async, percentile
from bench.stores import BareGroupCommit

STOPS = 300
CROWDS = (10, 10_000)
CROWD_ROUNDS = 12
CROWD_STOPS = 25
TRANSCRIPTS = (10, 10_000)
TRANSCRIPT_ROUNDS = 150
CROWDED = ((1, 1), (16, 16), (256, 16), (256, 256))
"""How many producers there are, and in how many sessions."""
MESSAGES = {1: 200, 16: 1_600, 256: 5_120}
MESSAGE_ROUNDS = 21
TEXT = "x" * 300
SEEDS = 400


@asynccontextmanager
async def opened(path: Path, agent: AgentFunction) -> AsyncIterator[SessionEngine]:
    store = await SqliteStore.open(path)
    async with SessionEngine(agent, store, limits=NO_LIMITS) as engine:
        yield engine
    await store.aclose()


# A stop, from another thread, during a stream


class OurStop:
    def __init__(self, report: Report, heard: Heard, thread: OtherThread) -> None:
        self._report = report
        self._heard = heard
        self._thread = thread
        self.started: list[float] = []

    async def sample(self, session: Session) -> float:
        self._heard.begin(0)
        began_at = time.perf_counter()
        await session.send("Talk to me")
        await self._heard.wait()
        self.started.append(self._heard.at - began_at)
        self._heard.begin(3)
        await self._heard.wait()
        elapsed_s, receipt = await stop_from(self._thread, session)
        if not is_settled(receipt):
            self._report.violation(f"{session.id}: the turn did not settle: {receipt}")
        return elapsed_s


async def stopping(report: Report, directory: Path) -> None:
    thread, heard = OtherThread(), Heard()
    bare = BareStop(directory / "bare-stop.db", thread)
    async with opened(directory / "stop.db", talking_agent(PACE_S, heard.word)) as engine:
        ours = OurStop(report, heard, thread)
        session = await engine.session("one")
        samples = await interleave_async(
            {"bare": bare.sample, "ours": partial(ours.sample, session)},
            rounds=STOPS,
            warm_up_rounds=20,
        )
    report.compare(
        "a stop from another thread, until settled and stored",
        samples,
        baseline="bare",
        ours="ours",
        bar=2,
    )
    report.compare("  the same", samples, baseline="bare", ours="ours", percents=(99,))
    bare.store.queue.put(None)
    thread.end()


# Ten thousand sessions


class CrowdProcess:
    """Sessions with a turn in flight in a process of their own."""

    def __init__(self, sessions: int, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench._engine_crowd", str(sessions), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def ask(self, order: str) -> dict[str, object]:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, object]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def end(self) -> None:
        self.process.communicate("")


def crowds(report: Report, directory: Path) -> None:
    few, many = CROWDS
    asked = {sessions: CrowdProcess(sessions, directory) for sessions in CROWDS}
    samples: Samples = {str(sessions): [] for sessions in CROWDS}
    for _ in range(CROWD_ROUNDS):
        for sessions, process in asked.items():
            answer = process.ask(f"stop {CROWD_STOPS}")
            seconds = answer["seconds"]
            assert isinstance(seconds, list)
            samples[str(sessions)] += seconds
            if answer["wrong"]:
                report.violation(f"{sessions} sessions: a stop did not settle its turn")
    for percent, bar in ((50, None), (99, 2)):
        report.compare(
            f"a stop of one of {many:,} turns in flight, against one of {few}",
            samples,
            baseline=str(few),
            ours=str(many),
            bar=bar,
            percents=(percent,),
        )
    each_bytes = asked[many].ask("memory")["bytes"]
    assert isinstance(each_bytes, float)
    report.figure("memory of a session with a turn in flight", each_bytes / 1024, unit="KiB")
    all_of = asked[many].ask("all")
    if all_of["settled"] != many:
        report.violation(f"of {many} turns that were stopped at once: {all_of}")
    elapsed_s, in_time = all_of["elapsed_s"], all_of["in_time"]
    assert isinstance(elapsed_s, float)
    assert isinstance(in_time, int)
    report.figure(f"a stop of all {many:,} at once, until every receipt is there", elapsed_s)
    report.figure("  receipts that came with the turn stored", in_time, unit="")
    for process in asked.values():
        process.end()


# Long transcripts


async def transcripts(report: Report, directory: Path) -> None:
    thread, heard = OtherThread(), Heard()
    talk = talking_agent(PACE_S, heard.word)

    async def agent(turn: Turn) -> None:
        order = turn.messages[0].text
        if not order.startswith("Remember"):
            await talk(turn)
            return
        for number in range(int(order.split()[1]) // 2):
            turn.tell(f"What is {number}? {TEXT}")
            turn.finish(f"A number: {number}. {TEXT}")

    async with opened(directory / "transcripts.db", agent) as engine:
        ours = {length: OurStop(report, heard, thread) for length in TRANSCRIPTS}
        candidates = {}
        for length in TRANSCRIPTS:
            session = await engine.session(f"of {length}")
            await (await session.send(f"Remember {length}")).result()
            if len(await session.transcript()) < length:
                report.violation(f"the transcript of {length} messages is shorter")
            candidates[str(length)] = partial(ours[length].sample, session)
        stops = await interleave_async(candidates, rounds=TRANSCRIPT_ROUNDS, warm_up_rounds=10)
    short, long = map(str, TRANSCRIPTS)
    starts = {str(length): each.started[10:] for length, each in ours.items()}
    for measure, samples in (("from a message to the model", starts), ("a stop", stops)):
        report.compare(
            f"{measure}, transcript of {TRANSCRIPTS[1]:,} messages against {TRANSCRIPTS[0]}",
            samples,
            baseline=short,
            ours=long,
            bar=1.2,
        )
    thread.end()


# Messages


class Producers:
    """Each sends to a session whose turn is in flight, and waits until the message is stored."""

    def __init__(self, engine: SessionEngine, producers: int, sessions: int, asked: Asked) -> None:
        self._engine = engine
        self._producers = producers
        self._sessions = sessions
        self._asked = asked
        self._round = 0

    async def sample(self) -> float:
        self._round += 1
        sessions = [
            await self._engine.session(f"{self._round} {number}")
            for number in range(self._sessions)
        ]
        each = MESSAGES[self._producers] // self._producers

        async def begin(session: Session) -> None:
            await session.send("Talk to me")

        async def produce(session: Session) -> None:
            for _ in range(each):
                await session.send(TEXT, mode=Mode.QUEUE)

        self._asked.begin(self._sessions)
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(begin, session)
        await self._asked.wait()
        began_at = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(self._producers):
                group.start_soon(produce, sessions[number % self._sessions])
        elapsed_s = time.perf_counter() - began_at
        for session in sessions:
            if len(await session.inbox()) != each * self._producers // self._sessions:
                raise AssertionError("not every accepted message waits")
            await session.interrupt(by="bench")
        return elapsed_s / (each * self._producers)


class Asked:
    """Waits until this many models have been asked."""

    def __init__(self) -> None:
        self._left = 0
        self._all = anyio.Event()

    def begin(self, count: int) -> None:
        self._left, self._all = count, anyio.Event()

    def word(self, number: int) -> None:
        if number == 0:
            self._left -= 1
            if not self._left:
                self._all.set()

    async def wait(self) -> None:
        await self._all.wait()


async def bare_producers(bare: BareGroupCommit, producers: int) -> float:
    each = MESSAGES[producers] // producers

    async def produce(number: int) -> None:
        for message in range(each):
            await bare.write(number, message)

    began_at = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(producers):
            group.start_soon(produce, number)
    return (time.perf_counter() - began_at) / (each * producers)


async def messages(report: Report, directory: Path) -> None:
    asked = Asked()
    silent = talking_agent(3600.0, asked.word)
    for producers, sessions in CROWDED:
        name = f"{producers}-{sessions}.db"
        bare = BareGroupCommit(directory / f"bare-{name}")
        async with opened(directory / f"messages-{name}", silent) as engine:
            ours = Producers(engine, producers, sessions, asked)
            samples = await interleave_async(
                {"bare": partial(bare_producers, bare, producers), "ours": ours.sample},
                rounds=MESSAGE_ROUNDS,
            )
        bare.queue.put(None)
        by = "1 producer" if producers == 1 else f"{producers} producers"
        where = "a session" if sessions == 1 else f"{sessions} sessions"
        measure = f"{by} in {where}: time for an accepted message"
        report.compare(measure, samples, baseline="bare", ours="ours", bar=2)
        for name, each in samples.items():
            report.figure(f"  {name}", 1 / percentile(each, 50), unit="/s")


# The simulation


def simulation(report: Report) -> None:
    began_at = time.perf_counter()
    for seed in range(SEEDS):
        outcome = simulate(seed)
        if outcome.broken is not None:
            report.violation(f"./dev simulate --seed {seed}: {outcome.broken}")
    report.figure("simulated worlds", SEEDS / (time.perf_counter() - began_at), unit="/s")


async def run(report: Report, directory: Path) -> None:
    await stopping(report, directory)
    await transcripts(report, directory)
    await messages(report, directory)


def main() -> int:
    report = Report("engine")
    with tempfile.TemporaryDirectory(prefix="bargein-bench-", dir=Path.cwd()) as name:
        anyio.run(run, report, Path(name), backend_options={"use_uvloop": True})
        crowds(report, Path(name))
    simulation(report)
    report.note(
        f"Baseline of a stop: a task that reads the same stream is cancelled from the thread, then "
        f"one commit, WAL and synchronous=FULL. {STOPS} stops a side."
    )
    report.note(
        f"Baseline of messages: bare SQLite group commit by as many producers, {MESSAGE_ROUNDS} "
        f"rounds of {', '.join(f'{count} by {n}' for n, count in MESSAGES.items())}."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
