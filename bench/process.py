"""Processes: nobody survives, and what containment costs against plain asyncio.

    ./dev bench process [--quick]

Everything is run to exit, back to back and paced 30 ms apart, the candidates of a row interleaved.
The baselines are written out below: `asyncio.create_subprocess_exec` for a start, killpg and wait
for a stop, asyncio's StreamReader for a flood.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bargein.cancel import CancelSource, Cause, TaskOwner, Token
from bargein.contracts.model import ToolCall
from bargein.contracts.tool import CallContext, Question
from bargein.process import (
    Containment,
    Ladder,
    Means,
    MeansUnavailable,
    Process,
    containment_when_needed,
    open_containment,
)
from bargein.process.fork_hooks import install_fork_hooks, remove_fork_hooks
from bargein.tools import ToolRegistry, invoke, tool
from bargein.tools.standard import open_tool_environment
from bench.measure import Report, Samples, interleave_async
from tests.process import zoo
from tests.process.keeper import keep

ENVIRONMENT = dict(os.environ)
SLEEP = ["sleep", "600"]
DAEMON = ["sh", "-c", "setsid sh -c 'sleep 600 & echo ready' &"]
FLOOD_BYTES = 1 << 30
# A writer that is quicker than any reader, so that it is the reading that is measured.
FLOOD_PROGRAM = f"""
import os
block, left = memoryview(bytes(1 << 20)), {FLOOD_BYTES}
while left:
    left -= os.write(1, block[:left])
"""
FLOOD = [sys.executable, "-I", "-S", "-E", "-c", FLOOD_PROGRAM]
HELD_BYTES = 500 << 20
PACE_S = 0.03
LADDER_S = Ladder().total_s
SETTLE_EXTRA_S = 0.5
CALLS = 50
GONE_S_MAX = 10.0

SPAWN_BARS = {Means.CGROUP: 1.5, Means.SUPERVISOR: 3.0}
STOP_BARS = {Means.CGROUP: (2.0, 3.0), Means.SUPERVISOR: (8.0, 8.0)}


@dataclass(frozen=True)
class Sizes:
    spawn_rounds: int = 150
    paced_rounds: int = 60
    stop_rounds: int = 150
    zoo_stops: int = 1000
    crowd: int = 200
    flood_rounds: int = 5
    call_rounds: int = 100


QUICK = Sizes(30, 10, 20, 64, 50, 1, 20)


# --- the baselines ------------------------------------------------------------------------------


async def plain_run() -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        "true",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
    )
    await process.communicate()
    return time.perf_counter() - began


async def plain_stop() -> float:
    """The least that a stop can be on a loop: one signal to the group, one wait for a pidfd."""
    process = subprocess.Popen(  # noqa: ASYNC220 - a baseline without asyncio's own watchers
        SLEEP, stdin=subprocess.DEVNULL, start_new_session=True
    )
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(process.pid)
    ended = loop.create_future()
    loop.add_reader(handle, ended.set_result, None)
    await asyncio.sleep(0.002)
    began = time.perf_counter()
    os.killpg(process.pid, signal.SIGKILL)
    await ended
    process.wait()
    elapsed = time.perf_counter() - began
    loop.remove_reader(handle)
    os.close(handle)
    return elapsed


async def plain_flood() -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*FLOOD, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()
    return time.perf_counter() - began


# --- ours ---------------------------------------------------------------------------------------


async def start(containment: Containment, argv: list[str], source: CancelSource) -> Process:
    return await containment.spawn(argv, cwd="/", env=ENVIRONMENT, token=source.token)


def run(containment: Containment, source: CancelSource) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        began = time.perf_counter()
        process = await start(containment, ["true"], source)
        await process.wait()
        await process.settled()
        return time.perf_counter() - began

    return sample


def stop(
    containment: Containment, argv: list[str], report: Report
) -> Callable[[], Awaitable[float]]:
    """Measures from the cancel of the token until everything is reported as ended."""

    async def sample() -> float:
        ready = asyncio.Event()
        with CancelSource("bench") as source:
            process = await containment.spawn(
                argv,
                cwd="/",
                env=ENVIRONMENT,
                token=source.token,
                on_output=lambda _piece: ready.set(),
            )
            if argv is DAEMON:
                await ready.wait()
                await process.wait()
            # As in the baseline, so that the program is really there.
            await asyncio.sleep(0.002)
            began = time.perf_counter()
            source.cancel(Cause.USER_STOP)
            stopped = await process.stop()
            elapsed = time.perf_counter() - began
        if not stopped.confirmed:
            report.violation(f"a stop was not confirmed: {stopped}")
        return elapsed

    return sample


def flood(containment: Containment, source: CancelSource) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        began = time.perf_counter()
        process = await start(containment, FLOOD, source)
        await process.wait()
        elapsed = time.perf_counter() - began
        assert process.output.total_bytes == FLOOD_BYTES
        return elapsed

    return sample


# --- the sections -------------------------------------------------------------------------------


async def measure_spawn(
    report: Report, held: dict[Means, Containment], sizes: Sizes, note: str
) -> None:
    with CancelSource("bench") as source:
        candidates: dict[str, Callable[[], Awaitable[float]]] = {"asyncio": plain_run}
        candidates |= {means: run(containment, source) for means, containment in held.items()}
        for how, pause_s, rounds in (
            ("back to back", 0.0, sizes.spawn_rounds),
            ("paced 30 ms", PACE_S, sizes.paced_rounds),
        ):
            samples = await interleave_async(candidates, rounds=rounds, pause_s=pause_s)
            for means in held:
                bar = SPAWN_BARS.get(means)
                measure = f"{means}: start, run to exit, {how}{note}"
                report.compare(measure, samples, baseline="asyncio", ours=means, bar=bar)


async def measure_stop(report: Report, held: dict[Means, Containment], sizes: Sizes) -> None:
    certain = {means: each for means, each in held.items() if means is not Means.GROUP}
    candidates: dict[str, Callable[[], Awaitable[float]]] = {"killpg": plain_stop}
    for means, containment in certain.items():
        candidates[f"{means} plain"] = stop(containment, SLEEP, report)
        candidates[f"{means} daemon"] = stop(containment, DAEMON, report)
    for how, pause_s, rounds in (
        ("back to back", 0.0, sizes.stop_rounds),
        ("paced 30 ms", PACE_S, sizes.paced_rounds),
    ):
        samples = await interleave_async(candidates, rounds=rounds, pause_s=pause_s)
        for means in certain:
            for what, bar in zip(("plain", "daemon"), STOP_BARS[means], strict=True):
                label = "a sleeper" if what == "plain" else "a double-forked setsid sleeper"
                report.compare(
                    f"{means}: {label} dead, {how}",
                    samples,
                    baseline="killpg",
                    ours=f"{means} {what}",
                    bar=bar,
                )


async def count_survivors(report: Report, containment: Containment, sizes: Sizes) -> None:
    """Stops every kind in turn by its token, then looks for survivors in all of /proc."""
    kinds = list(zoo.ZOO.values())
    survivors = unconfirmed = 0
    slowest_ms = 0.0
    for number in range(sizes.zoo_stops):
        kind = kinds[number % len(kinds)]
        with CancelSource("bench") as source:
            kept = await keep(containment, kind, source.token)
            source.cancel(Cause.USER_STOP)
            stopped = await kept.process.stop()
        found = zoo.alive(kept.mark)
        slowest_ms = max(slowest_ms, stopped.elapsed_ms)
        unconfirmed += not stopped.confirmed
        if containment.means is Means.GROUP and kind.escapes_group:
            zoo.put_down(kept.mark)
        elif found:
            survivors += len(found)
            report.violation(f"{containment.means}, {kind.name}: {found} survived {stopped}")
            zoo.put_down(kept.mark)
    what = f"{containment.means}: survivors of {sizes.zoo_stops} stops of the zoo"
    if containment.means is Means.GROUP:
        what += " (without the kinds that leave their group)"
    report.figure(what, survivors, unit="processes", bar=0)
    report.figure(f"{containment.means}: slowest of these stops", slowest_ms / 1000)
    if containment.means is not Means.GROUP:
        report.figure(f"{containment.means}: of these not confirmed", unconfirmed, unit="", bar=0)


# --- a tool that starts no process ----------------------------------------------------------------


@tool
def starts_nothing(text: str) -> str:
    return text


@tool
async def starts_nothing_in_the_loop(text: str) -> str:
    return text


async def call_often(registry: ToolRegistry, name: str) -> float:
    """Returns the seconds of one call."""
    planned = ToolCall("c1", name, '{"text":"x"}')
    turn, session = CancelSource("turn"), CancelSource("session")
    context = CallContext(
        call_id="c1",
        session_id="s1",
        token=turn.token,
        session_token=session.token,
        emit=lambda text: None,
        ask=_nobody_asks,
        background=None,
    )
    began = time.perf_counter()
    for _ in range(CALLS):
        await invoke(registry, planned, context)
    return (time.perf_counter() - began) / CALLS


async def _nobody_asks(question: Question, token: Token) -> str:
    raise AssertionError(question)


async def measure_hooks(report: Report, sizes: Sizes, directory: Path) -> None:
    """The same calls with the hooks in Python's ways to fork, and with the originals put back."""
    tools = (starts_nothing, starts_nothing_in_the_loop)
    async with containment_when_needed() as containment, TaskOwner():
        tool_environment = open_tool_environment(containment, directory, ENVIRONMENT)
        hooked = ToolRegistry(tools, tool_environment=tool_environment)
        plain = ToolRegistry(tools)
        loop = asyncio.get_running_loop()
        for each in tools:

            async def without(name: str = each.name) -> float:
                remove_fork_hooks()
                try:
                    return await call_often(plain, name)
                finally:
                    install_fork_hooks(loop)

            async def with_hooks(name: str = each.name) -> float:
                return await call_often(hooked, name)

            samples = await interleave_async(
                {"without": without, "with": with_hooks}, rounds=sizes.call_rounds
            )
            where = "in the loop" if each.is_async else "in a thread"
            measure = f"a tool's call that starts no process, {where}, against no hooks"
            report.compare(measure, samples, baseline="without", ours="with")
        if containment.own_processes or containment.means is not Means.GROUP:
            report.violation("a call that started no process opened something")


async def measure_crowd(report: Report, containment: Containment, sizes: Sizes) -> None:
    """Settled in bounded time: every stop has been told of when the ladder's time is over.

    What is not confirmed by then is a figure; that something lives on of which it was said to be
    gone, or that lives on at all, is a violation.
    """
    means = containment.means
    mark = zoo.new_mark()
    with CancelSource("all") as everyone:
        sources = [everyone.token.child(f"command {n}") for n in range(sizes.crowd)]
        began = time.perf_counter()
        crowd = await asyncio.gather(
            *(
                containment.spawn(SLEEP, cwd="/", env=zoo.environment(mark), token=each.token)
                for each in sources
            )
        )
        report.figure(f"{means}: {sizes.crowd} commands started", time.perf_counter() - began)
        began = time.perf_counter()
        sources[0].cancel(Cause.USER_STOP)
        await crowd[0].stop()
        report.figure(f"{means}: one of {sizes.crowd} stopped", time.perf_counter() - began)
        hit = [each for each in crowd[1:] if not each.alive or not _runs(each.pid)]
        if hit or crowd[0].alive:
            report.violation(f"{means}: stopping one of {sizes.crowd} reached {len(hit)} others")
        began = time.perf_counter()
        everyone.cancel(Cause.SHUTDOWN)
        stopped = await asyncio.gather(*(each.stop() for each in crowd))
        elapsed_s = time.perf_counter() - began
        alive = set(zoo.alive(mark))
        what = f"{means}: the other {sizes.crowd - 1} stopped at once, settled"
        report.figure(what, elapsed_s, bar=LADDER_S)
        if elapsed_s > LADDER_S + SETTLE_EXTRA_S:
            report.violation(f"{what} only after {elapsed_s:.2f} s")
        if means is not Means.GROUP:
            unconfirmed = sum(not each.confirmed for each in stopped)
            report.figure(f"{means}: of these not confirmed", unconfirmed, unit="", bar=0)
        for process, told in zip(crowd, stopped, strict=True):
            if told.confirmed and process.pid in alive:
                report.violation(f"{means}: {process} was said to be gone, and is not: {told}")
        await see_gone(report, means, mark)


async def see_gone(report: Report, means: Means, mark: str) -> None:
    deadline = time.monotonic() + GONE_S_MAX
    while left := zoo.alive(mark):
        if time.monotonic() > deadline:
            report.violation(f"{means}: {left} survived a stop of all")
            zoo.put_down(mark)
            return
        await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False


async def measure_flood(report: Report, containment: Containment, sizes: Sizes) -> None:
    with CancelSource("bench") as source:
        ours = flood(containment, source)
        samples: Samples = await interleave_async(
            {"StreamReader": plain_flood, "ours": ours}, rounds=sizes.flood_rounds
        )
        report.compare("capturing 1 GiB", samples, baseline="StreamReader", ours="ours", bar=0.5)
        used = {}
        for name, sample in (("StreamReader", plain_flood), ("ours", ours)):
            began = time.process_time()
            await sample()
            used[name] = [time.process_time() - began]
        report.compare(
            "capturing 1 GiB, processor time", used, baseline="StreamReader", ours="ours", bar=0.5
        )
        before = resident_bytes()
        await ours()
        grown = max(0, resident_bytes() - before)
        report.figure("memory grown by capturing 1 GiB", grown / (1 << 20), unit="MiB", bar=1.0)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def every_means(report: Report) -> AsyncIterator[dict[Means, Containment]]:
    async with AsyncExitStack() as stack:
        held = {}
        for means in Means:
            try:
                containment = await open_containment(means.value)
            except MeansUnavailable as unavailable:
                report.note(f"Not measured here: {unavailable}")
                continue
            held[means] = await stack.enter_async_context(containment)
        yield held


async def measure(report: Report, sizes: Sizes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        await measure_hooks(report, sizes, Path(directory))
    async with every_means(report) as held:
        await measure_spawn(report, held, sizes, "")
        ballast = bytearray(os.urandom(1 << 20)) * (HELD_BYTES >> 20)
        await measure_spawn(report, held, sizes, ", 500 MB held")
        del ballast
        await measure_stop(report, held, sizes)
        for containment in held.values():
            await measure_crowd(report, containment, sizes)
        await measure_flood(report, next(iter(held.values())), sizes)
        for containment in held.values():
            await count_survivors(report, containment, sizes)


def main() -> int:
    sizes = QUICK if "--quick" in sys.argv[1:] else Sizes()
    report = Report("process")
    before = os.getloadavg()
    asyncio.run(measure(report, sizes))
    loads = " to ".join(f"{load:.1f}" for load in (before[0], os.getloadavg()[0]))
    report.note(
        f"Load {loads}. A stop that is handed from process to process waits at each for a "
        "processor: on a busy machine the ratios of stops rise, and say little."
    )
    report.note(
        "Baselines: asyncio.create_subprocess_exec with a pipe, communicate(); killpg(SIGKILL) and "
        "wait of a child through its pidfd on the loop; StreamReader.read(64 KiB) to the end. A "
        "stop of ours counts from the cancel of the token to the confirmation that nobody is "
        "left, ladder included."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
