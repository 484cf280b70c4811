"""LangGraph: `create_agent` over a checkpointer, streamed, stopped by cancelling its task.

Commands run in the shell of its own middleware, which is given a minute. After a crash a thread
goes on as documented: it is invoked with no input.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from langchain.agents import create_agent
from langchain.agents.middleware import HostExecutionPolicy, ShellToolMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.interruptbench.drivers.base import TaskSystem, block, serve


@tool("block")
def block_tool(seconds: float, word: str) -> str:
    """Wait, and say a word."""
    return block(seconds, word)


class LanggraphSystem(TaskSystem):
    package = "langgraph langchain langchain-openai"
    calls: ClassVar = {
        "terminal": {"name": "shell", "arguments": {"command": "$command"}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "delegate", "arguments": {"task": "$task"}},
    }
    lacks: ClassVar = {"inbox": "a thread takes no message while it runs"}

    async def open(self) -> None:
        model = ChatOpenAI(model="interruptbench", streaming=True)
        child = create_agent(model)

        @tool
        async def delegate(task: str) -> str:
            """Hand over a task."""
            done = await child.ainvoke({"messages": [{"role": "user", "content": task}]})
            return str(done["messages"][-1].text)

        known = {"block": block_tool, "delegate": delegate}
        middleware = []
        if "terminal" in self.tools:
            policy = HostExecutionPolicy(command_timeout=60)
            shell = ShellToolMiddleware(Path(self.home) / "work", execution_policy=policy)
            middleware.append(shell)
        self._saver = AsyncSqliteSaver.from_conn_string(str(Path(self.home) / "threads.db"))
        self._agent = create_agent(
            model,
            [known[name] for name in self.tools if name in known],
            middleware=middleware,
            checkpointer=await self._saver.__aenter__(),
        )

    async def work(self, session: str, text: str) -> str:
        return await self._read(session, {"messages": [{"role": "user", "content": text}]})

    async def _read(self, session: str, given: dict[str, Any] | None) -> str:
        config = {"configurable": {"thread_id": session}}
        text = ""
        async for chunk, _ in self._agent.astream(given, config, stream_mode="messages"):
            if type(chunk).__name__ == "AIMessageChunk":
                text += str(chunk.text)
        return text

    async def recover(self, session: str) -> None:
        state = await self._agent.aget_state({"configurable": {"thread_id": session}})
        if state.next:
            await self._read(session, None)

    async def close(self) -> None:
        await self._saver.__aexit__(None, None, None)


if __name__ == "__main__":
    serve(LanggraphSystem())
