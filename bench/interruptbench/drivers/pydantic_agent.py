"""Pydantic AI: `agent.run` with a `CancellationToken`, commands in its local workspace.

A run that was cancelled hands over what it had said and done so far, and the next one goes on from
there, as its documentation shows. Conversations are kept in its store in memory.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"

from __future__ import annotations

import dataclasses
import timeit
from collections.abc import AsyncIterable
from typing import Any, ClassVar

from pydantic_ai import Agent, CancellationToken, RunCancelled, RunContext
from pydantic_ai.capabilities import LocalWorkspace
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.models.openai import OpenAIChatModel

from bench.interruptbench.drivers.base import HostedSystem, Stopped, block, serve


async def read_events(context: RunContext[None], events: AsyncIterable[object]) -> None:
    """Asking for events makes a run stream."""
    async for _ in events:
        pass


async def terminal(context: RunContext[None], command: str) -> str:
    """Run a command."""
    result = await context.workspace.run(["/bin/sh", "-c", command])
    return str(result.stdout)


class PydanticSystem(HostedSystem):
    package = "pydantic-ai-slim openai"
    calls: ClassVar = {
        "terminal": {"name": "terminal", "arguments": {"command": "$command"}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "delegate", "arguments": {"task": "$task"}},
    }
    lacks: ClassVar = {
        "inbox": "a conversation takes no message while it runs",
        "restart": "its own store is in memory; durable execution needs an engine beside it",
    }

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[str, CancellationToken] = {}
        self._store = InMemoryConversationStore()

    async def open(self) -> None:
        model = OpenAIChatModel("interruptbench")
        self._agent = Agent(model, capabilities=[LocalWorkspace(self.home)])
        child = Agent(model)
        if "terminal" in self.tools:
            self._agent.tool(terminal)
        if "block" in self.tools:
            self._agent.tool_plain(block)
        if "delegate" in self.tools:

            @self._agent.tool
            async def delegate(context: RunContext[None], task: str) -> str:
                """Hand over a task."""
                done = await child.run(task, usage=context.usage, event_stream_handler=read_events)
                return str(done.output)

    async def answer(self, run: str, session: str, text: str) -> str:
        token = self._tokens[run] = CancellationToken()
        known = await self._store.load(session)
        conversation = known or Conversation(conversation_id=session)
        try:
            result = await self._agent.run(
                text,
                conversation=conversation,
                cancellation_token=token,
                event_stream_handler=read_events,
            )
        except RunCancelled as cancelled:
            kept = dataclasses.replace(conversation, messages=cancelled.all_messages())
            await self._store.save(kept)
            raise Stopped from None
        await self._store.save(result)
        return str(result.output)

    async def halt(self, run: str) -> None:
        self._tokens[run].cancel()

    async def check_cost(self) -> float:
        names: dict[str, Any] = {"token": CancellationToken()}
        timer = timeit.Timer("token.cancelled", globals=names)
        return min(timer.repeat(number=100_000, repeat=5)) / 100_000


if __name__ == "__main__":
    serve(PydanticSystem())
