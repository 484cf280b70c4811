"""The rules of a lease, without a clock or a database of its own.

A node renews its lease every `renew_s`, for `lasts_s`. PostgreSQL's clock alone says when a lease
is over. The node itself stops earlier: `fence_s` after it *sent* its last successful renewal. So
even if the answer is late, at least `lasts_s - fence_s` pass before the server lets other nodes
take this node's sessions.
"""

from bargein.contracts.value import Value


class LeaseTimes(Value, frozen=True):
    """How long a lease lasts, and when a node renews it and gives it up."""

    renew_s: float = 2.0
    lasts_s: float = 6.0
    fence_s: float = 4.5

    def __post_init__(self) -> None:
        if not 0 < self.renew_s < self.fence_s < self.lasts_s:
            raise ValueError(
                f"a lease is renewed ({self.renew_s:g} s) before it is given up "
                f"({self.fence_s:g} s), and given up before it is over ({self.lasts_s:g} s)"
            )


class NodeLease:
    """The lease of one node, as the node knows it. All times are of one clock, which must go on
    while the machine sleeps."""

    def __init__(self, times: LeaseTimes, sent_at: float) -> None:
        """`sent_at`: when the request was sent that began the lease."""
        self.times = times
        self._good = sent_at
        self._fenced = False

    @property
    def fence_at(self) -> float:
        return self._good + self.times.fence_s

    @property
    def kill_at(self) -> float:
        """When others kill what the node runs, if it is frozen and cannot give up itself: after it
        should have, and before its lease is over."""
        return self._good + (self.times.fence_s + self.times.lasts_s) / 2

    @property
    def renew_at(self) -> float:
        return self._good + self.times.renew_s

    def renewed(self, sent_at: float, now: float) -> bool:
        """A renewal that was sent at `sent_at` was answered with yes. Returns False if that came
        too late: a lease that was given up stays so."""
        if self.is_over(now):
            return False
        self._good = max(self._good, sent_at)
        return True

    def lost(self) -> None:
        """The server says that the node is dead."""
        self._fenced = True

    def is_over(self, now: float) -> bool:
        """Whether the node must not act any more. Once true, it stays so."""
        self._fenced = self._fenced or now >= self.fence_at
        return self._fenced
