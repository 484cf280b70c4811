"""Words and receipt data about how a command ended. Pure."""

import msgspec

from bargein.calls.words import left_running
from bargein.contracts.tool import ProcessEnd, StopDetail
from bargein.contracts.visible import visible
from bargein.process import Exit, Process, StopReport
from bargein.tools.output import as_read


def exit_text(exited: Exit) -> str:
    return f"exit code {exited.code}" if exited.code is not None else f"ended by {exited}"


def command_text(process: Process, exited: Exit, report: StopReport) -> str:
    """Describes a command that ended by itself: its output, how it ended, what it left running."""
    shown = as_read(process.output.text()).rstrip("\n") or "(no output)"
    swept = swept_text(process, report)
    return f"{shown}\n[{exit_text(exited)}, {exited.elapsed_s:.1f} s]{swept}"


def swept_text(process: Process, report: StopReport) -> str:
    """Describes what a command left running when it ended by itself."""
    how_to_go_on = "use terminal with background=true for what should keep running"
    return left_text(report, how_to_go_on, first=process.pid)


def left_text(report: StopReport, how_to_go_on: str, *, first: int = 0) -> str:
    """Describes the processes, other than `first`, that a finished call left running."""
    detail = stop_detail(report)
    others = [one for one in detail.processes if one.pid != first]
    return left_running(others, detail.survivors, how_to_go_on)


def stopped_detail(process: Process, report: StopReport) -> StopDetail:
    """Returns the receipt data of a stopped command. The first signal is sent during the cancel and
    may end the command before its processes are counted; then the command is added here."""
    detail = stop_detail(report)
    exited = process.exit
    if exited is None or any(one.pid == process.pid for one in detail.processes):
        return detail
    command = visible(" ".join(process.argv))
    first = ProcessEnd(process.pid, command, str(exited), report.elapsed_ms)
    return msgspec.structs.replace(detail, processes=(first, *detail.processes))


def stop_detail(report: StopReport) -> StopDetail:
    return StopDetail(
        elapsed_ms=report.elapsed_ms,
        means=report.means.value,
        confirmed=report.confirmed,
        processes=tuple(
            ProcessEnd(each.pid, visible(each.command), each.ended_by, each.elapsed_ms)
            for each in report.processes
        ),
        survivors=tuple(
            ProcessEnd(each.pid, visible(each.command), "", report.elapsed_ms)
            for each in report.survivors
        ),
    )
