"""How many streams at 50 parts a second one core carries, against a loop that looks at nothing.

The server and the clients share two cores, so wall time would measure the server. What is compared
is the CPU time that the client's process spends on a part; a core carries as many streams as fit
into a second of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import TextPart
from bargein.models.dialects.chat import ChatDialect
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.retrying import RetryingModel
from bench._models_interrupts import REQUEST
from bench._models_paced_server import EVENT
from bench.measure import Report, Samples, percentile

STREAMS = 200
PARTS_PER_S = 50
WINDOW_S = 1.0
WINDOWS = 12


class Counter:
    parts = 0


async def follow_bare(base_url: str, counter: Counter) -> None:
    body = ChatDialect().encode("m", REQUEST)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"{base_url}/chat/completions", data=body) as response,
    ):
        async for chunk in response.content.iter_any():
            counter.parts += len(chunk) // len(EVENT)


async def follow_ours(base_url: str, counter: Counter, source: CancelSource) -> None:
    model = RetryingModel([HttpEndpoint("m", "m", base_url, ChatDialect())])
    async with model.open(REQUEST, source.token) as stream:
        async for part in stream:
            if type(part) is TextPart:
                counter.parts += 1


async def window(base_url: str, who: str) -> float:
    """CPU seconds per part, over a window in which all streams run."""
    counter = Counter()
    source = CancelSource("all")
    follow: Callable[[], Awaitable[None]]
    if who == "ours":
        follow = lambda: follow_ours(base_url, counter, source)  # noqa: E731
    else:
        follow = lambda: follow_bare(base_url, counter)  # noqa: E731
    tasks = [asyncio.ensure_future(follow()) for _ in range(STREAMS)]
    while counter.parts < 5 * STREAMS:  # noqa: ASYNC110 - until all have begun
        await asyncio.sleep(0.02)
    cpu_s, parts = time.process_time(), counter.parts
    await asyncio.sleep(WINDOW_S)
    cost = (time.process_time() - cpu_s) / (counter.parts - parts)
    if who == "ours":
        source.cancel(Cause.USER_STOP)
    else:
        for task in tasks:
            task.cancel()
    for task in tasks:
        try:
            await task
        except (asyncio.CancelledError, Cancelled):
            pass
    return cost


async def measure_streams(report: Report, port: str) -> None:
    base_url = f"http://127.0.0.1:{port}/v1"
    samples: Samples = {"bare": [], "ours": []}
    for number in range(WINDOWS):
        for who in ("bare", "ours") if number % 2 else ("ours", "bare"):
            samples[who].append(await window(base_url, who))
    report.compare("CPU for a part of a stream", samples, baseline="bare", ours="ours", bar=1.5)
    for who in ("bare", "ours"):
        streams = 1 / (PARTS_PER_S * percentile(samples[who], 50))
        report.figure(f"streams of {PARTS_PER_S} parts/s on one core, {who}", streams, unit="")
