"""How a tool's function is run so that it can always be left: in a task, a thread or a process.

Each way runs under a child of the call's token and comes back within the grace after a cancel.
The hold on the call's resources hears when the work has really begun and really ended, which for
abandoned work is after the call.
"""

from collections.abc import Callable
from typing import Any

from bargein.cancel import Outcome, TaskOwner, run_abandonable, run_thread
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool
from bargein.tools.record import CallRecord
from bargein.tools.resources import Hold

Isolated = Callable[[Tool[..., Any], dict[str, Any], ToolContext], Any]
"""Runs a sync function in a process of its own; `isolation.Isolation.run`."""


async def run_function(
    tool: Tool[..., Any],
    values: dict[str, Any],
    context: ToolContext,
    *,
    record: CallRecord,
    hold: Hold,
    owner: TaskOwner | None,
    isolated: Isolated | None,
) -> Outcome[Any]:
    if tool.options.isolation == "process":
        assert isolated is not None
        process = isolated
        return await _run_async(tool, lambda: process(tool, values, context), record, hold, owner)
    filled = {**values, **_filled(tool, context)}
    if tool.is_async:
        return await _run_async(tool, lambda: tool.function(**filled), record, hold, owner)
    return await _run_sync(tool, lambda: tool.function(**filled), record, hold)


def _filled(tool: Tool[..., Any], context: ToolContext) -> dict[str, Any]:
    filled = tool.signature.filled
    return {name: context.token if kind == "token" else context for name, kind in filled.items()}


async def _run_async(
    tool: Tool[..., Any],
    start: Callable[[], Any],
    record: CallRecord,
    hold: Hold,
    owner: TaskOwner | None,
) -> Outcome[Any]:
    async def work() -> Any:
        hold.work_began()
        try:
            # A task runs up to its first await before a cancel reaches it.
            record.token.check()
            record.begin()
            return await start()
        finally:
            hold.work_ended()

    grace_s = tool.grace_s
    return await run_abandonable(
        work, token=record.token, grace_s=grace_s, name=tool.name, owner=owner
    )


async def _run_sync(
    tool: Tool[..., Any], start: Callable[[], Any], record: CallRecord, hold: Hold
) -> Outcome[Any]:
    caller = loop_caller()

    def work() -> Any:
        # Said before looking at the token: whoever leaves the call either sees that work goes on
        # or has cancelled the token before it is looked at.
        hold.work_began()
        try:
            record.token.check()
            record.begin()
            return start()
        finally:
            call_if_open(caller, hold.work_ended)

    # Where an exception may be raised inside is decided by the file of the tool's own function.
    work.__wrapped__ = tool.function  # type: ignore[attr-defined]
    return await run_thread(
        work,
        token=record.token,
        grace_s=tool.grace_s,
        stop=tool.options.stop,
        name=tool.name,
    )
