"""The `process` tool lists, polls, waits for, writes to and kills background processes.

A stop ends a wait at any time and never touches the process that was waited for.
"""

from typing import Annotated, Any, Literal

import anyio
import msgspec

from bargein.calls.text import one_line
from bargein.calls.words import processes_text
from bargein.cancel import shield
from bargein.contracts.grace import PROCESS_S
from bargein.contracts.permission import Reach
from bargein.contracts.tool import Effect
from bargein.errors import ModelMisbehaved
from bargein.tools.background import Entry, ProcessTable
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Arguments, Tool, tool
from bargein.tools.output import stop_detail

Action = Literal["list", "poll", "wait", "write", "kill"]


def process_tool(table: ProcessTable) -> Tool[..., Any]:
    @tool(
        name="process",
        effect=Effect.UNKNOWN,
        title=lambda arguments: f"process {arguments['action']} {arguments['id']}".strip(),
        example={"action": "poll", "id": "t1_1_1"},
        when_stopped=_when_stopped,
        reach=_reach,
    )
    async def process(
        action: Action,
        context: ToolContext,
        id: str = "",  # noqa: A002 - the word that the model is shown
        input: str = "",  # noqa: A002
        end_input: bool = False,
        timeout_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0,
    ) -> str:
        """Manage background processes.

        Args:
            action: list all; poll one for new output; wait until one ends; write to its input; or
                kill it with everything it started.
            id: Which process; needed for everything but list.
            input: The text to write. A line needs a newline at its end.
            end_input: Close the input after writing.
            timeout_s: Seconds to wait at most.
        """
        if action == "list":
            return _list(table.entries(context.session_id))
        if not id:
            raise ModelMisbehaved(f"{action} needs an id; process(action='list') shows them.")
        entry = table.find(context.session_id, id)
        if action == "poll":
            return _news(entry, context)
        if action == "wait":
            return await _wait(entry, timeout_s, context)
        if action == "write":
            return await _write(entry, input, end_input)
        return await _kill(entry, context)

    return process


def _reach(arguments: Arguments) -> Reach:
    changes = arguments["action"] in ("write", "kill")
    return Reach.ANYTHING if changes else Reach.NOTHING


def _when_stopped(arguments: Arguments) -> str:
    words = "The background processes themselves keep running."
    if arguments["action"] == "write":
        words += " Part of the input may have been written."
    return words


def _list(entries: list[Entry]) -> str:
    lines = [
        f"{entry.id}  {entry.state()}  pid {entry.process.pid}  "
        f"{'' if entry.in_background else 'foreground  '}{one_line(entry.command)}"
        for entry in entries
    ]
    return "\n".join(lines) or "There are no background processes."


def _news(entry: Entry, context: ToolContext) -> str:
    if entry.process.exit is not None and _is_for_the_model(context):
        entry.end_known = True
    news = entry.news()
    return f"{news.rstrip()}\n[{entry.id}: {entry.state()}]" if news.strip() else (
        f"[{entry.id}: {entry.state()}, no new output]"
    )  # fmt: skip


async def _wait(entry: Entry, timeout_s: float, context: ToolContext) -> str:
    with anyio.move_on_after(timeout_s) as waiting:
        await entry.process.wait()
    news = _news(entry, context)
    if waiting.cancelled_caught:
        return f"{news}\n[it is still running after {timeout_s:g} s of waiting]"
    return news


async def _write(entry: Entry, text: str, end_input: bool) -> str:
    if text:
        await entry.process.write(text.encode())
    if end_input:
        entry.process.close_input()
    done = f"Wrote {len(text.encode())} bytes to {entry.id}" + (
        " and closed its input." if end_input else "."
    )
    return f"{done}\n[{entry.state()}]"


async def _kill(entry: Entry, context: ToolContext) -> str:
    """Kills the process. Shielded: a stop of the call waits until the processes are gone."""
    if not entry.process.alive:
        return f"{entry.id} had already ended.\n{_news(entry, context)}"
    entry.killed, entry.end_known = True, _is_for_the_model(context)
    with shield(PROCESS_S):
        report = await entry.process.stop()
        detail = stop_detail(report)
        ended = processes_text(detail.processes) or "nothing was seen"
        lost = (
            f" Could not be ended: {processes_text(detail.survivors)}." if detail.survivors else ""
        )
        news = _news(entry, context)
        return f"Killed {entry.id} in {report.elapsed_ms:.0f} ms: {ended}.{lost}\n{news}"
    # It may still end; then a message says so.
    entry.end_known = False
    return f"{entry.id} did not end within {PROCESS_S:g} s."


def _is_for_the_model(context: ToolContext) -> bool:
    """Whether the model itself reads this call's result, rather than a call that made it."""
    return context.can_detach
