"""The `python` tool runs code in its own contained process; the code can call the other tools.

Each such call runs below this call's token and under the same policy, so a stop ends the code, the
tools it called and everything they started, at any depth. If the code dies, the calls that it waits
for are stopped.
"""

import asyncio
from functools import partial
from typing import Annotated, Any

import msgspec

from bargein.calls.words import text_result
from bargein.cancel import Cause, Reason
from bargein.contracts.model import Text
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.process import Exit, Process
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Arguments, Tool, tool
from bargein.tools.frames import Message
from bargein.tools.link import ChildLink, HungUp
from bargein.tools.output import as_read, exit_text, limits_text, live_output, swept_text
from bargein.tools.sandboxing import (
    can_be_confined,
    command_is_over,
    leaves_sandbox,
    offering_outside,
    with_hint,
)
from bargein.tools.tool_environment import ToolEnvironment, child_argv, patience_for, wait_and_sweep


def python_tool(tool_environment: ToolEnvironment) -> Tool[..., Any]:
    settings = tool_environment.settings

    def limit_of(arguments: Arguments) -> float:
        asked: float | None = arguments["timeout_s"]
        return min(asked or settings.python_timeout_s, settings.command_timeout_s_max)

    @tool(
        asks=partial(leaves_sandbox, tool_environment),
        confined=partial(can_be_confined, tool_environment),
        effect=Effect.UNKNOWN,
        timeout_s=limit_of,
        subject="code",
        granted_by=("code",),
        title=lambda arguments: f"python: {arguments['code']}",
        example={"code": "from bargein_tools import terminal\nprint(terminal('ls'))"},
    )
    @offering_outside(tool_environment)
    async def python(
        code: str,
        context: ToolContext,
        timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None,
        outside: bool = False,
    ) -> CallResult:
        """Run Python code in a fresh process, in the workspace.

        You get what it prints and the value of its last expression. The other tools are functions
        of the module bargein_tools: `from bargein_tools import terminal, read_file`; they return
        text and raise ToolFailed.

        Args:
            code: The code.
            timeout_s: Seconds after which it is stopped.
            outside: Leave the sandbox, in which code can write only to the workspace and /tmp and
                may have no network. The user has to approve.
        """
        callbacks = _Callbacks(context)
        async with ChildLink(callbacks.answer, patience_for(context)) as link:
            live = live_output(context.show_live, context.token.clock.now)
            process = await tool_environment.start(
                child_argv("python_child", with_site_packages=True),
                context,
                with_input=True,
                on_output=live,
                outside=outside,
                besides=[link.folder],
            )
            context.output_from(lambda: as_read(process.output.text()))
            given = {"code": code, "tools": callbacks.functions(), **link.address}
            feed = msgspec.json.encode(given)
            try:
                exited, report = await wait_and_sweep(process, context, feed=feed)
            finally:
                live.finish()
                command_is_over(tool_environment, process)
        result = _result(process, callbacks.value, exited, swept_text(process, report))
        return with_hint(result, process, tool_environment.sandbox)

    return python


class _Callbacks:
    """Answers the requests of the code in the child."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self.value: str | None = None

    def functions(self) -> list[dict[str, object]]:
        """The tools, each with the names of its parameters in order."""
        return [
            {
                "name": schema.name,
                "description": schema.description,
                "parameters": list(msgspec.json.decode(schema.parameters).get("properties", {})),
            }
            for schema in self._context.schemas()
        ]

    async def answer(self, message: Message, hung_up: HungUp) -> Message:
        if "value" in message:
            self.value = str(message["value"])
            return {}
        result = await self._call(message, hung_up)
        text = "".join(part.text for part in result.content if isinstance(part, Text))
        return {"status": result.status.value, "is_error": result.is_error, "text": text}

    async def _call(self, message: Message, hung_up: HungUp) -> CallResult:
        name, arguments = str(message.get("call")), message.get("arguments")
        with self._context.token.child("call back") as source:

            async def stop_when_hung_up() -> None:
                await hung_up()
                source.cancel(Reason(Cause.CLIENT_GONE, "the code that called it is gone"))

            watching = asyncio.ensure_future(stop_when_hung_up())
            try:
                given = arguments if isinstance(arguments, dict) else {}
                return await self._context.call(name, given, token=source.token)
            except (TypeError, ValueError) as error:
                return text_result(CallStatus.NOT_STARTED, f"The arguments cannot be sent: {error}")
            finally:
                watching.cancel()


def _result(process: Process, value: str | None, exited: Exit, swept: str) -> CallResult:
    output = as_read(process.output.text())
    parts = [output.rstrip("\n")] if output.strip() else []
    if value is not None:
        parts.append(f"=> {value}")
    if exited.code != 0:
        parts.append(f"[{exit_text(exited)}]")
    text = ("\n".join(parts) or "(no output)") + limits_text(process, exited) + swept
    status = CallStatus.FINISHED if exited.code == 0 else CallStatus.FAILED
    return text_result(status, text, exit_text(exited))
