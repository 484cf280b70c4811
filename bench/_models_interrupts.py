"""How fast an interrupt reaches the server, in every phase of a request, and what it leaves."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable
from io import BytesIO

import aiohttp
import msgspec

from bargein.cancel import Cancelled, CancelSource, Cause, Token
from bargein.contracts.model import ModelRequest, Text, UserMessage
from bargein.models.dialects.chat import ChatDialect
from bargein.models.errors import ModelError
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.testing.fault_server import full_listener
from bench.measure import Report, Samples, percentile

REQUEST = ModelRequest(messages=(UserMessage((Text("hello"),)),))
LARGE = ModelRequest(messages=(UserMessage((Text("x" * 8_000_000),)),))
SETTLE_S = 0.02

SEEN_PHASES = {
    "in the TLS handshake": "tls",
    "sending the body": "stall",
    "before headers": "silent-before-headers",
    "silent after headers": "silent-after-headers",
    "mid-answer": "silent-mid-answer",
    "in an error body": "silent-in-error-body",
}
UNSEEN_PHASES = ("resolving", "connecting", "backing off")


def model_at(base_url: str, policy: RetryPolicy | None = None) -> RetryingModel:
    return RetryingModel([HttpEndpoint("m", "m", base_url, ChatDialect())], policy=policy)


async def read_ours(model: RetryingModel, request: ModelRequest, token: Token) -> None:
    async with model.open(request, token) as stream:
        async for _ in stream:
            pass


async def read_bare(url: str, body: bytes) -> None:
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, data=BytesIO(body)) as response,
    ):
        async for _ in response.content.iter_any():
            pass


class Run:
    """One request under way, and how it is ended."""

    def __init__(self, task: asyncio.Task[None], end: Callable[[], object]) -> None:
        self._task = task
        self._end = end

    async def interrupt(self) -> tuple[int, float]:
        """When the interrupt was given, and how long until it had come out of the client."""
        at_ns = time.monotonic_ns()
        self._end()
        try:
            await self._task
        except (asyncio.CancelledError, Cancelled):
            pass
        return at_ns, (time.monotonic_ns() - at_ns) / 1e9


def start(who: str, base_url: str, request: ModelRequest) -> Run:
    if who == "ours":
        source = CancelSource("request")
        task = asyncio.create_task(read_ours(model_at(base_url), request, source.token))
        return Run(task, lambda: source.cancel(Cause.USER_STOP))
    body = ChatDialect().encode("m", request)
    bare = asyncio.create_task(read_bare(f"{base_url}/chat/completions", body))
    return Run(bare, bare.cancel)


class Seen(msgspec.Struct):
    number: int
    path: str
    connected_ns: int
    requested_ns: int
    gone_ns: int
    gone_by: str


async def visits_at(url: str) -> list[Seen]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/visits") as response:
        return msgspec.json.decode(await response.read(), type=list[Seen])


async def measure_seen(report: Report, url: str, rounds: int, chance: random.Random) -> None:
    """Phases with a connection: measures until the server saw the client go."""
    given: list[tuple[str, str, int]] = []
    unwound: Samples = {"bare": [], "ours": []}
    steps = [(who, phase) for who in ("bare", "ours") for phase in SEEN_PHASES]
    for _ in range(rounds):
        chance.shuffle(steps)
        for who, phase in steps:
            animal = SEEN_PHASES[phase]
            base = url.replace("http:", "https:") if animal == "tls" else f"{url}/{animal}"
            run = start(who, f"{base}/v1", LARGE if animal == "stall" else REQUEST)
            await asyncio.sleep(SETTLE_S)
            at_ns, seconds = await run.interrupt()
            given.append((who, phase, at_ns))
            unwound[who].append(seconds)
    await asyncio.sleep(0.5)
    visits = await visits_at(url)
    # One request after the other: the connections came in the order of the interrupts.
    if len(visits) != len(given) + 1:
        report.violation(f"{len(given)} requests were made and {len(visits) - 1} were seen")
        return
    seen: dict[str, Samples] = {phase: {"bare": [], "ours": []} for phase in SEEN_PHASES}
    for (who, phase, at_ns), visit in zip(given, visits, strict=False):
        if visit.gone_by in ("fin", "reset") and visit.gone_ns >= at_ns:
            seen[phase][who].append((visit.gone_ns - at_ns) / 1e9)
        elif who == "ours":
            report.violation(f"{phase}: the server did not see the client go")
    report_seen(report, seen, rounds)
    report.compare(
        "all phases, until out of the client",
        unwound,
        baseline="bare",
        ours="ours",
        percents=(50, 95),
    )


def report_seen(report: Report, seen: dict[str, Samples], rounds: int) -> None:
    for who in ("bare", "ours"):
        count = sum(len(samples[who]) for samples in seen.values())
        told = f"interrupts that the server saw, {who}"
        report.figure(told, count, unit=f"of {rounds * len(SEEN_PHASES)}")
    # A phase in which the bare client was not seen to go has nothing to be compared with.
    both = {phase: samples for phase, samples in seen.items() if samples["bare"]}
    total = {who: [s for one in both.values() for s in one[who]] for who in ("bare", "ours")}
    measure = "until the server saw it, all phases"
    report.compare(measure, total, baseline="bare", ours="ours", bar=1.5, percents=(50, 95))
    for phase, samples in seen.items():
        if phase in both:
            report.compare(phase, samples, baseline="bare", ours="ours", percents=(50, 95))
        else:
            report.figure(f"{phase}, p95 (bare: never seen)", percentile(samples["ours"], 95))


async def measure_unseen(report: Report, url: str, rounds: int, chance: random.Random) -> None:
    """Phases without a connection: measures until the client has returned."""
    samples: dict[str, Samples] = {phase: {"bare": [], "ours": []} for phase in UNSEEN_PHASES}
    with full_listener() as port:
        steps = [(who, phase) for who in ("bare", "ours") for phase in UNSEEN_PHASES]
        for _ in range(rounds):
            chance.shuffle(steps)
            for who, phase in steps:
                run = _start_unseen(who, phase, url, port)
                await asyncio.sleep(SETTLE_S)
                samples[phase][who].append((await run.interrupt())[1])
    for phase, found in samples.items():
        other = "" if phase == "connecting" else " (baseline: a bare sleep)"
        report.compare(
            f"{phase}, until out of the client{other}",
            found,
            baseline="bare",
            ours="ours",
            percents=(50, 95),
        )


def _start_unseen(who: str, phase: str, url: str, port: int) -> Run:
    if phase == "connecting":
        return start(who, f"http://127.0.0.1:{port}/v1", REQUEST)
    if who == "bare":
        task = asyncio.create_task(asyncio.sleep(3600))
        return Run(task, task.cancel)
    source = CancelSource("request")
    if phase == "resolving":
        hung = HttpEndpoint("m", "m", "http://hung.test/v1", ChatDialect(), lookup=_hang)
        model = RetryingModel([hung])
    else:
        model = model_at(f"{url}/500/v1", RetryPolicy(delay_first_s=60, delay_max_s=60))
    task = asyncio.create_task(read_ours(model, REQUEST, source.token))
    return Run(task, lambda: source.cancel(Cause.USER_STOP))


def _hang(*_: object, **__: object) -> list[tuple[int, int, int, str, object]]:
    time.sleep(3600)
    return []


async def measure_leaks(report: Report, url: str, cancels: int, chance: random.Random) -> None:
    animals = [*SEEN_PHASES.values(), "ok", "drop", "reset", "429", "500", "paced", "slow-loris"]
    # What the bare client of the rounds before left to the garbage collector is not ours.
    gc.collect()
    before = open_sockets()

    async def one() -> None:
        animal = chance.choice(animals)
        base = url.replace("http:", "https:") if animal == "tls" else f"{url}/{animal}"
        source = CancelSource("request")
        policy = RetryPolicy(attempts_max=3, delay_first_s=0.01)
        model = model_at(f"{base}/v1", policy)
        task = asyncio.create_task(read_ours(model, REQUEST, source.token))
        await asyncio.sleep(chance.random() ** 2 * 0.05)
        source.cancel(Cause.USER_STOP)
        try:
            await task
        except (Cancelled, ModelError):
            pass

    for _ in range(cancels // 20):
        await asyncio.gather(*(one() for _ in range(20)))
    await asyncio.sleep(0.2)
    left = open_sockets() - before
    report.figure(f"sockets left after {cancels} random cancels", left, unit="sockets", bar=0)
    asked = len(await visits_at(url))
    await asyncio.sleep(1.0)
    further = len(await visits_at(url)) - asked - 1
    report.figure("requests made after they were cancelled", further, unit="requests", bar=0)
    if left > 0 or further > 0:
        report.violation(f"{left} sockets left, {further} requests made after the cancels")


def open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count
