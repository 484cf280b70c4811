"""Runs a tool's function: in the call's task, in a thread, or in its own process.

The pipeline owns the call's task and abandons it if the function does not stop. A thread is
abandoned by its own ladder. The hold on the call's resources learns when the work really began and
really ended; for abandoned work that is after the call.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from bargein.calls.pipeline import CallAbandoned
from bargein.calls.words import finished
from bargein.cancel import Cancelled, run_thread
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.contracts.tool import CallNotes, CallResult
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool
from bargein.tools.resources import ResourceHold

Isolated = Callable[[Tool[..., Any], dict[str, Any], ToolContext], Any]
"""Runs a sync function in a process of its own; `isolation.ProcessIsolation.run`."""


async def run_function(
    tool: Tool[..., Any],
    values: dict[str, Any],
    context: ToolContext,
    *,
    record: CallNotes,
    hold: ResourceHold,
    isolated: Isolated | None,
) -> CallResult:
    """Returns the function's result. Raises what the function raised, `Cancelled` if it was
    stopped, and `CallAbandoned` if its thread was abandoned."""
    if tool.options.isolation == "process":
        assert isolated is not None
        process = isolated
        return finished(await _in_task(lambda: process(tool, values, context), record, hold))
    filled = {**values, **_filled(tool, context)}
    run = _in_task if tool.is_async else partial(_in_thread, tool)
    return finished(await run(lambda: tool.function(**filled), record, hold))


def _filled(tool: Tool[..., Any], context: ToolContext) -> dict[str, Any]:
    filled = tool.signature.filled
    return {name: context.token if kind == "token" else context for name, kind in filled.items()}


async def _in_task(start: Callable[[], Any], record: CallNotes, hold: ResourceHold) -> Any:
    hold.work_began()
    try:
        with record.token.scope():
            record.token.check()
            record.begin()
            return await start()
        raise Cancelled(record.token)
    finally:
        hold.work_ended()


async def _in_thread(
    tool: Tool[..., Any], start: Callable[[], Any], record: CallNotes, hold: ResourceHold
) -> Any:
    caller = loop_caller()

    def work() -> Any:
        # Marked before the token is checked. Whoever leaves the call then either sees the mark, or
        # has cancelled the token in time for the check.
        hold.work_began()
        try:
            record.token.check()
            record.begin()
            return start()
        finally:
            call_if_open(caller, hold.work_ended)

    # `stop="raise"` raises only inside the file of the tool's own function.
    work.__wrapped__ = tool.function  # type: ignore[attr-defined]
    outcome = await run_thread(
        work,
        token=record.token,
        grace_s=tool.grace_s,
        stop=tool.options.stop,
        name=tool.name,
    )
    if outcome.status == "abandoned":
        raise CallAbandoned(tool.grace_s)
    if outcome.status == "cancelled":
        raise Cancelled(record.token)
    return outcome.unwrap()
