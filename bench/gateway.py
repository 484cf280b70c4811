"""The gateway with a thousand clients: interrupts, durable messages, fan-out, five hundred stops.

The server runs in a process of its own, the clients in this one; every baseline is measured on the
same server, in the same run and under the same load:

- an interrupt by HTTP until its receipt, against the engine's own interrupt (timed inside the
  server) plus a bare round trip (a route of the same app with nothing behind it), while a thousand
  sessions stream to a client each;
- messages accepted durably by HTTP, against the engine's own `send` with as many producers, and
  against bare round trips;
- parts of one session fanned out to many readers, against a bare Starlette loop that encodes and
  yields a part for each of as many readers;
- five hundred stops at once: until the last receipt, and the longest pause in any other stream.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

from bench._gateway_client import HEAD, Connection, Stream, open_stream
from bench.measure import Report, Samples, interleave_async, percentile

CLIENTS = 1000
PACE_S = 0.5
ROUNDS = 600
STOPS = 500
PAUSE_S_MAX = 1.0
SENDERS = 64
EACH = 30
READERS = 100
PARTS = 400


@contextmanager
def server() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "bench._gateway_server", home]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
            process.wait()


async def new_session(connection: Connection) -> str:
    made = await connection.post("/v1/sessions", {})
    session_id: str = made["session"]["id"]
    return session_id


class Crowd:
    """A thousand sessions that stream, each to a client of its own."""

    def __init__(self, port: int, control: Connection) -> None:
        self.port = port
        self.control = control
        self.sessions: list[str] = []
        self.streams: list[Stream] = []

    async def gather(self) -> None:
        for _ in range(CLIENTS):
            session = await new_session(self.control)
            self.sessions.append(session)
            stream = await open_stream(self.port, f"/v1/sessions/{session}/events")
            self.streams.append(stream)
            await self.talk(session)
        await asyncio.sleep(2 * PACE_S)

    async def talk(self, session: str) -> None:
        body = {"text": f"{PACE_S} 100000"}
        await self.control.post(f"/v1/sessions/{session}/messages", body)

    def leave(self) -> None:
        for stream in self.streams:
            stream.close()


async def interrupts(crowd: Crowd, report: Report) -> None:
    control, turns = crowd.control, cycle(random.Random(1).sample(crowd.sessions, CLIENTS))

    async def http() -> float:
        session = next(turns)
        began = time.perf_counter()
        receipt = await control.post(f"/v1/sessions/{session}/interrupt")
        elapsed_s = time.perf_counter() - began
        if receipt["status"] != "stopped":
            report.violation(f"an interrupt of a running turn: {receipt['status']}")
        await crowd.talk(session)
        return elapsed_s

    async def engine() -> float:
        session = next(turns)
        answer = await control.post(f"/bench/interrupt/{session}")
        await crowd.talk(session)
        return float(answer["elapsed_s"])

    async def bare() -> float:
        began = time.perf_counter()
        await control.post("/bench/nothing")
        return time.perf_counter() - began

    candidates = {"http": http, "engine": engine, "bare": bare}
    samples = await interleave_async(candidates, rounds=ROUNDS, pause_s=0.01)
    both = [one + other for one, other in zip(samples["engine"], samples["bare"], strict=True)]
    told: Samples = {"http": samples["http"], "engine + round trip": both}
    report.compare(
        f"interrupt by HTTP, {CLIENTS} streaming clients; engine + bare round trip",
        told,
        baseline="engine + round trip",
        ours="http",
        bar=2.0,
        percents=(50, 99),
    )
    for name in ("engine", "bare"):
        shown = "engine's own interrupt" if name == "engine" else "bare round trip"
        report.figure(f"{shown}, p50", percentile(samples[name], 50))


async def stops(crowd: Crowd, report: Report) -> None:
    """Stops half of them at once, each over its own connection."""
    chosen = crowd.sessions[:STOPS]
    others = crowd.streams[STOPS:]
    connections = [await Connection.open(crowd.port) for _ in chosen]
    for stream in crowd.streams:
        stream.begin()
    await asyncio.sleep(4 * PACE_S)
    quiet_s = max(stream.longest_s for stream in others)
    for stream in others:
        stream.begin()
    began = time.perf_counter()
    receipts = await asyncio.gather(
        *(
            connection.post(f"/v1/sessions/{session}/interrupt")
            for connection, session in zip(connections, chosen, strict=True)
        )
    )
    elapsed_s = time.perf_counter() - began
    await asyncio.sleep(2 * PACE_S)
    for connection in connections:
        connection.close()
    wrong = sum(1 for each in receipts if each["status"] != "stopped")
    if wrong:
        report.violation(f"{wrong} of {STOPS} interrupts did not stop their turn")
    if any(stream.settled for stream in others):
        report.violation("a stop reached a session that was not meant")
    if not all(stream.settled for stream in crowd.streams[:STOPS]):
        report.violation("a client was not told that its turn has settled")
    paused_s = max(stream.longest_s for stream in others)
    report.figure(f"{STOPS} interrupts at once: until the last receipt", elapsed_s)
    report.figure(
        f"the longest silence in any other stream then, beyond its pace of {PACE_S:g} s",
        max(0.0, paused_s - PACE_S),
        bar=PAUSE_S_MAX,
    )
    report.figure("the same without any interrupt", max(0.0, quiet_s - PACE_S))


async def messages(port: int, control: Connection, report: Report) -> None:
    """Sends into the inboxes of busy sessions, so that only accepting is measured. Uses new
    sessions each time, because a long inbox has its own cost."""
    connections = [await Connection.open(port) for _ in range(SENDERS)]
    body = {"text": "0 0", "mode": "queue"}
    filled: list[str] = []

    async def busy_sessions() -> list[str]:
        sessions = [await new_session(control) for _ in range(SENDERS)]
        for session in sessions:
            await control.post(f"/v1/sessions/{session}/messages", {"text": "3600 1"})
        return sessions

    async def all_of(paths: list[str]) -> float:
        async def produce(connection: Connection, path: str) -> None:
            for _ in range(EACH):
                await connection.post(path, body)

        began = time.perf_counter()
        pairs = zip(connections, paths, strict=True)
        await asyncio.gather(*(produce(*pair) for pair in pairs))
        return (time.perf_counter() - began) / (SENDERS * EACH)

    async def http() -> float:
        sessions = await busy_sessions()
        filled.extend(sessions)
        return await all_of([f"/v1/sessions/{session}/messages" for session in sessions])

    async def bare() -> float:
        return await all_of(["/bench/nothing"] * SENDERS)

    async def engine() -> float:
        sessions = await busy_sessions()
        answer = await control.post(f"/bench/send?each={EACH}", {"sessions": sessions})
        return float(answer["elapsed_s"]) / (SENDERS * EACH)

    samples = await interleave_async({"http": http, "engine": engine, "bare": bare}, rounds=5)
    both = [one + other for one, other in zip(samples["engine"], samples["bare"], strict=True)]
    report.compare(
        f"a message accepted durably, {SENDERS} senders; engine's send + bare round trip",
        {"http": samples["http"], "both": both},
        baseline="both",
        ours="http",
        bar=2.0,
    )
    report.figure("messages accepted durably", 1 / percentile(samples["http"], 50), unit="a second")
    found = sum([await waiting(port, session) for session in filled])
    if found != len(filled) * EACH:
        report.violation(f"{len(filled) * EACH} messages were acknowledged, {found} wait")
    for connection in connections:
        connection.close()


async def waiting(port: int, session: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/sessions/{session} HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n".encode())
    answer = (await reader.read()).split(b"\r\n\r\n", 1)[1]
    writer.close()
    place = answer.index(b'"waiting":') + 10
    return int(answer[place : answer.index(b",", place)])


async def fan_out(port: int, control: Connection, report: Report) -> None:
    """Seconds for one part to one reader."""

    async def until_all(streams: list[Stream], began: float) -> float:
        await asyncio.gather(*(stream.reached.wait() for stream in streams))
        elapsed_s = time.perf_counter() - began
        for stream in streams:
            stream.close()
        return elapsed_s / (READERS * PARTS)

    async def ours() -> float:
        session = await new_session(control)
        await control.post(f"/v1/sessions/{session}/messages", {"text": "0 0"})
        path = f"/v1/sessions/{session}/events?after=0"
        streams = [await open_stream(port, path, PARTS) for _ in range(READERS)]
        # Who has been told of the turn before misses no part of the next.
        for stream in streams:
            await stream.told_settled.wait()
        began = time.perf_counter()
        await control.post(f"/v1/sessions/{session}/messages", {"text": f"0 {PARTS}"})
        return await until_all(streams, began)

    async def bare() -> float:
        began = time.perf_counter()
        path = f"/bench/events?parts={PARTS}"
        streams = await asyncio.gather(*(open_stream(port, path, PARTS) for _ in range(READERS)))
        return await until_all(list(streams), began)

    samples = await interleave_async({"ours": ours, "bare": bare}, rounds=7)
    report.compare(
        f"a part of one session to one of {READERS} readers; bare Starlette loop",
        samples,
        baseline="bare",
        ours="ours",
        bar=1.0,
    )
    report.figure("fan-out", 1 / percentile(samples["ours"], 50), unit="parts a second")
    report.figure("fan-out, bare loop", 1 / percentile(samples["bare"], 50), unit="parts a second")


async def run() -> int:
    report = Report("gateway")
    with server() as port:
        control = await Connection.open(port)
        await messages(port, control, report)
        await fan_out(port, control, report)
        crowd = Crowd(port, control)
        await crowd.gather()
        await interrupts(crowd, report)
        await stops(crowd, report)
        crowd.leave()
        control.close()
    return report.finish()


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
