"""Calls to an MCP server and their stops, against the client of the official SDK.

Both clients speak to the same program, written with that SDK, each over pipes of its own. Ours goes
through the registry of tools and the pipeline of calls; the SDK's through `Client.call_tool`.

A stop is measured from the cancel until three moments: the server's tool is stopped; the caller,
which is the code that awaits the call, goes on; it is known whether the server still responds. Ours
is an agent in a turn of an engine. It goes on at once, while the call's own task tells the server,
and the receipt has what was learnt. The SDK's caller knows nothing when it goes on, so it asks.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
from mcp import StdioServerParameters
from mcp.client import Client

from bargein import Engine
from bargein.contracts.model import ModelRequest
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallStatus
from bargein.mcp import McpServer
from bargein.mcp.eras import STATELESS_VERSION
from bargein.models.script import Call
from bargein.models.scripted import ScriptedModel
from bargein.session.any_session import AnySession
from bargein.session.turn import Turn
from bench.measure import Report, Samples, interleave_async
from tests.mcp.harness import SERVERS, House, house, sdk_server
from tests.process import zoo

ROUNDS = 200
STOPS = 60
DEAF_STOPS = 5
STARTS = 200
AT_ONCE = 10
UNDER_WAY_S = 0.02
"""How long a call runs before it is stopped."""

NOTHING_LOADED = """
import anyio, sys
from bargein import Agent, Engine
from bargein.models.scripted import ScriptedModel
from bargein.models.script import Say
async def main():
    async with Engine(Agent(ScriptedModel([[Say("x")]])), store="memory") as engine:
        await (await (await engine.session("a")).send("x")).result()
anyio.run(main)
print(sum(name.startswith("bargein.mcp") for name in sys.modules))
"""


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def call_ours(home: House) -> float:
    async def once() -> None:
        result = await home.call("mcp__sdk__add", {"a": 1, "b": 2})
        assert result.status is CallStatus.FINISHED

    return await timed(once)


async def call_theirs(client: Client) -> float:
    return await timed(lambda: client.call_tool("add", {"a": 1, "b": 2}))


class StopSamples:
    """Stops of both clients. `back` is when the code that awaits the call goes on; `heard` is when
    the server's tool was stopped, by the server's own clock, which is the same; `known` is when it
    is known whether the server still responds."""

    def __init__(self, folder: Path) -> None:
        self.back: Samples = {"sdk": [], "bargein": []}
        self.heard: Samples = {"sdk": [], "bargein": []}
        self.known: Samples = {"sdk": [], "bargein": []}
        self._folder = folder
        self._number = 0

    def new_file(self) -> str:
        self._number += 1
        return str(self._folder / str(self._number))

    async def add(self, name: str, stop: Stop, when: str) -> float:
        heard_at = await _time_in(when)
        self.heard[name].append(heard_at - stop.cancelled_at)
        self.back[name].append(stop.back_at - stop.cancelled_at)
        self.known[name].append(stop.known_at - stop.cancelled_at)
        return stop.known_at - stop.cancelled_at


async def _time_in(path: str) -> float:
    """When the server wrote that its tool was stopped; it does so just after."""
    with anyio.fail_after(10):
        while True:
            text = await anyio.Path(path).read_text() if await anyio.Path(path).exists() else ""
            if text:
                return float(text)
            await anyio.sleep(0.001)


@dataclass
class Stop:
    cancelled_at: float = 0.0
    back_at: float = 0.0
    known_at: float = 0.0


class OurAgent:
    """An agent of an engine that makes one call a turn. It notes when it is back from it."""

    def __init__(self, home: House) -> None:
        self._home = home
        self.began = anyio.Event()
        self.back_at = 0.0

    async def __call__(self, turn: Turn) -> None:
        tool, _, arguments = turn.messages[0].text.partition(" ")
        model = ScriptedModel([[Call(tool, json.loads(arguments))]])
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        self.began.set()
        try:
            await turn.run_calls(self._home.registry, asked.calls)
        finally:
            self.back_at = time.monotonic()

    async def stop(self, session: AnySession, tool: str, arguments: dict[str, object]) -> Stop:
        """Stops a turn whose call is under way. The receipt says what is known of the server."""
        self.began = anyio.Event()
        await session.send(f"mcp__sdk__{tool} {json.dumps(arguments)}")
        await self.began.wait()
        await anyio.sleep(UNDER_WAY_S)
        stop = Stop(time.monotonic())
        receipt = await session.interrupt()
        stop.known_at, stop.back_at = time.monotonic(), self.back_at
        (step,) = (step for step in receipt.steps if step.kind is StepKind.TOOL)
        assert step.detail is not None, receipt
        assert "MCP server sdk told" in step.detail.told, receipt
        return stop


async def stop_theirs(client: Client, when: str) -> Stop:
    """The SDK's client: it is back when the notice is on its way, and then asks for what our
    receipt says."""
    stop = Stop()

    async def cancel_soon() -> None:
        await anyio.sleep(UNDER_WAY_S)
        stop.cancelled_at = time.monotonic()
        scope.cancel()

    with anyio.CancelScope() as scope:
        stopping = asyncio.create_task(cancel_soon())
        await client.call_tool("wait_until_stopped", {"when": when})
    stop.back_at = time.monotonic()
    await stopping
    await client.session.send_discover(STATELESS_VERSION)
    stop.known_at = time.monotonic()
    return stop


async def measure_stops(
    report: Report, client: Client, agent: OurAgent, session: AnySession, folder: Path
) -> None:
    stops = StopSamples(folder)

    async def ours() -> float:
        when = stops.new_file()
        stop = await agent.stop(session, "wait_until_stopped", {"when": when})
        return await stops.add("bargein", stop, when)

    async def theirs() -> float:
        when = stops.new_file()
        return await stops.add("sdk", await stop_theirs(client, when), when)

    await interleave_async({"bargein": ours, "sdk": theirs}, rounds=STOPS, warm_up_rounds=2)
    found = {
        "its tool is stopped": stops.heard,
        "caller back": stops.back,
        "it is known that it responds; our receipt": stops.known,
    }
    for what, samples in found.items():
        name = f"a stop, server listens: {what}"
        report.compare(name, samples, baseline="sdk", ours="bargein", bar=1.5, percents=(50, 95))


async def measure_deaf_stops(
    report: Report, home: House, agent: OurAgent, session: AnySession
) -> None:
    stops = []
    for _ in range(DEAF_STOPS):
        stops.append(await agent.stop(session, "block", {"seconds": 2}))
        # The server blocks for two seconds; the next call waits for it.
        await home.call("mcp__sdk__add", {"a": 1, "b": 2})
    name = "a stop, server does not listen, slowest"
    back_s = max(each.back_at - each.cancelled_at for each in stops)
    known_s = max(each.known_at - each.cancelled_at for each in stops)
    report.figure(f"{name}: caller back", back_s, bar=1.0)
    report.figure(f"{name}: our receipt", known_s, bar=1.0)


async def survivors() -> int:
    """Of servers that start, are stopped or die: wrapped as npx does, forked into sessions of their
    own, deaf to the end of their input."""
    chosen = random.Random(21)
    mark = zoo.new_mark()
    left = 0
    for _ in range(STARTS // AT_ONCE):
        servers = []
        for at in range(AT_ONCE):
            kind = chosen.choice(["plain", "modern", "leaves_child", "ignores_end"])
            argv = [sys.executable, "-I", "-S", str(SERVERS / "bad.py"), kind]
            if chosen.random() < 0.5:
                argv = ["sh", "-c", '"$@"; exit 0', "wrapper", *argv]
            servers.append(McpServer(f"s{at}", argv[0], argv[1:]))
        async with house(*servers, mark=mark) as home:
            await home.prepare()
            for at in range(0, AT_ONCE, 2):
                await home.call(f"mcp__s{at}__fork", session=f"s{at}")
        left += len(zoo.alive(mark))
    return left


async def measure(report: Report) -> None:
    parameters = StdioServerParameters(command=sys.executable, args=[str(SERVERS / "sdk.py")])
    async with Client(parameters) as client, house(sdk_server(), folder=Path.cwd()) as home:
        await home.prepare()
        names = {"sdk": lambda: call_theirs(client), "bargein": lambda: call_ours(home)}
        samples = await interleave_async(names, rounds=ROUNDS, warm_up_rounds=5)
        report.compare(
            "a call", samples, baseline="sdk", ours="bargein", bar=1.2, percents=(50, 95)
        )
        samples = await interleave_async(names, rounds=ROUNDS // 4, pause_s=0.03)
        report.compare("a call, paced", samples, baseline="sdk", ours="bargein", bar=1.2)
        agent = OurAgent(home)
        with tempfile.TemporaryDirectory() as folder:
            async with Engine(agent, store="memory") as engine:
                session = await engine.session("bench")
                await measure_stops(report, client, agent, session, Path(folder))
                await measure_deaf_stops(report, home, agent, session)


def main() -> int:
    report = Report("mcp")
    anyio.run(measure, report)
    left = anyio.run(survivors)
    report.figure(f"survivors of {STARTS} starts and stops", left, unit="processes", bar=0)
    if left:
        report.violation(f"{left} processes of servers were left")
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_LOADED], check=True, capture_output=True, text=True
    )
    loaded = int(done.stdout)
    report.figure("modules of MCP loaded by an agent without servers", loaded, unit="", bar=0)
    report.note(
        f"{ROUNDS} calls and {STOPS} stops each, in random order, over pipes to the same program. "
        "The caller of a stopped call is the code that awaits it: an agent in a turn, and the "
        "SDK's caller. After it the SDK's asks whether the server still responds, as our receipt "
        "says."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
