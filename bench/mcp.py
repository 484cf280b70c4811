"""Calls to an MCP server and their stops, against the client of the official SDK.

Both clients speak to the same program, written with that SDK, each over pipes of its own. Ours goes
through the registry of tools and the pipeline of calls; the SDK's through `Client.call_tool`. A
stop is measured from the cancel until the caller is back: ours has told the server by then and
knows whether it still responds, the SDK's has told it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from mcp import StdioServerParameters
from mcp.client import Client

from bargein.cancel import CancelSource, Cause
from bargein.contracts.tool import CallStatus
from bargein.mcp import McpServer
from bench.measure import Report, interleave_async
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


async def stop_ours(home: House, tool: str = "wait") -> float:
    with CancelSource("call") as source:
        began = 0.0

        async def stop() -> None:
            nonlocal began
            await anyio.sleep(UNDER_WAY_S)
            began = time.perf_counter()
            source.cancel(Cause.USER_STOP)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            result = await home.call(f"mcp__sdk__{tool}", {"seconds": 2}, source=source)
            took_s = time.perf_counter() - began
        assert result.status is CallStatus.STOPPED, result
        return took_s


async def stop_theirs(client: Client) -> float:
    began = 0.0
    with anyio.CancelScope() as scope:

        async def stop() -> None:
            nonlocal began
            await anyio.sleep(UNDER_WAY_S)
            began = time.perf_counter()
            scope.cancel()

        stopping = asyncio.create_task(stop())
        await client.call_tool("wait", {"seconds": 2})
    took_s = time.perf_counter() - began
    await stopping
    return took_s


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
        stops = {"sdk": lambda: stop_theirs(client), "bargein": lambda: stop_ours(home)}
        samples = await interleave_async(stops, rounds=STOPS, warm_up_rounds=2)
        report.compare("a stop, server listens", samples, baseline="sdk", ours="bargein", bar=1.5)
        slowest = 0.0
        for _ in range(DEAF_STOPS):
            slowest = max(slowest, await stop_ours(home, "block"))
            # The server blocks for two seconds; the next call waits for it.
            await home.call("mcp__sdk__add", {"a": 1, "b": 2})
        report.figure("a stop, server does not listen, slowest", slowest, bar=1.0)


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
        "Our stop ends with the server's answer to a check; the SDK's when the notice is written."
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
