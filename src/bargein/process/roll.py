"""Who was seen in a cell, what they were sent, how and when each ended."""

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


class Roll:
    """Bounded: of a crowd the first `MEMBERS_MAX` are kept."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._members

    def meet(self, pid: int, command: str) -> None:
        if pid not in self._members and len(self._members) < MEMBERS_MAX:
            self._members[pid] = _Member(command)

    def signalled(self, pid: int, number: int) -> bool:
        """False if it was that signal that it was sent last, or it has ended."""
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

    def told(self, began: float) -> tuple[EndedProcess, ...]:
        return tuple(
            EndedProcess(pid, member.command or NAMELESS, member.how, _ms(member.ended_at - began))
            for pid, member in self._members.items()
            if member.ended_at
        )


def how_it_ended(code: int | None) -> str:
    """From an exit code, or minus a signal."""
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
