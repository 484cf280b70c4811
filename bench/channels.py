"""A /stop from a chat until the command is dead, while 1,000 chats stream at their rate limit.

The baseline is the engine's own stop of the same command, from another thread, in the same load.
The service is a process of its own, on loopback. A round trip is a call of the adapter's that does
nothing, in the same load. The bar is two times the engine's own and one round trip.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvloop

from bargein.channels.contract import ChatAddress, ChatKind
from bargein.channels.conversation import session_id_of
from bargein.channels.hub import ChannelHub
from bargein.channels.rows import Ledger, Pairing, PairingCode
from bargein.channels.rows_sqlite import SqliteRows
from bargein.channels.telegram import TelegramChannel
from bargein.models.script import Answer, Call, Say, Script
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.config import load_config
from bargein.runtime.engine import Engine
from bargein.session.session import Session
from bargein.testing.chat_services.telegram import TOKEN
from bench.measure import Report, percentile

CHATS = 1000
ROUNDS = 100
VICTIM = "40000"
OWN = "own"
WORDS = "word " * 400
PERCENTS = (50, 99)
STEADY_S = 10.0
DEAD_S = 10.0


class Service:
    """What the bench asks of the service, from threads: the engine's loop does not pay for it."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, method: str, path: str, body: Any = None) -> Any:
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def say(self, text: str, *chats: str) -> None:
        self.call("POST", "/control/say", {"chats": chats, "text": text})


@contextmanager
def service() -> Iterator[Service]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench._channels_service"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield Service(process.stdout.readline().strip())
        process.stdin.close()
        process.wait(10)


def model() -> ScriptedModel:
    def command(name: str) -> Answer:
        line = f"echo $$ > {name}.new; mv {name}.new {name}.pid; exec sleep 600"
        return Answer([Call("terminal", {"command": line})], when=f"run {name}")

    streams = Answer([Say(WORDS, pace_s=1.0)], when="Talk")
    return ScriptedModel(Script([command("ours"), command(OWN), streams], repeat=True))


class Bench:
    def __init__(self, engine: Engine[Any], channel: TelegramChannel, asked: Service) -> None:
        self.engine = engine
        self.channel = channel
        self.service = asked
        self.stops = 0

    async def pid_of(self, name: str, work: Path) -> int:
        file = work / f"{name}.pid"
        with anyio.fail_after(30):
            while not file.exists():  # noqa: ASYNC110 - another process writes it
                await anyio.sleep(0.005)
        pid = int(file.read_text())
        file.unlink()
        await anyio.sleep(0.05)
        return pid

    async def stop_from_chat(self, work: Path) -> float:
        await anyio.to_thread.run_sync(self.service.say, "run ours", VICTIM)
        pid = await self.pid_of("ours", work)
        took = await anyio.to_thread.run_sync(self._killed, pid, None)
        self.stops += 1
        await self._until_told()
        return took

    async def stop_by_engine(self, work: Path, session: Session) -> float:
        await session.send(f"run {OWN}")
        pid = await self.pid_of(OWN, work)
        took = await anyio.to_thread.run_sync(self._killed, pid, session)
        await session.settled()
        return took

    def _killed(self, pid: int, session: Session | None) -> float:
        """In a thread: from the stop until the kernel says that the process is dead."""
        descriptor = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            began = time.perf_counter()
            if session is not None:
                session.interrupt_now(by="bench")
            else:
                self.service.say("/stop", VICTIM)
            if not poll.poll(DEAD_S * 1000):
                raise AssertionError(f"the command lives {DEAD_S:g} s after its stop")
            return time.perf_counter() - began
        finally:
            os.close(descriptor)

    async def _until_told(self) -> None:
        with anyio.fail_after(60):
            while True:
                shown = await anyio.to_thread.run_sync(
                    self.service.call, "GET", f"/control/shown?chat={VICTIM}"
                )
                if sum("Stopped in" in text for text in shown) >= self.stops:
                    return
                await anyio.sleep(0.05)

    async def round_trip(self) -> float:
        began = time.perf_counter()
        await self.channel.check()
        return time.perf_counter() - began


async def measure(report: Report, asked: Service, place: Path) -> None:
    work, home = place / "work", place / "home"
    work.mkdir()
    home.mkdir(mode=0o700)
    config = load_config({"BARGEIN_CHECKPOINTS_ENABLED": "0"})
    agent = Agent(model(), workspace=work, mode="full", titles=False)
    rows = SqliteRows.of_home(home)
    chats = [str(50_000 + number) for number in range(CHATS)]
    ledger = Ledger(rows, "bench")
    nobody = PairingCode(b"", ChatKind.PRIVATE, 0.0)
    for chat in (*chats, VICTIM):
        await ledger.pair(Pairing(chat, chat, ChatKind.PRIVATE, "Somebody", 0.0), nobody)
    async with Engine(agent, home=home, config=config) as engine:
        channel = TelegramChannel("bench", TOKEN, api=asked.address)
        bench = Bench(engine, channel, asked)
        async with anyio.create_task_group() as tasks:
            hub = ChannelHub(engine.core, rows)
            tasks.start_soon(hub.run, channel)
            await anyio.to_thread.run_sync(asked.say, "Talk", *chats)
            await load(report, asked)
            await compare(report, bench, work)
            await still_streams(report, asked)
            left = sum(status.unhandled for status in hub.statuses().values())
            report.figure("updates and events that wait at the end", left, unit="")
            tasks.cancel_scope.cancel()
    rows.close()


async def load(report: Report, asked: Service) -> None:
    """Until every chat streams; and how many calls all of them make."""
    with anyio.fail_after(120):
        while True:
            first = await anyio.to_thread.run_sync(asked.call, "GET", "/control/calls")
            await anyio.sleep(STEADY_S)
            counted = await anyio.to_thread.run_sync(asked.call, "GET", "/control/calls")
            if counted["chats"] >= CHATS:
                break
    per_s = counted["calls"] / (counted["at"] - first["at"])
    report.figure("chats that stream", counted["chats"], unit="")
    report.figure("calls a second to them", per_s, unit="")


async def still_streams(report: Report, asked: Service) -> None:
    """What was measured was measured under the load."""
    await anyio.to_thread.run_sync(asked.call, "GET", "/control/calls")
    await anyio.sleep(STEADY_S)
    counted = await anyio.to_thread.run_sync(asked.call, "GET", "/control/calls")
    report.figure("chats that stream at the end", counted["chats"], unit="")
    if counted["chats"] < CHATS:
        report.violation(f"only {counted['chats']} of {CHATS} chats streamed to the end")


async def compare(report: Report, bench: Bench, work: Path) -> None:
    own = await bench.engine.session(OWN)
    ours: list[float] = []
    engines: list[float] = []
    trips: list[float] = []
    for number in range(ROUNDS + 2):
        taken = (
            await bench.stop_by_engine(work, own),
            await bench.stop_from_chat(work),
            await bench.round_trip(),
        )
        if number >= 2:
            for samples, value in zip((engines, ours, trips), taken, strict=True):
                samples.append(value)
    for percent in PERCENTS:
        engine_s, trip_s = percentile(engines, percent), percentile(trips, percent)
        report.figure(f"the engine's own stop until the command is dead, p{percent}", engine_s)
        report.figure(f"a round trip, p{percent}", trip_s)
        report.figure(
            f"/stop until the command is dead, p{percent}",
            percentile(ours, percent),
            bar=2 * engine_s + trip_s,
        )
    for name, samples in (("engine", engines), ("ours", ours), ("round trip", trips)):
        report.raw.append({"candidate": name, "samples_s": samples})
    session = session_id_of("bench", ChatAddress(VICTIM))
    state = await (await bench.engine.session(session)).state()
    if state.waiting:
        report.violation(f"{len(state.waiting)} messages of the stopped chat still wait")


def main() -> int:
    report = Report("channels")
    with tempfile.TemporaryDirectory() as place, service() as asked:
        anyio.run(
            measure,
            report,
            asked,
            Path(place),
            backend_options={"loop_factory": uvloop.new_event_loop},
        )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
