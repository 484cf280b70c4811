"""Which processes an enclosure has seen, what signals they got, how and when each ended.

Plain bookkeeping for a `StopReport`: nothing here signals or waits. `collect` and the functions at
the end translate how a child process of ours ended.
"""

import os
import time
from dataclasses import dataclass

from bargein.process.values import EndedProcess, Exit, signal_name

MEMBERS_MAX = 256
NAMELESS = "(its name could not be read)"


@dataclass(slots=True)
class _Member:
    command: str
    last_signal: int = 0
    ended_by: str = ""
    ended_at: float = 0.0

    @property
    def how(self) -> str:
        if self.ended_by:
            return self.ended_by
        return signal_name(self.last_signal) if self.last_signal else "ended"


class ProcessReport:
    """Keeps the first `MEMBERS_MAX` processes that it is given; ignores the rest."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._members

    def add(self, pid: int, command: str) -> None:
        if pid not in self._members and len(self._members) < MEMBERS_MAX:
            self._members[pid] = _Member(command)

    def signalled(self, pid: int, number: int) -> bool:
        """Note a signal. Returns False if it was the process's last signal already, or the
        process has ended: then the caller need not send it."""
        member = self._members.get(pid)
        if member is None:
            return True
        if member.ended_at or member.last_signal == number:
            return False
        member.last_signal = number
        return True

    def signalled_all(self, number: int) -> None:
        for pid in self._members:
            self.signalled(pid, number)

    def ended(self, pid: int, how: str = "") -> None:
        """Note an end. The first `how` and the first time count."""
        member = self._members.get(pid)
        if member is not None:
            member.ended_by = member.ended_by or how
            member.ended_at = member.ended_at or time.monotonic()

    def everybody_ended(self) -> None:
        for pid in self._members:
            self.ended(pid)

    def pids(self) -> list[int]:
        return list(self._members)

    def command_of(self, pid: int) -> str:
        member = self._members.get(pid)
        return member.command if member is not None else ""

    def processes(self, began: float) -> tuple[EndedProcess, ...]:
        """The processes that have ended; times count from `began`."""
        return tuple(
            EndedProcess(pid, member.command or NAMELESS, member.how, _ms(member.ended_at - began))
            for pid, member in self._members.items()
            if member.ended_at
        )


def collect(pid: int, *, peek: bool = False) -> int | None:
    """Collect a child that has ended. Returns its exit code, or minus a signal; None if it has
    not ended or other code collected it.

    With `peek` it stays uncollected, so that no other process can get its pid.
    """
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | (os.WNOWAIT if peek else 0))
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def how_it_ended(code: int | None) -> str:
    """Words for an exit code, or for minus a signal."""
    if code is None:
        return ""
    return signal_name(-code) if code < 0 else f"exit {code}"


def exit_of(code: int | None, started_at: float) -> Exit:
    elapsed_s = time.monotonic() - started_at
    if code is None:
        return Exit(None, None, elapsed_s)
    return Exit(None, -code, elapsed_s) if code < 0 else Exit(code, None, elapsed_s)


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)
