"""How a command's output and its end are shown.

`as_read` cleans output for reading, and `LiveOutput` shows it at a bounded rate while the command
runs. The functions below them describe how a command ended: in words for the model, and as data for
the receipt.
"""

import codecs
import re
import signal
from collections.abc import Callable

import msgspec

from bargein.calls.text import left_out
from bargein.calls.words import left_running
from bargein.contracts.tool import ProcessEnd, StopDetail
from bargein.contracts.visible import visible
from bargein.process import Exit, Process, StopReport

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def as_read(text: str) -> str:
    """Returns terminal output as a person would read it in the end: without escape sequences, and
    with only the last state of a line that was overwritten, such as a progress bar."""
    text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = "\n".join(_last_written(line) for line in text.split("\n"))
    return _CONTROL.sub("", text)


def _last_written(line: str) -> str:
    line = line.rstrip("\r")
    return line[line.rfind("\r") + 1 :]


class LiveOutput:
    """Shows a command's bytes as text while it runs, at a bounded rate.

    A burst passes whole. A flood is thinned to `rate_bytes` a second: now and then its last
    `piece_bytes` are shown in whole lines, after a note of how much was left out. The end of the
    output is always shown, after a pause (`later` sets the timer) or by `finish`. The captured
    output is separate and has its own bound. A character split between two reads is joined.
    """

    def __init__(
        self,
        emit: Callable[[str], None],
        now: Callable[[], float],
        *,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        burst_bytes: int = 64 * 1024,
        rate_bytes: int = 32 * 1024,
        piece_bytes: int = 4 * 1024,
    ) -> None:
        self._emit = emit
        self._now = now
        self._later = later
        self._burst_bytes = burst_bytes
        self._rate_bytes = rate_bytes
        self._piece_bytes = piece_bytes
        self._budget = float(burst_bytes)
        self._filled_at = now()
        self._left_out = 0
        self._held = b""
        self._came = 0
        self._is_waiting = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, chunk: bytes) -> None:
        self._refill()
        if not self._is_holding:
            fits = len(chunk)
            if fits > self._budget:
                fits = chunk.rfind(b"\n", 0, int(self._budget)) + 1
            self._show(chunk[:fits])
            chunk = chunk[fits:]
        if chunk:
            self._hold(chunk)

    def finish(self) -> None:
        """Shows the end of the output. Call it when the command is over."""
        self._show_held(to_the_end=True)

    @property
    def _is_holding(self) -> bool:
        return bool(self._left_out or self._held)

    def _refill(self) -> None:
        now = self._now()
        refill = (now - self._filled_at) * self._rate_bytes
        self._budget = min(self._budget + refill, float(self._burst_bytes))
        self._filled_at = now

    def _hold(self, chunk: bytes) -> None:
        self._came += len(chunk)
        self._wait_for_pause()
        held = self._held + chunk
        self._held = held[-self._piece_bytes :]
        self._left_out += len(held) - len(self._held)
        if self._budget >= self._piece_bytes:
            self._show_held()

    def _wait_for_pause(self) -> None:
        if self._later is not None and not self._is_waiting:
            self._is_waiting = True
            came = self._came
            self._later(self._piece_bytes / self._rate_bytes, lambda: self._look_for_pause(came))

    def _look_for_pause(self, came: int) -> None:
        """Shows the end of the output in a pause, because nothing may follow for a long time."""
        self._is_waiting = False
        if self._is_holding and self._came == came:
            self._show_held(to_the_end=True)
        elif self._is_holding:
            self._wait_for_pause()

    def _show_held(self, *, to_the_end: bool = False) -> None:
        held, skipped = self._held, self._left_out
        begin = held.find(b"\n") + 1 if skipped else 0
        end = len(held) if to_the_end else held.rfind(b"\n") + 1 or len(held)
        if begin >= end:
            # One long line: showing a part of it is better than nothing.
            begin = 0
        self._held, self._left_out = held[end:], 0
        if skipped + begin:
            # The omitted bytes may have ended inside a character.
            self._decoder.reset()
            self._emit(left_out(skipped + begin, "bytes"))
        self._show(held[begin:end])

    def _show(self, shown: bytes) -> None:
        self._budget = max(0.0, self._budget - len(shown))
        text = self._decoder.decode(shown)
        if text:
            self._emit(text)


def live_output(emit: Callable[[str], None], now: Callable[[], float]) -> LiveOutput:
    """Returns a `LiveOutput` for a command of the running event loop."""
    import asyncio

    return LiveOutput(emit, now, later=asyncio.get_running_loop().call_later)


def exit_text(exited: Exit) -> str:
    return f"exit code {exited.code}" if exited.code is not None else f"ended by {exited}"


def command_text(process: Process, exited: Exit, report: StopReport) -> str:
    """Describes a command that ended by itself: its output, how it ended, what it left running."""
    shown = as_read(process.output.text()).rstrip("\n") or "(no output)"
    swept = swept_text(process, report)
    limits = limits_text(process, exited)
    return f"{shown}\n[{exit_text(exited)}, {exited.elapsed_s:.1f} s]{limits}{swept}"


def limits_text(process: Process, exited: Exit) -> str:
    """Says which limits of the user's the command reached; empty if none."""
    reached = list(process.limits_reached)
    if exited.signal == signal.SIGXCPU:
        reached.append("CPU time")
    if exited.signal == signal.SIGXFSZ:
        reached.append("file size")
    if not reached:
        return ""
    return f"\n[it reached the user's limit of {' and '.join(reached)} for a command]"


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
    if process.sandbox:
        means = f"{detail.means}, in a sandbox ({process.sandbox})"
        detail = msgspec.structs.replace(detail, means=means)
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
