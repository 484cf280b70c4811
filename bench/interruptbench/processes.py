"""Processes that the bench started: found by their mark, counted truly, and ended.

A mark is a word in the environment or the arguments of a process. Whoever inherits it keeps it,
so a command that forked twice, left its session or lost its parents is found all the same. What
looks at /proc here is independent of every system under test. A zombie is no survivor: it does
nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

LOOKS_S = (1.0, 5.0)


def marked(marks: Iterable[str]) -> dict[str, list[int]]:
    """The living processes that carry each mark, by one walk of /proc."""
    wanted = {mark: mark.encode() for mark in marks}
    found: dict[str, list[int]] = {mark: [] for mark in wanted}
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == own:
            continue
        text = _read(f"/proc/{entry}/cmdline") + b"\0" + _read(f"/proc/{entry}/environ")
        for mark, word in wanted.items():
            if word in text:
                found[mark].append(int(entry))
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it ended while we looked


def end_marked(mark: str, *, within_s: float = 3.0) -> int:
    """Kills all processes with the mark until none is left; returns how many there were."""
    ended: set[int] = set()
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at:
        pids = marked([mark])[mark]
        if not pids:
            break
        for pid in pids:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    return len(ended)


@dataclass
class Watched:
    """A stopped command: who of it was alive one and five seconds after the stop."""

    mark: str
    since: float
    alive: list[int] = field(default_factory=list)

    @property
    def due_at(self) -> float:
        return self.since + LOOKS_S[len(self.alive)]

    @property
    def over(self) -> bool:
        return len(self.alive) == len(LOOKS_S)


class SurvivorWatch:
    """Looks between runs, never during one: a walk of /proc would disturb what is timed."""

    def __init__(self) -> None:
        self._open: list[Watched] = []

    def add(self, mark: str, since: float) -> Watched:
        watched = Watched(mark, since)
        self._open.append(watched)
        return watched

    def look(self) -> None:
        """Counts survivors of commands whose time has come; ends them after the second look."""
        now = time.monotonic()
        due = [each for each in self._open if each.due_at <= now]
        if not due:
            return
        alive = marked(each.mark for each in due)
        for each in due:
            each.alive.append(len(alive[each.mark]))
            if each.over:
                self._open.remove(each)
                if alive[each.mark]:
                    end_marked(each.mark)

    @property
    def next_due_at(self) -> float | None:
        return min((each.due_at for each in self._open), default=None)
