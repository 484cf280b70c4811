"""Hermes Agent: one `AIAgent` a session, run on a pool of threads, stopped by `agent.interrupt()`.

The program around it does what Hermes' own terminal program does: a message that is to interrupt
goes to `agent.interrupt(message)`; when the run is back it is sent as the next one, and a flag
that came too late for its run is cleared first. Sessions are kept in its own database.
"""

# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

import asyncio
import os
import threading
import timeit
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from gateway.session_context import declare_stateless_channel
from hermes_state import SessionDB
from run_agent import AIAgent
from tools.interrupt import is_interrupted
from tools.registry import registry

from bench.interruptbench.drivers.base import HostedSystem, Stopped, block, serve

THREADS = 100
BLOCK = {
    "name": "block",
    "description": "Wait, and say a word.",
    "parameters": {
        "type": "object",
        "properties": {"seconds": {"type": "number"}, "word": {"type": "string"}},
        "required": ["seconds", "word"],
    },
}
TOOLSETS = {"terminal": "terminal", "block": "bench", "delegate": "delegation"}


class HermesSystem(HostedSystem):
    package = "hermes-agent openai"
    calls: ClassVar = {
        "terminal": {"name": "terminal", "arguments": {"command": "$command"}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "delegate_task", "arguments": {"goal": "$task"}},
    }
    lacks: ClassVar = {"inbox": "AIAgent takes no message while it runs; its programs keep a slot"}

    def __init__(self) -> None:
        super().__init__()
        self._agents: dict[str, AIAgent] = {}
        self._histories: dict[str, list[dict[str, Any]]] = {}
        self._sessions: dict[str, str] = {}
        self._locks: dict[str, threading.Lock] = {}

    async def open(self) -> None:
        os.environ["HERMES_HOME"] = self.home
        registry.register(
            name="block",
            toolset="bench",
            schema=BLOCK,
            handler=lambda arguments, **_: block(**arguments),
        )
        self._database = SessionDB(Path(self.home) / "state.db")
        self._pool = ThreadPoolExecutor(THREADS)

    def _agent(self, session: str) -> AIAgent:
        """The session's agent; made where it runs, because that takes a while."""
        with self._locks.setdefault(session, threading.Lock()):
            agent = self._agents.get(session) or self._make(session)
            self._agents[session] = agent
        return agent

    def _make(self, session: str) -> AIAgent:
        return AIAgent(
            base_url=os.environ["OPENAI_BASE_URL"],
            api_key=os.environ["OPENAI_API_KEY"],
            model="interruptbench",
            provider="custom",
            quiet_mode=True,
            enabled_toolsets=[TOOLSETS[name] for name in self.tools] or ["bench"],
            session_id=session,
            session_db=self._database,
            skip_context_files=True,
            skip_memory=True,
        )

    async def answer(self, run: str, session: str, text: str) -> str:
        self._sessions[run] = session

        def work() -> dict[str, Any]:
            # This program hears nothing after a run is over; sub-agents then run inside of it.
            declare_stateless_channel()
            return self._agent(session).run_conversation(
                text,
                conversation_history=self._histories.get(session),
                stream_callback=lambda delta: None,
            )

        result = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        self._histories[session] = result["messages"]
        if result.get("interrupted"):
            raise Stopped
        if result.get("failed") or result.get("error"):
            raise RuntimeError(str(result.get("error")))
        return str(result["final_response"])

    async def halt(self, run: str) -> None:
        agent = self._agents.get(self._sessions[run])
        if agent is not None:
            agent.interrupt()

    async def redirect(self, run: str, session: str, text: str) -> str:
        current = self._current.get(session, "")
        over = self._under_way.get(current)
        agent = self._agents.get(session)
        if over is not None and agent is not None:
            agent.interrupt(text)
            await over.wait()
            agent.clear_interrupt()
        return await self.run(run, session, text)

    async def recover(self, session: str) -> None:
        """As `hermes --resume` does: the history comes from the database."""
        history = self._database.get_messages_as_conversation(session)
        self._histories[session] = history

    async def check_cost(self) -> float:
        return min(timeit.repeat(is_interrupted, number=100_000, repeat=5)) / 100_000


if __name__ == "__main__":
    serve(HermesSystem())
