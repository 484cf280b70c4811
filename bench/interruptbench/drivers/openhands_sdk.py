"""OpenHands SDK: one `Conversation` a session, run by `arun()`, ended by `interrupt()`.

Messages may be sent while a conversation runs, and the running loop takes them; so a second message
does not start a second run. Conversations are kept on disk and go on from there after a crash.
"""

# mypy: disable-error-code="import-not-found,misc,no-any-return,no-untyped-call"

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from openhands.sdk import LLM, Agent, Conversation, Tool, register_tool
from openhands.sdk.event import MessageEvent
from openhands.sdk.llm import content_to_str
from openhands.sdk.subagent import register_agent
from openhands.sdk.tool import (
    Action,
    DeclaredResources,
    Observation,
    ToolDefinition,
    ToolExecutor,
)
from openhands.tools.task import TaskToolSet
from openhands.tools.terminal import TerminalTool

from bench.interruptbench.drivers.base import HostedSystem, Stopped, block, serve


class BlockAction(Action):
    seconds: float
    word: str


class BlockObservation(Observation):
    pass


class BlockExecutor(ToolExecutor):
    def __call__(self, action: BlockAction, conversation: object = None) -> BlockObservation:
        said = block(action.seconds, action.word)
        return BlockObservation.from_text(said)


class BlockTool(ToolDefinition):
    name: ClassVar[str] = "block"

    def declared_resources(self, action: Action) -> DeclaredResources:
        """It shares nothing, so calls may run side by side."""
        return DeclaredResources(keys=(), declared=True)

    @classmethod
    def create(cls, conv_state: object = None, **more: Any) -> Sequence[BlockTool]:
        return [
            cls(
                description="Wait, and say a word.",
                action_type=BlockAction,
                observation_type=BlockObservation,
                executor=BlockExecutor(),
            )
        ]


class OpenhandsSystem(HostedSystem):
    package = "openhands-sdk openhands-tools litellm"
    calls: ClassVar = {
        "terminal": {"name": "terminal", "arguments": {"command": "$command", "timeout": 60}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "task", "arguments": {"prompt": "$task", "subagent_type": "child"}},
    }

    lacks: ClassVar = {"inbox": "a message that is sent while a tool runs waits for the tool"}

    def __init__(self) -> None:
        super().__init__()
        self._conversations: dict[str, Any] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sessions: dict[str, str] = {}

    async def open(self) -> None:
        register_tool("block", BlockTool)
        register_agent("child", lambda llm: Agent(llm=llm, tools=[]), "Answers a task.")
        names = {"terminal": TerminalTool.name, "block": "block", "delegate": TaskToolSet.name}
        llm = LLM(
            model="openai/interruptbench",
            base_url=os.environ["OPENAI_BASE_URL"],
            api_key=os.environ["OPENAI_API_KEY"],
            stream=True,
            usage_id="agent",
        )
        tools = [Tool(name=names[name]) for name in self.tools]
        self._agent = Agent(llm=llm, tools=tools, tool_concurrency_limit=4)

    def _conversation(self, session: str) -> Any:
        found = self._conversations.get(session)
        if found is None:
            workspace = Path(self.home) / "work"
            workspace.mkdir(exist_ok=True)
            found = self._conversations[session] = Conversation(
                agent=self._agent,
                workspace=workspace,
                persistence_dir=Path(self.home) / "conversations",
                conversation_id=uuid.uuid5(uuid.NAMESPACE_OID, session),
                visualizer=None,
                token_callbacks=[lambda chunk: None],
                delete_on_close=False,
            )
        return found

    async def answer(self, run: str, session: str, text: str) -> str:
        self._sessions[run] = session
        await self.queue(session, text)
        running = self._running.get(session)
        if running is None or running.done():
            conversation = self._conversation(session)
            running = self._running[session] = asyncio.ensure_future(conversation.arun())
        await asyncio.wait([running])
        running.result()
        conversation = self._conversation(session)
        if conversation.state.execution_status.value == "paused":
            raise Stopped
        return self._said(conversation)

    def _said(self, conversation: Any) -> str:
        events = [each for each in conversation.state.events if isinstance(each, MessageEvent)]
        said = [each.llm_message.content for each in events if each.source == "agent"]
        return " ".join("".join(content_to_str(content)) for content in said[-2:])

    async def halt(self, run: str) -> None:
        self._conversation(self._sessions[run]).interrupt()

    async def queue(self, session: str, text: str) -> None:
        # Sending waits for a lock that a running step may hold, so not on the event loop.
        await asyncio.to_thread(lambda: self._conversation(session).send_message(text))

    async def recover(self, session: str) -> None:
        await self._conversation(session).arun()


if __name__ == "__main__":
    serve(OpenhandsSystem())
