"""Ends the processes that a tool's code leaves running when its call is over.

A process that a function starts by itself (`subprocess`, `asyncio`, `os.fork`) belongs to the call:
it ends when the call is stopped or is over. The same holds for commands that the function started
with `ToolContext.start` and did not stop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bargein.cancel import shield
from bargein.contracts.grace import BLIND_S, MARGIN_S, PROCESS_S
from bargein.contracts.tool import CallNotes, StopDetail
from bargein.process import Ladder, OwnProcesses, StopReport
from bargein.process.fork_hooks import process_owner
from bargein.tools.context import ToolContext
from bargein.tools.endings import left_text, stop_detail
from bargein.tools.tool_environment import ToolEnvironment

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
        return "" if stopped else _said(reports)

    def close(self) -> None:
        """Ends everything without waiting, also if a cancel prevented the sweep."""
        self._context.begin_end_of_commands()
        if self._own is not None:
            self._own.begin_end()


def _said(reports: Sequence[StopReport]) -> str:
    return "".join(left_text(report, _HOW_TO_GO_ON) for report in reports).lstrip("\n")
