"""Trees of sub-agents: one stop of the root until every provider connection is seen closed.

A tree of 3 x 3 x 3, whose 27 leaves all stream from a real HTTP server in a process of its own,
against a single session that streams from the same one, in turn. Times are from the call of
`interrupt` until the server has seen the last connection close, by one clock. Then one leaf is
stopped, and the words of the 26 others are counted. Then a sub-agent sits in a tool that never
looks. Sessions are kept in SQLite (WAL, synchronous=FULL).
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import anyio
import msgspec

from bargein.contracts.event import AssistantSaid, TurnOutcome
from bargein.contracts.model import Text, ToolCall
from bargein.contracts.receipt import Receipt, StepKind
from bargein.models.dialects.chat import ChatDialect
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.retrying import RetryingModel
from bargein.session.agent import LoopAgent, LoopSettings
from bargein.session.engine import SessionEngine
from bargein.session.limits import Limits
from bargein.session.session import Session
from bargein.session.turn import Turn
from bargein.stores.sqlite import SqliteStore
from bargein.tools import ToolRegistry, tool
from bargein.tools.delegate import delegate_tool
from bench._children_server import TEXT, Seen
from bench.measure import Report, interleave_async

WIDTH = 3
DEPTH = 3
LEAVES = WIDTH**DEPTH
ROUNDS = 15
ALONE_ROUNDS = 3
STUBBORN_ROUNDS = 3
STREAMING_S = 0.1


class Provider:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def seen(self) -> list[Seen]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._line(), type=list[Seen])


@contextmanager
def provider() -> Iterator[Provider]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench._children_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Provider(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


begun, release = threading.Semaphore(0), threading.Event()


@tool
def stubborn() -> str:
    """Never checks its token."""
    begun.release()
    release.wait(60)
    return "late"


class Family:
    """An engine whose agent delegates by what it is asked: `tree 3` to three times `tree 2`, and
    so on; `leaf` streams."""

    def __init__(self, engine: SessionEngine, provider: Provider, report: Report) -> None:
        self._engine = engine
        self._provider = provider
        self._report = report
        self._numbers = count(1)

    async def begin(self, task: str, leaves: int) -> tuple[Session, int]:
        """A new session at work, as soon as all its leaves stream; the number of its first
        connection."""
        first = len(self._provider.seen())
        session = await self._engine.session(f"s{next(self._numbers)}")
        await session.send(task)
        await self._until(lambda: len(self._requested(first)) >= leaves)
        await anyio.sleep(STREAMING_S)
        return session, first

    def _requested(self, first: int) -> list[Seen]:
        return [each for each in self._provider.seen()[first:] if each.requested_ns]

    async def _until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        with anyio.move_on_after(seconds):
            while not condition():  # noqa: ASYNC110 - the server is another process
                await anyio.sleep(0.01)

    async def stop(self, task: str, leaves: int) -> float:
        """Measures from the interrupt of the root until the server saw the last connection
        close."""
        session, first = await self.begin(task, leaves)
        at_ns = time.monotonic_ns()
        receipt = await session.interrupt()
        await self._until(lambda: all(each.gone_ns for each in self._requested(first)), 2)
        seen = self._requested(first)
        left = [each for each in seen if not each.gone_ns or each.gone_ns < at_ns]
        if left or len(seen) != leaves:
            self._report.violation(f"{task}: {len(left)} of {len(seen)} connections not closed")
        self._check(task, leaves, receipt)
        return (max(each.gone_ns for each in seen) - at_ns) / 1e9

    def _check(self, task: str, leaves: int, receipt: Receipt) -> None:
        children = [step for step in receipt.steps if step.kind is StepKind.CHILD]
        expected = 0 if leaves == 1 else sum(WIDTH**level for level in range(1, DEPTH + 1))
        if len(children) != expected or receipt.abandoned:
            self._report.violation(f"{task}: the receipt tells of {len(children)} sub-agents")

    async def stop_one(self, chance: random.Random) -> float:
        """Stops one leaf; all others must say every word."""
        session, _ = await self.begin(f"tree {DEPTH}", LEAVES)
        path = [chance.randint(1, WIDTH) for _ in range(DEPTH)]
        target = session.id + "".join(f"/c.{number}" for number in path)
        began_at = time.perf_counter()
        receipt = await session.interrupt(scope="child", target=target)
        elapsed_s = time.perf_counter() - began_at
        if [step.name for step in receipt.steps] != [target]:
            self._report.violation(f"a stop of {target} tells {receipt}")
        with anyio.fail_after(30):
            await session.settled()
        short = [leaf for leaf in leaves_of(session.id) if leaf != target]
        short = [leaf for leaf in short if await self._said(leaf) != TEXT]
        if short:
            self._report.violation(f"a stop of {target} was felt by {short}")
        return elapsed_s

    async def _said(self, leaf: str) -> str:
        log = await self._engine.store.events(leaf)
        said = [each.event for each in log if isinstance(each.event, AssistantSaid)]
        parts = [part for event in said for part in event.message.content]
        return "".join(part.text for part in parts if isinstance(part, Text))

    async def stop_stubborn(self) -> float:
        session = await self._engine.session(f"s{next(self._numbers)}")
        sent = await session.send("over stubborn")
        await anyio.to_thread.run_sync(begun.acquire)
        began_at = time.perf_counter()
        receipt = await session.interrupt()
        elapsed_s = time.perf_counter() - began_at
        result = await sent.result()
        if result.outcome is not TurnOutcome.STOPPED or not receipt.abandoned:
            self._report.violation(f"a tool that never looks, and the receipt says {receipt}")
        return elapsed_s


def leaves_of(session: str, depth: int = DEPTH) -> list[str]:
    if not depth:
        return [session]
    below = [f"{session}/c.{number}" for number in range(1, WIDTH + 1)]
    return [leaf for each in below for leaf in leaves_of(each, depth - 1)]


@asynccontextmanager
async def a_family(path: Path, provider: Provider, report: Report) -> AsyncIterator[Family]:
    model = RetryingModel([HttpEndpoint("m", "m", f"{provider.url}/v1", ChatDialect())])
    leaf = LoopAgent(model, ToolRegistry(), LoopSettings())
    toolbox = ToolRegistry([delegate_tool(), stubborn])

    async def agent(turn: Turn) -> str | None:
        word, _, rest = turn.messages[0].text.partition(" ")
        if word == "leaf" or (word, rest) == ("tree", "0"):
            await leaf(turn)
            return None
        if word == "stubborn":
            await turn.run_calls(toolbox, [ToolCall("c", "stubborn", "{}")])
            return "late"
        below = [f"tree {int(rest) - 1}"] * WIDTH if word == "tree" else [rest]
        arguments = json.dumps({"tasks": [{"task": each} for each in below]})
        await turn.run_calls(toolbox, [ToolCall("c", "delegate", arguments)])
        return "done"

    store = await SqliteStore.open(path)
    async with SessionEngine(agent, store, limits=Limits(idle_s=3600.0)) as engine:
        yield Family(engine, provider, report)
    await model.aclose()
    await store.aclose()


async def measure(report: Report, directory: Path) -> None:
    with provider() as server:
        async with a_family(directory / "sessions.db", server, report) as family:
            samples = await interleave_async(
                {
                    "one session": partial(family.stop, "leaf", 1),
                    "a tree": partial(family.stop, f"tree {DEPTH}", LEAVES),
                },
                rounds=ROUNDS,
                warm_up_rounds=2,
            )
            report.compare(
                "a stop of the root, until all 27 connections are seen closed",
                samples,
                baseline="one session",
                ours="a tree",
                bar=3,
                percents=(50, 95),
            )
            chance = random.Random(6)
            alone = [await family.stop_one(chance) for _ in range(ALONE_ROUNDS)]
            report.figure("a stop of one of 27, until settled; the others miss nothing", max(alone))
            limits = Limits()
            bound_s = limits.children_s(0) + limits.child_margin_s
            waited = [await family.stop_stubborn() for _ in range(STUBBORN_ROUNDS)]
            report.figure(
                "a sub-agent in a tool that never looks, until settled", max(waited), bar=bound_s
            )


def main() -> int:
    report = Report("children")
    report.note(
        f"{ROUNDS} interleaved stops of each; {WIDTH} x {WIDTH} x {WIDTH} sub-agents; the server "
        "is a process of its own."
    )
    try:
        with tempfile.TemporaryDirectory() as directory:
            anyio.run(measure, report, Path(directory), backend_options={"use_uvloop": True})
    finally:
        release.set()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
