"""The floor: a plain asyncio loop around a chat model, without any framework.

What an afternoon gives: a list of messages a session, a streamed request, tools side by side, sync
tools in a thread, commands in a process group that is killed when the task is cancelled. The two
drivers that use it differ in their HTTP client only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from bench.interruptbench.drivers.base import TaskSystem, block, run_command

MODEL = "interruptbench"
TOOLS: dict[str, dict[str, str]] = {
    "terminal": {"command": "string"},
    "block": {"seconds": "number", "word": "string"},
    "delegate": {"task": "string"},
}


def schema(name: str) -> dict[str, object]:
    properties = {key: {"type": kind} for key, kind in TOOLS[name].items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


class BareSystem(TaskSystem):
    calls: ClassVar = {
        "terminal": {"name": "terminal", "arguments": {"command": "$command"}},
        "block": {"name": "block", "arguments": {"seconds": "$seconds", "word": "$word"}},
        "delegate": {"name": "delegate", "arguments": {"task": "$task"}},
    }
    lacks: ClassVar = {
        "sessions": "a loop keeps no sessions; who may run one when is left to the host",
        "restart": "nothing is kept on disk",
    }

    def __init__(self) -> None:
        super().__init__()
        self._histories: dict[str, list[dict[str, Any]]] = {}

    def events(self, body: dict[str, object]) -> AsyncIterator[str]:
        """The data of each server-sent event of one streamed request."""
        raise NotImplementedError

    async def work(self, session: str, text: str) -> str:
        history = self._histories.setdefault(session, [])
        history.append({"role": "user", "content": text})
        return await self.loop(history)

    async def loop(self, history: list[dict[str, Any]]) -> str:
        while True:
            text, calls = await self.ask(history)
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if not calls:
                history.append(message)
                return text
            history.append({**message, "tool_calls": calls})
            results = await asyncio.gather(*(self.call(each["function"]) for each in calls))
            for call, result in zip(calls, results, strict=True):
                history.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    async def ask(self, history: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
        text, calls = "", list[dict[str, Any]]()
        body = {
            "model": MODEL,
            "stream": True,
            "messages": history,
            "tools": [schema(name) for name in self.tools],
        }
        if not self.tools:
            del body["tools"]
        async for data in self.events(body):
            if data == "[DONE]":
                break
            for choice in json.loads(data)["choices"]:
                text += choice["delta"].get("content") or ""
                calls += choice["delta"].get("tool_calls") or []
        return text, calls

    async def call(self, function: dict[str, str]) -> str:
        arguments = json.loads(function["arguments"])
        if function["name"] == "terminal":
            return await run_command(**arguments)
        if function["name"] == "delegate":
            return await self.loop([{"role": "user", "content": arguments["task"]}])
        return await asyncio.to_thread(block, **arguments)
