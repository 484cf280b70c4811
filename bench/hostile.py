"""A good client while somebody attacks the gateway: its stops, /healthz, and the server's memory.

The server runs in a process of its own with the limits of `bargein serve`, each attack in another.
The good client, in this process, stops running turns and asks for /healthz all the time; each of
its samples is of a round that is quiet, beside a busy neighbour, or under attack, in turns, on the
same server. Each attack has a server of its own, so that none pays for what another left behind.

An attacker takes processor time from the server also by being busy beside it. The neighbour shows
how much of a figure that is: it is the same attack in a process of its own, against a second server
that the good client does not use. That second server's work comes on top, so the neighbour may take
more processor time than the attacker alone.

Other programs on the machine would show in a maximum more than any attack. So a round in which
processes that do not belong to the bench used much processor time is measured again, quiet or not,
at most `TRIES` times; the table says how many rounds stayed disturbed.

Bars: the slowest /healthz and the p99 of stops during the attack at most twice the quiet figures of
the same run; at most 64 MiB more memory than before the attack. The rows against the busy neighbour
have no bar; `--neighbour` measures them. `./dev bench hostile NAME...` runs the attacks whose names
contain one of these words.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench._hostile_attacks import ATTACKS
from bench.measure import Report, Row, percentile

ROUNDS = 6
"""The slowest answer of few rounds says little: of three quiet ones it was 0.8 to 7.3 ms."""
ROUND_S = 2.5
SETTLE_S = 0.5
RATIO = 2.0
MEMORY_BYTES = 64 * 1024 * 1024
ATTACK_BEGINS_S = 0.7
PAUSE_S = 0.01
ANSWER_S = 60.0
CONNECTIONS_TRIED = 3
NEIGHBOUR = "--neighbour"
TRIES = 4
OTHERS_MAX = 0.1
"""Of one processor: more than this, by other programs, disturbs a round. The kernel's own threads,
which write to the disk for us, count as others and take less."""


class Server(msgspec.Struct):
    port: int
    pid: int
    good: str
    bad: str


@contextmanager
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "bench._hostile_server", home]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield msgspec.json.decode(process.stdout.readline(), type=Server)
        finally:
            process.kill()
            process.wait()


@contextmanager
def attacked(name: str, target: Server) -> Iterator[int]:
    command = [sys.executable, "-m", "bench._hostile_attacks", name, str(target.port), target.bad]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def memory_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def busy_s(pids: Sequence[int]) -> float:
    """Returns the processor time so far of all processes but these and this one."""
    fields = Path("/proc/stat").read_text().split(maxsplit=5)
    used = sum(map(int, fields[1:4]))
    for pid in (os.getpid(), *pids):
        # The name in parentheses may contain spaces.
        own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used -= int(own[11]) + int(own[12])
    return used / os.sysconf("SC_CLK_TCK")


class Link:
    """One connection that is kept, and reopened if the server closed it."""

    def __init__(self, target: Server) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._target.port)
        reader, writer = self._streams
        content = json.dumps(body).encode() if body is not None else b""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{self._target.good}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + content)
            told = await reader.readuntil(b"\r\n\r\n")
            place = told.index(b"content-length: ") + 16
            length = int(told[place : told.index(b"\r", place)])
            return int(told[9:12]), await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Seen:
    """The samples of the good client, and what it saw go wrong."""

    health_s: list[float] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    disturbed: int = 0

    def add(self, other: Seen) -> None:
        self.health_s += other.health_s
        self.stops_s += other.stops_s
        self.wrong += other.wrong
        self.disturbed += other.disturbed


class Client:
    def __init__(self, target: Server) -> None:
        self._stopping, self._looking = Link(target), Link(target)
        self._session = ""

    async def begin(self) -> None:
        _, made = await self._stopping.ask("POST", "/v1/sessions", {})
        self._session = f"/v1/sessions/{json.loads(made)['session']['id']}"

    async def work(self, seen: Seen, for_s: float) -> None:
        until = time.monotonic() + for_s
        await asyncio.gather(self._stop(seen, until), self._look(seen, until))

    async def work_alone(self, seen: Seen, pids: Sequence[int]) -> None:
        """Works for a round; for another one if other programs than `pids` disturbed it."""
        once = Seen(disturbed=1)
        for _ in range(TRIES):
            if not once.disturbed or once.wrong:
                break
            once = Seen()
            began, before_s = time.monotonic(), busy_s(pids)
            await self.work(once, ROUND_S)
            others = (busy_s(pids) - before_s) / (time.monotonic() - began)
            once.disturbed = int(others > OTHERS_MAX)
        seen.add(once)

    async def _stop(self, seen: Seen, until: float) -> None:
        while time.monotonic() < until:
            body = {"text": "0.5 100000"}
            async with asyncio.timeout(ANSWER_S):
                status, told = await self._stopping.ask("POST", f"{self._session}/messages", body)
                if status != 202:
                    seen.wrong.append(f"a message of the good client: {status} {told[:200]!r}")
                began = time.perf_counter()
                status, told = await self._stopping.ask("POST", f"{self._session}/interrupt", {})
            seen.stops_s.append(time.perf_counter() - began)
            if status != 200 or json.loads(told)["status"] != "stopped":
                seen.wrong.append(f"a stop of the good client: {status} {told[:200]!r}")
            await asyncio.sleep(PAUSE_S)

    async def _look(self, seen: Seen, until: float) -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            async with asyncio.timeout(ANSWER_S):
                status = await self._health()
            seen.health_s.append(time.perf_counter() - began)
            if status != 200:
                seen.wrong.append(f"/healthz: {status}")
            await asyncio.sleep(PAUSE_S)

    async def _health(self) -> int:
        """Asks on a connection without a user, which the server may close if it needs room."""
        for _ in range(CONNECTIONS_TRIED - 1):
            try:
                return (await self._looking.ask("GET", "/healthz"))[0]
            except (OSError, asyncio.IncompleteReadError):
                pass
        return (await self._looking.ask("GET", "/healthz"))[0]

    def close(self) -> None:
        self._stopping.close()
        self._looking.close()


async def measure(name: str, report: Report, *, beside: bool) -> None:
    quiet, busy, hostile = Seen(), Seen(), Seen()
    with server() as target, server() as neighbour:
        client = Client(target)
        await client.begin()
        await client.work(Seen(), SETTLE_S)
        before, most = memory_of(target.pid), 0
        servers = (target.pid, neighbour.pid)
        for _ in range(ROUNDS):
            await client.work_alone(quiet, servers)
            if beside:
                with attacked(name, neighbour) as attacker:
                    await asyncio.sleep(ATTACK_BEGINS_S)
                    await client.work_alone(busy, (*servers, attacker))
                await client.work(Seen(), SETTLE_S)
            with attacked(name, target) as attacker:
                await asyncio.sleep(ATTACK_BEGINS_S)
                watching = asyncio.create_task(_highest(target.pid))
                await client.work_alone(hostile, (*servers, attacker))
                watching.cancel()
                most = max(most, *await asyncio.gather(watching))
            await client.work(Seen(), SETTLE_S)
        client.close()
    for what, figure in (("slowest /healthz", _slowest_health), ("stop, p99", _stop_p99)):
        row = Row(f"{name}: {what}", figure(hostile), figure(quiet), RATIO)
        report.rows.append(row)
        if beside:
            row = Row(f"{name}: {what}, beside a neighbour", figure(hostile), figure(busy))
            report.rows.append(row)
    for kind, seen in (("quiet", quiet), ("neighbour", busy), ("attack", hostile)):
        for what in ("health_s", "stops_s"):
            samples = {"measure": f"{name}: {what}", "candidate": kind}
            report.raw.append({**samples, "samples_s": getattr(seen, what)})
    grown = max(0, most - before) / 2**20
    report.figure(f"{name}: more memory", grown, unit="MiB", bar=MEMORY_BYTES / 2**20)
    disturbed = [seen.disturbed for seen in (quiet, busy, hostile)]
    if any(disturbed):
        counts = "{} quiet, {} beside a neighbour, {} under attack".format(*disturbed)
        report.note(f"{name}: other programs disturbed, of {ROUNDS} rounds each: {counts}")
    for text in {*quiet.wrong, *busy.wrong, *hostile.wrong}:
        report.violation(f"{name}: {text}")


def _slowest_health(seen: Seen) -> float:
    return max(seen.health_s)


def _stop_p99(seen: Seen) -> float:
    return percentile(seen.stops_s, 99)


async def _highest(pid: int) -> int:
    """Returns the highest memory use until it is cancelled."""
    most = 0
    try:
        while True:
            most = max(most, memory_of(pid))
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return most


async def run(words: list[str]) -> int:
    report = Report("hostile")
    beside = NEIGHBOUR in words
    words = [word for word in words if word != NEIGHBOUR]
    for name in ATTACKS:
        if not words or any(word in name for word in words):
            try:
                await measure(name, report, beside=beside)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                report.violation(f"{name}: the good client was cut off: {error!r}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:])))
