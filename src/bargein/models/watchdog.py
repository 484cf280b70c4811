"""The timeouts of one attempt. They cancel the attempt's own token, never the request's.

At most one timer is pending. Progress is one attribute write and does not recreate the timer: when
it fires, it checks the age of the last progress, and either ends the attempt or sleeps for the
rest. It may fire in another thread while the loop reports progress; at worst it then checks once
more.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from bargein.cancel import CancelSource, Cause, Reason, Timer


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds on the parts of one attempt, in the order in which they apply.

    connect_s: lookup, connect and TLS.
    first_byte_s: from then until the headers and the first line of the answer.
    between_chunks_s: from one line to the next, comments included.
    between_parts_s: from one part to the next; comments alone do not keep an answer alive.
    tail_s: after the provider's stop reason, for usage and the end mark.
    error_body_s: for the text of a refusal; the status alone is enough.
    """

    connect_s: float = 20.0
    first_byte_s: float = 300.0
    between_chunks_s: float = 300.0
    between_parts_s: float = 900.0
    tail_s: float = 3.0
    error_body_s: float = 5.0


class _Phase(NamedTuple):
    """Read atomically, so that a limit is never applied to the progress of another phase."""

    name: str
    began_at: float
    limit_s: float
    parts_limit_s: float


class Watchdog:
    """`watch` begins a phase, `line` and `part` report progress, `stop` ends the watch."""

    __slots__ = ("_line_at", "_now", "_part_at", "_phase", "_source", "_timer", "expired")

    def __init__(self, source: CancelSource) -> None:
        self._source = source
        self._now = source.token.clock.now
        self._line_at = -inf
        self._part_at = -inf
        self._phase = _Phase("", 0.0, inf, inf)
        self._timer: Timer | None = None
        self.expired = ""

    def watch(self, phase: str, limit_s: float, *, parts_limit_s: float = inf) -> None:
        self._phase = _Phase(phase, self._now(), limit_s, parts_limit_s)
        self._drop_timer()
        self._arm(self._due())

    def line(self) -> None:
        self._line_at = self._now()

    def part(self) -> None:
        self._line_at = self._part_at = self._now()

    def stop(self) -> None:
        self._drop_timer()

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> float:
        phase = self._phase
        line_at = max(phase.began_at, self._line_at)
        part_at = max(phase.began_at, self._part_at)
        return min(line_at + phase.limit_s, part_at + phase.parts_limit_s)

    def _arm(self, when: float) -> None:
        timer = self._timer = self._source.token.clock.call_at(when, self._look)
        # Created first, checked second: either an end in between dropped this timer, or we see it.
        if self._is_over():
            timer.cancel()

    def _is_over(self) -> bool:
        return self._source.token.ended or self._source.token.cancelled

    def _look(self) -> None:
        if self._is_over():
            return
        phase, due = self._phase, self._due()
        if self._now() < due:
            self._arm(due)
            return
        limit_s = min(phase.limit_s, phase.parts_limit_s)
        words = f"{phase.name} took longer than {limit_s:g} s"
        if not self.expired:
            self.expired = words
        self._source.cancel(Reason(Cause.DEADLINE, words))
