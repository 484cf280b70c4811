"""The OpenAI Agents SDK: `Runner.run_streamed` on a session, ended by `result.cancel()`.

Its documentation asks to read the stream to its end after a cancel, which is what the caller here
does. Its own shell tool needs the Responses API, so commands are run by the bench's tool.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from bench.interruptbench.drivers.base import HostedSystem, Stopped, block, run_command, serve


@function_tool
async def terminal(command: str) -> str:
    """Run a command."""
    return await run_command(command)


@function_tool(name_override="block")
def block_tool(seconds: float, word: str) -> str:
    """Wait, and say a word."""
    return block(seconds, word)


async def ignore(event: object) -> None:
    """The events of a sub-agent; asking for them makes it stream."""


class AgentsSystem(HostedSystem):
    package = "openai-agents openai"
    calls: ClassVar = {
        "terminal": {"name": "terminal", "arguments": {"command": "$command"}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "delegate", "arguments": {"input": "$task"}},
    }
    lacks: ClassVar = {"inbox": "a session takes no message while it runs"}
    notes: ClassVar = {"terminal": "its shell tool needs the Responses API; this is the bench's"}

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, Any] = {}
        self._halted: set[str] = set()

    async def open(self) -> None:
        set_tracing_disabled(True)
        model = OpenAIChatCompletionsModel("interruptbench", openai_client=AsyncOpenAI())
        child = Agent(name="child", model=model)
        known = {
            "terminal": terminal,
            "block": block_tool,
            "delegate": child.as_tool("delegate", "Hand over a task.", on_stream=ignore),
        }
        self._agent = Agent(name="bench", model=model, tools=[known[name] for name in self.tools])
        self._database = Path(self.home) / "sessions.db"

    async def answer(self, run: str, session: str, text: str) -> str:
        kept = SQLiteSession(session, self._database)
        result = self._results[run] = Runner.run_streamed(self._agent, text, session=kept)
        async for _ in result.stream_events():
            pass
        kept.close()
        if run in self._halted:
            raise Stopped
        return str(result.final_output)

    async def halt(self, run: str) -> None:
        self._halted.add(run)
        self._results[run].cancel()


if __name__ == "__main__":
    serve(AgentsSystem())
