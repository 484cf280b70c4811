"""A program with an engine whose one call runs as a task of a server, until it is killed."""

from __future__ import annotations

import sys

import anyio

from bargein import Agent, Engine
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.tools import Policy
from tests.mcp.test_tasks import tasks_server
from tests.session.world import CONFIG


async def main(home: str, folder: str) -> None:
    model = ScriptedModel([[Call("mcp__jobs__slow", {})], [Say("never")]])
    agent = Agent(model, mcp=[tasks_server(folder)], policy=Policy())
    async with Engine(agent, home=home, config=CONFIG) as engine:
        session = await engine.session("alice")
        await (await session.send("go")).result()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
