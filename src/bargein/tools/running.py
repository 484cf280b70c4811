"""Runs a tool's function, and ends the processes that it leaves behind.

The function runs in the call's task, in a thread, or in its own process. The pipeline owns the
call's task and abandons it if the function does not stop. A thread is abandoned by its own ladder.
The hold on the call's resources learns when the work really began and really ended; for abandoned
work that is after the call.

A process that a function starts by itself (`subprocess`, `asyncio`, `os.fork`) belongs to the call:
it ends when the call is stopped or is over. The same holds for commands that the function started
with `ToolContext.start` and did not stop. `LeftBehind` ends both kinds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from bargein.calls.pipeline import CallAbandoned
from bargein.calls.words import finished
from bargein.cancel import Cancelled, run_thread, shield
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.contracts.grace import BLIND_S, MARGIN_S, PROCESS_S
from bargein.contracts.tool import CallNotes, CallResult, StopDetail
from bargein.process import Ladder, OwnProcesses, StopReport
from bargein.process.fork_hooks import process_owner
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool
from bargein.tools.output import left_text, stop_detail
from bargein.tools.resources import ResourceHold
from bargein.tools.tool_environment import ToolEnvironment

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
        # Marked before the token is checked. So code that leaves the call either sees the mark, or
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


_USUAL = Ladder()
# A function that notices a stop only because its processes end must still return within its grace.
_HASTY = Ladder(terminate_s=BLIND_S / 2)
_HOW_TO_GO_ON = "start what should keep running with terminal and background=true"


class LeftBehind:
    """The processes of one call. Costs next to nothing if the call starts none."""

    def __init__(
        self,
        tool_environment: ToolEnvironment | None,
        context: ToolContext,
        record: CallNotes,
        grace_s: float,
    ) -> None:
        self._own: OwnProcesses | None = None
        if tool_environment is not None:
            ladder = _HASTY if grace_s <= BLIND_S else _USUAL
            self._own = tool_environment.containment.own_processes_of(record.token, ladder)
        self._context = context
        self._record = record
        self.cut_short = False
        """Whether stopping the call ended processes that it had started."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Processes started inside, also in tasks and threads begun here, belong to the call."""
        restore = process_owner.set(self._own)
        try:
            yield
        finally:
            process_owner.reset(restore)

    async def sweep(self, *, abandoned: bool) -> str:
        """Ends what is left when the function has returned or was abandoned. Returns what to tell
        the model; for a stopped call this is empty, because the record has it."""
        # A stop that comes from now on did not end the function.
        stopped = self._record.token.cancelled
        reports = list(await self._context.sweep_commands())
        own = self._own
        if own is not None and own.any_started:
            report: StopReport | None = None
            # An abandoned call has used up its grace; its caller waits only a little longer.
            with shield(MARGIN_S / 2 if abandoned else PROCESS_S):
                report = await own.finish(hurry=abandoned)
            if report is not None:
                reports.append(report)
            if stopped:
                self.cut_short = report is None or not report.found_over
                unknown = StopDetail(0.0, own.means.value, confirmed=False)
                self._record.add_stop(stop_detail(report) if report is not None else unknown)
        return "" if stopped else _left_words(reports)

    def close(self) -> None:
        """Ends everything without waiting, also if a cancel prevented the sweep."""
        self._context.begin_end_of_commands()
        if self._own is not None:
            self._own.begin_end()


def _left_words(reports: Sequence[StopReport]) -> str:
    return "".join(left_text(report, _HOW_TO_GO_ON) for report in reports).lstrip("\n")
