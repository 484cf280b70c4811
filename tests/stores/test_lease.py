"""The rules of a lease, on a clock that only the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.stores.postgres.lease import LeaseTimes, NodeLease

TIMES = LeaseTimes(renew_s=2.0, lasts_s=6.0, fence_s=4.5)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    lease = NodeLease(TIMES, sent_at=100.0)
    assert (lease.renew_at, lease.fence_at) == (102.0, 104.5)
    assert lease.renewed(sent_at=102.0, now=104.4)
    assert (lease.renew_at, lease.fence_at) == (104.0, 106.5)


def test_an_answer_that_comes_too_late_renews_nothing() -> None:
    lease = NodeLease(TIMES, sent_at=100.0)
    assert lease.is_over(104.5)
    assert not lease.renewed(sent_at=102.0, now=104.6)
    assert lease.is_over(0.0), "a lease that was given up stays so"


def test_answers_out_of_order_do_not_shorten_it() -> None:
    lease = NodeLease(TIMES, sent_at=100.0)
    lease.renewed(sent_at=103.0, now=103.5)
    lease.renewed(sent_at=102.0, now=103.6)
    assert lease.fence_at == 107.5


def test_a_server_that_says_dead_ends_it_at_once() -> None:
    lease = NodeLease(TIMES, sent_at=100.0)
    lease.lost()
    assert lease.is_over(100.0)


@pytest.mark.parametrize(
    ("renew_s", "fence_s", "lasts_s"), [(0, 1, 2), (2, 1, 3), (1, 2, 2), (1, 3, 2)]
)
def test_times_that_could_not_hold_are_refused(
    renew_s: float, fence_s: float, lasts_s: float
) -> None:
    with pytest.raises(ValueError, match="a lease is renewed"):
        LeaseTimes(renew_s=renew_s, lasts_s=lasts_s, fence_s=fence_s)


class Waits(NodeLease):
    """Broken on purpose: while a renewal is under way it does not give up."""

    asking = False

    def is_over(self, now: float) -> bool:
        return False if self.asking else super().is_over(now)


def run(lease: NodeLease, delays: list[float | None]) -> float:
    """Lets renewals take these times, None for ever. Returns for how long the node was active
    although the server may have given its lease away."""
    sent_at = granted_at = 0.0
    too_long = -TIMES.lasts_s
    for delay in delays:
        sent_at = lease.renew_at
        if isinstance(lease, Waits):
            lease.asking = True
        answered_at = sent_at + (100.0 if delay is None else delay)
        # The server counts from a moment between sending and answering: at the earliest, sending.
        over_at = granted_at + TIMES.lasts_s
        step = sent_at
        while step < answered_at and not lease.is_over(step):
            too_long = max(too_long, step - over_at)
            step += 0.1
        if isinstance(lease, Waits):
            lease.asking = False
        if delay is None or not lease.renewed(sent_at, answered_at):
            return too_long
        granted_at = sent_at
    return too_long


DELAYS = st.lists(st.one_of(st.floats(0, 8), st.none()), max_size=8)


@given(DELAYS)
def test_a_node_stops_before_the_server_gives_its_lease_away(delays: list[float | None]) -> None:
    assert run(NodeLease(TIMES, 0.0), delays) < 0.0


def test_a_fence_that_waits_for_the_renewal_is_caught() -> None:
    assert run(Waits(TIMES, 0.0), [None]) > 0.0
