"""A program whose agent has a tool that starts processes by itself, and which then ends as it is
told: `own_process_child.py FOLDER ENDING`. A tool of its own, so nothing is contained before."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from bargein.models.script import Call
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from tests.tools.own_ways import below


def build(folder: str) -> int:
    """Start three that stay."""
    return subprocess.run(below(folder), shell=True, check=False).returncode


async def main(folder: str, ending: str) -> None:
    model = ScriptedModel([[Call("build", {"folder": folder})]])
    config = Config(Path(folder).parent, ModelSettings(), {})
    async with Engine(Agent(model=model, tools=[build]), store="memory", config=config) as engine:
        session = await engine.session("alice")
        await session.send("go")
        while len(os.listdir(folder)) < 3:  # noqa: ASYNC110 - other processes, seen from outside
            await asyncio.sleep(0.005)
        os.write(1, b"ready\n")
        if ending == "leaves":
            return
        if ending == "raises":
            raise SystemExit(3)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
