"""Bargein, through its public names. Sessions are kept on disk, as they are by default."""

from __future__ import annotations

import os
import timeit
from pathlib import Path
from typing import ClassVar

from bargein import Agent, CancelSource, Engine, is_interrupted, tool
from bargein.cancel import as_current
from bench.interruptbench.drivers.base import Stopped, System, block, serve


@tool(name="block")
def block_tool(seconds: float, word: str) -> str:
    """Wait, and say a word.

    Args:
        seconds: How long.
        word: Which.
    """
    return block(seconds, word)


class BargeinSystem(System):
    package = "bargein"
    calls: ClassVar = {
        "terminal": {"name": "terminal", "arguments": {"command": "$command"}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "delegate", "arguments": {"tasks": [{"task": "$task"}]}},
    }

    async def open(self) -> None:
        workspace = Path(self.home) / "work"
        workspace.mkdir(parents=True, exist_ok=True)
        agent = Agent(
            model=f"openai:interruptbench@{os.environ['OPENAI_BASE_URL']}",
            tools=[block_tool] if "block" in self.tools else [],
            workspace=workspace if "terminal" in self.tools else None,
            sub_agents={} if "delegate" in self.tools else None,
        )
        self._engine = Engine(agent, home=Path(self.home) / "data")
        await self._engine.__aenter__()

    async def run(self, run: str, session: str, text: str) -> str:
        return await self._send(session, text, "queue")

    async def redirect(self, run: str, session: str, text: str) -> str:
        return await self._send(session, text, "interrupt")

    async def _send(self, session: str, text: str, mode: str) -> str:
        sent = await (await self._engine.session(session)).send(text, mode=mode)
        result = await sent.result()
        if result.outcome.value != "completed":
            raise Stopped
        return result.text

    async def stop(self, run: str, session: str) -> None:
        await (await self._engine.session(session)).interrupt()

    async def queue(self, session: str, text: str) -> None:
        await (await self._engine.session(session)).send(text, mode="queue")

    async def recover(self, session: str) -> None:
        """Opening the engine has done it: what was accepted and not taken runs by itself."""
        await (await self._engine.session(session)).settled()

    async def check_cost(self) -> float:
        with as_current(CancelSource("bench").token):
            return min(timeit.repeat(is_interrupted, number=100_000, repeat=5)) / 100_000

    async def close(self) -> None:
        await self._engine.__aexit__(None, None, None)


if __name__ == "__main__":
    serve(BargeinSystem())
