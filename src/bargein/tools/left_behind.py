"""What a tool's code leaves running, and how that ends with the call.

A process that a function starts by itself (`subprocess`, `asyncio`, `os.fork`) belongs to the call:
it is ended when the call is stopped, and when it is over. So are the commands that it started by
`ToolContext.start` and did not stop.
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
# A function that hears of the stop only by the end of its processes shall return within its grace.
_HASTY = Ladder(terminate_s=BLIND_S / 2)
_HOW_TO_GO_ON = "what shall go on has to be started by terminal, with background=true"


class LeftBehind:
    """For one call. Costs nothing worth measuring if it starts no process."""

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
        """The stop of the call has ended processes that it had started."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is started in here, and in the tasks and threads that are, belongs to the call."""
        restore = process_owner.set(self._own)
        try:
            yield
        finally:
            process_owner.reset(restore)

    async def sweep(self, *, abandoned: bool) -> str:
        """The function has returned, or was given up: end whoever it left. For a call that was
        not stopped, gives what is to be said of them; else it is in the record."""
        # A stop that comes from now on has not ended the function.
        stopped = self._record.token.cancelled
        reports = list(await self._context.sweep_commands())
        own = self._own
        if own is not None and own.any_started:
            report: StopReport | None = None
            # An abandoned call has used up its time; its caller waits a little longer than that.
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
        """Also if the wait for the function was cut off, so that nothing was swept."""
        self._context.begin_end_of_commands()
        if self._own is not None:
            self._own.begin_end()


def _said(reports: Sequence[StopReport]) -> str:
    return "".join(left_text(report, _HOW_TO_GO_ON) for report in reports).lstrip("\n")
