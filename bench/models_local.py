"""After an interrupt the local model's process computes nothing more: how soon, in both its phases.

The child's processor time is read from /proc while it reads a long prompt or generates, and a
request is ended at a random moment: by cancelling its token (ours), or by closing a bare socket
that had sent the same request the usual way (the baseline: what the runtime does by itself). A
sample is the time from that moment to the last moment at which the child still computed. Both
take turns in random order, with the same child.

Beside it stands the processor time spent after the interrupt, which does not depend on what else
the machine does. A child that still computes after five seconds is a violation.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import ModelRequest, Text, TextPart, UserMessage
from bargein.models.dialects.chat import ChatDialect
from bargein.models.local import LocalModel, LocalOptions, Notice, Reading, Ready
from bargein.models.settings import ModelSettings
from bench.measure import Report, Samples, interleave_async

ROUNDS = 20
PROMPT_WORDS = 1500
LOOK_S = 0.004
QUIET_S = 0.25
BOUND_S = 5.0
READING_BAR_S = 1.0
GENERATING_BAR_S = 0.25

Spent = Callable[[], float]


def spent_by(pid: int) -> Spent:
    """Seconds of processor time so far, of all threads: exact if the kernel says, else in ticks."""
    if not Path(f"/proc/{pid}/schedstat").exists():
        tick = os.sysconf("SC_CLK_TCK")

        def ticks() -> float:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / tick

        return ticks

    def exact() -> float:
        total = 0
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                total += int((thread / "schedstat").read_text().split()[0])
            except OSError:
                pass  # a thread that has just ended
        return total / 1e9

    return exact


class Bench:
    """One model with one child, and what was seen."""

    def __init__(self, model: LocalModel, report: Report) -> None:
        self.model = model
        self.report = report
        self.reading = anyio.Event()
        self.ready: Ready | None = None
        self.spent_after: Samples = {}
        self.spent: Spent = lambda: 0.0
        self.chance = random.Random(1)

    def hear(self, notice: Notice) -> None:
        if isinstance(notice, Reading) and notice.done_tokens:
            self.reading.set()
        elif isinstance(notice, Ready):
            self.ready = notice

    def request(self, phase: str) -> ModelRequest:
        """Never the same twice: what the child has read before it would not read again."""
        beginning = f"Number {self.chance.randrange(10**9)}. "
        if phase == "reading":
            numbers = (str(self.chance.randrange(1000)) for _ in range(PROMPT_WORDS))
            beginning += " ".join(numbers)
        words = beginning + " Tell me a very long story about it."
        return ModelRequest(messages=(UserMessage((Text(words),)),), output_tokens_max=2000)

    async def ours(self, phase: str) -> float:
        self.reading = anyio.Event()
        generating = anyio.Event()
        with CancelSource("a request") as source:

            async def read() -> None:
                try:
                    async with self.model.open(self.request(phase), source.token) as stream:
                        async for part in stream:
                            if isinstance(part, TextPart):
                                generating.set()
                except Cancelled:
                    pass

            task = asyncio.ensure_future(read())
            await (self.reading if phase == "reading" else generating).wait()
            await anyio.sleep(self.chance.random() * 0.3)
            at = self.moment()
            source.cancel(Cause.USER_STOP)
            await task
        return await self.idle_since(at, f"ours, {phase}")

    async def bare(self, phase: str) -> float:
        """A socket, the request as every client sends it, and a reset."""
        with CancelSource("a lease") as source:
            lease = await self.model.endpoint.runtime.lease(source.token)
        body = ChatDialect().encode("local", self.request(phase))
        host, _, port = lease.facts.address.removeprefix("http://").partition(":")
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer "
            f"{lease.key.reveal()}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        with socket.create_connection((host, int(port))) as connection:
            connection.setblocking(False)
            began_with = self.spent()
            await loop.sock_sendall(connection, head.encode() + body)
            if phase == "generating":
                received = b""
                while b'"content":"' not in received:
                    received += await loop.sock_recv(connection, 65536)
            else:
                # Nothing comes while it reads; that it does is seen by what it spends.
                while self.spent() - began_with < 0.2:  # noqa: ASYNC110 - no event tells
                    await anyio.sleep(LOOK_S)
            await anyio.sleep(self.chance.random() * 0.3)
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            at = self.moment()
        lease.release()
        return await self.idle_since(at, f"bare, {phase}")

    def moment(self) -> tuple[float, float]:
        return time.perf_counter(), self.spent()

    async def idle_since(self, at: tuple[float, float], what: str) -> float:
        """Seconds from the moment until it last computed; quiet is less than a twentieth of a
        processor."""
        began, spent_before = at
        busy_until, looked_at, seen = began, began, spent_before
        while looked_at - busy_until < QUIET_S:
            await anyio.sleep(LOOK_S)
            now, spent = self.moment()
            if spent - seen > 0.05 * (now - looked_at):
                busy_until = now
            looked_at, seen = now, spent
            if now - began > BOUND_S:
                self.report.violation(f"{what}: it still computes {BOUND_S:g} s after the end")
                break
        self.spent_after.setdefault(what, []).append(seen - spent_before)
        return busy_until - began


async def fill(report: Report) -> None:
    """Measure, and put everything into the report."""
    bench: Bench | None = None

    def hear(notice: Notice) -> None:
        if bench is not None:
            bench.hear(notice)
        if not isinstance(notice, Reading):
            print(notice, file=sys.stderr)

    folder = Path(__file__).parents[1] / ".pytest_cache" / "d" / "bargein-weights"
    model = LocalModel(ModelSettings(weights_dir=folder), options=LocalOptions(on_notice=hear))
    bench = Bench(model, report)
    try:
        with CancelSource("warming up", timeout_s=300) as source:
            await model.warm_up(source.token)
        assert model.process is not None
        bench.spent = spent_by(model.process.pid)
        await _speed(bench)
        await _interrupts(bench)
    finally:
        await model.aclose()


async def _interrupts(bench: Bench) -> None:
    candidates = {
        f"{way}, {phase}": (lambda method=method, phase=phase: method(phase))
        for way, method in (("bare", bench.bare), ("ours", bench.ours))
        for phase in ("reading", "generating")
    }
    rounds = 5 if "--quick" in sys.argv else ROUNDS
    samples = await interleave_async(candidates, rounds=rounds)
    for phase, bar in (("reading", READING_BAR_S), ("generating", GENERATING_BAR_S)):
        ours, bare = f"ours, {phase}", f"bare, {phase}"
        what = f"local model idle after an interrupt while {phase}"
        bench.report.compare(what, samples, baseline=bare, ours=ours, percents=(50, 95))
        bench.report.figure(f"{what}, the longest of {rounds}", max(samples[ours]), bar=bar)
        spent = {name: values[-rounds:] for name, values in bench.spent_after.items()}
        what = f"processor time it spent after an interrupt while {phase}"
        bench.report.compare(what, spent, baseline=bare, ours=ours)


async def _speed(bench: Bench) -> None:
    assert bench.ready is not None
    bench.report.figure("local model, load", bench.ready.elapsed_s)
    words = " ".join(str(bench.chance.randrange(1000)) for _ in range(60))
    request = ModelRequest(messages=(UserMessage((Text(words),)),), output_tokens_max=100)
    with CancelSource("a request") as source:
        began = time.perf_counter()
        first = 0.0
        async with bench.model.open(request, source.token) as stream:
            async for part in stream:
                if isinstance(part, TextPart) and not first:
                    first = time.perf_counter()
        ended = time.perf_counter()
    usage = stream.usage
    bench.report.figure(
        "local model, reading", usage.input_tokens / (first - began), unit="tokens/s"
    )
    bench.report.figure(
        "local model, generating", (usage.output_tokens - 1) / (ended - first), unit="tokens/s"
    )


def add_rows(report: Report) -> None:
    """Everything that is measured here, for a report of its own or of all models."""
    asyncio.run(fill(report))
    report.note(
        "Local model: the baseline is the same request, sent over a bare socket without asking for "
        "news of the reading, and the socket reset; with the same child."
    )


def main() -> int:
    report = Report("models_local")
    add_rows(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
