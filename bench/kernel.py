"""The kernel against what it replaces: a plain attribute, a thread-id table, a bare task cancel.

Baselines, written out here: `plain.cancelled` is an attribute of an ordinary object. The thread-id
design is that of agents which keep a set of interrupted thread ids behind a lock. The bare cancel
is `loop.call_soon_threadsafe(task.cancel)` from another thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable

import anyio

from bargein.cancel import CancelSource, Cause, as_current, is_interrupted
from bench.measure import Report, Sample, Samples, interleave, statement

THREADS = 8
CANCELS = 3_000
BUSY_S = 0.004


class Plain:
    """An ordinary object with a flag."""

    def __init__(self) -> None:
        self.cancelled = False


class ThreadIds:
    """The design that `is_interrupted()` replaces: a set of thread ids, under a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupted: set[int] = set()

    def is_interrupted(self) -> bool:
        with self._lock:
            return threading.current_thread().ident in self._interrupted


def looks(report: Report) -> None:
    """What one look at a flag costs, alone and with threads that contend."""
    source = CancelSource("job")
    ids = ThreadIds()
    with as_current(source.token):
        names = {"plain": Plain(), "token": source.token, "ids": ids, "ours": is_interrupted}
        samples = interleave(
            {
                "plain": statement("plain.cancelled", names),
                "token": statement("token.cancelled", names),
                "ids": statement("ids.is_interrupted()", names, number=20_000),
                "is_interrupted": statement("ours()", names, number=20_000),
            },
            rounds=60,
        )
    report.compare(
        "token.cancelled against a plain attribute",
        samples,
        baseline="plain",
        ours="token",
        bar=1.2,
    )
    report.compare(
        "is_interrupted() against thread ids",
        samples,
        baseline="ids",
        ours="is_interrupted",
        bar=1 / 3,
    )
    crowded = interleave(
        {
            "ids": crowd(lambda: ids.is_interrupted),
            "is_interrupted": crowd(lambda: is_interrupted, source),
        },
        rounds=12,
    )
    report.compare(
        f"the same, {THREADS} threads contending",
        crowded,
        baseline="ids",
        ours="is_interrupted",
        bar=1 / 3,
    )


def crowd(find: Callable[[], Callable[[], bool]], source: CancelSource | None = None) -> Sample:
    """Several threads look at once; a sample is the seconds one look takes them on the whole."""
    number = 20_000

    def look() -> None:
        with as_current(source.token if source is not None else None):
            ask = find()
            for _ in range(number):
                ask()

    def sample() -> float:
        threads = [threading.Thread(target=look) for _ in range(THREADS)]
        began_at = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - began_at) / (number * THREADS)

    return sample


class Unwinding:
    """A coroutine that sleeps; a thread that cancels it, and may then go on computing; the time
    between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, busy_s: float = 0.0) -> None:
        self._loop = loop
        self._busy_s = busy_s
        self._ways = {"bare": self._bare, "anyio": self._anyio, "token": self._token}
        self.samples: Samples = {name: [] for name in self._ways}

    async def run(self, rounds: int) -> None:
        for number in range(rounds + 20):
            for name in sorted(self._ways, reverse=bool(number % 2)):
                seconds = await self._ways[name]()
                if number >= 20:
                    self.samples[name].append(seconds)

    async def _bare(self) -> float:
        async def work() -> float:
            try:
                sleeping.set_result(None)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return time.perf_counter()
            return 0.0

        sleeping = self._loop.create_future()
        task = self._loop.create_task(work())
        await sleeping
        return await self._cancelled(task, lambda: self._loop.call_soon_threadsafe(task.cancel))

    async def _anyio(self) -> float:
        """What the token's scope is made of, and so what it cannot be quicker than."""
        scope = anyio.CancelScope()

        async def work() -> float:
            with scope:
                sleeping.set_result(None)
                await asyncio.sleep(60)
            return time.perf_counter()

        sleeping = self._loop.create_future()
        task = self._loop.create_task(work())
        await sleeping
        return await self._cancelled(task, lambda: self._loop.call_soon_threadsafe(scope.cancel))

    async def _token(self) -> float:
        source = CancelSource("work")

        async def work() -> float:
            with source.token.scope():
                sleeping.set_result(None)
                await asyncio.sleep(60)
            return time.perf_counter()

        sleeping = self._loop.create_future()
        task = self._loop.create_task(work())
        await sleeping
        return await self._cancelled(task, lambda: source.cancel(Cause.USER_STOP))

    async def _cancelled(self, task: asyncio.Task[float], cancel: Callable[[], object]) -> float:
        """Cancel from a thread, once the loop has gone to sleep."""
        began_at = 0.0

        def run() -> None:
            nonlocal began_at
            time.sleep(0.002)
            began_at = time.perf_counter()
            cancel()
            while time.perf_counter() < began_at + self._busy_s:
                pass

        thread = threading.Thread(target=run)
        thread.start()
        ended_at = await task
        thread.join()
        return ended_at - began_at


def cancels(report: Report) -> None:
    import uvloop

    for name, factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
        with asyncio.Runner(loop_factory=factory) as runner:
            unwinding = Unwinding(runner.get_loop())
            runner.run(unwinding.run(CANCELS))
            busy = Unwinding(runner.get_loop(), BUSY_S)
            runner.run(busy.run(CANCELS // 20))
        measure = f"cancel from a thread until unwound, {name}"
        report.compare(
            measure, unwinding.samples, baseline="bare", ours="token", bar=1.5, percents=(50, 99)
        )
        report.compare(
            "  with a bare anyio scope", unwinding.samples, baseline="bare", ours="anyio"
        )
        report.compare(
            "  the canceller goes on computing", busy.samples, baseline="bare", ours="token"
        )


def growth(report: Report) -> None:
    """Cancelling a tree is linear in its size; a child costs the same after a million others."""

    def cancel_tree(size: int) -> Sample:
        def sample() -> float:
            root = CancelSource("root")
            sources = [root]
            for number in range(1, size):
                sources.append(sources[(number - 1) // 3].token.child("node"))
            began_at = time.perf_counter()
            root.cancel(Cause.USER_STOP)
            seconds = time.perf_counter() - began_at
            if not all(each.token.cancelled for each in sources):
                report.violation(f"a tree of {size} was not cancelled as a whole")
            return seconds / size

        return sample

    samples = interleave({str(n): cancel_tree(n) for n in (1_000, 10_000, 40_000)}, rounds=12)
    report.compare(
        "a token of a tree of 10,000 cancelled, against 1,000",
        samples,
        baseline="1000",
        ours="10000",
        bar=1.5,
    )
    report.compare(
        "a token of a tree of 40,000 cancelled, against 1,000",
        samples,
        baseline="1000",
        ours="40000",
        bar=1.5,
    )
    young, old = CancelSource("young"), CancelSource("old")
    for _ in range(1_000_000):
        old.token.child("gone").seal()
    children = interleave(
        {
            "young": statement("t.child('c').seal()", {"t": young.token}, number=2_000),
            "old": statement("t.child('c').seal()", {"t": old.token}, number=2_000),
        },
        rounds=40,
    )
    report.compare(
        "make and release a child after a million others",
        children,
        baseline="young",
        ours="old",
        bar=1.2,
    )


def main() -> int:
    report = Report("kernel")
    looks(report)
    cancels(report)
    growth(report)
    report.note(
        "Baselines are written out in bench/kernel.py; each ratio is of one interleaved run."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
