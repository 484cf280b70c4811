"""Runs tools in their own process, where a stop can kill what it could not stop in a thread.

A contained child imports the function by its name. The child's output is shown live; the function's
result or exception comes back over a link.
"""

import os
import sys
from typing import Any

import msgspec

from bargein.calls.text import one_line
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, CallStatus
from bargein.errors import BargeinError
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool
from bargein.tools.frames import Message
from bargein.tools.link import ChildLink, HungUp
from bargein.tools.output import as_read, exit_text, live_output
from bargein.tools.tool_environment import ToolEnvironment, child_argv, wait_and_sweep


class FunctionFailed(BargeinError):
    """The function raised, or its process died. The message is for the model."""


class ProcessIsolation:
    """Pass its `run` to a `ToolRegistry` as `isolated`."""

    def __init__(self, tool_environment: ToolEnvironment) -> None:
        self._tool_environment = tool_environment

    async def run(
        self, tool: Tool[..., Any], values: dict[str, Any], context: ToolContext
    ) -> CallResult:
        answers: list[Message] = []

        async def answer(message: Message, hung_up: HungUp) -> Message:
            answers.append(message)
            return {}

        async with ChildLink(answer, lambda: 0.0) as link:
            live = live_output(context.show_live, context.token.clock.now)
            process = await self._tool_environment.start(
                child_argv("isolation_child", with_site_packages=True),
                context,
                with_input=True,
                on_output=live,
            )
            context.output_from(lambda: as_read(process.output.text()))
            given = {**_where(tool), "arguments": _encoded(values), **link.address}
            try:
                exited, _ = await wait_and_sweep(process, context, feed=msgspec.json.encode(given))
            finally:
                live.finish()
        output = as_read(process.output.text())
        if not answers:
            words = f"The process of {tool.name} ended without a result ({exit_text(exited)})."
            raise FunctionFailed(f"{words}\n{output}")
        return _result(answers[0])


def _where(tool: Tool[..., Any]) -> dict[str, object]:
    """Tells the child where to find the function."""
    function = tool.function
    is_main = function.__module__ == "__main__"
    return {
        "name": tool.name,
        "module": function.__module__,
        "main_file": str(getattr(sys.modules["__main__"], "__file__", "")) if is_main else "",
        "qualified_name": getattr(function, "__qualname__", tool.name),
        # Relative entries refer to our working directory, which the child does not share.
        "sys_path": [os.path.abspath(entry) for entry in sys.path],
    }


def _encoded(values: dict[str, Any]) -> str:
    return msgspec.json.encode(values).decode()


def _result(answer: Message) -> CallResult:
    if "error" in answer:
        raise FunctionFailed(str(answer["error"]))
    content = msgspec.convert(answer.get("content"), type=tuple[Text | Image, ...])
    texts = [part.text for part in content if isinstance(part, Text)]
    return CallResult(CallStatus.FINISHED, content, one_line("".join(texts)) or "finished")
