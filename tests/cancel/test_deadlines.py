"""Deadlines: on an injected clock, inherited, first cause remembered."""

import math
import threading

import pytest

from bargein.cancel import SYSTEM_CLOCK, CancelSource, Cause, Reason
from bargein.testing.clock import ManualClock
from tests.cancel.harness import eventually


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1000.0)


def test_a_deadline_cancels_and_says_so(clock: ManualClock) -> None:
    source = CancelSource("call", timeout_s=30, clock=clock)
    child = source.token.child("request")
    assert source.token.deadline == 1030.0
    clock.advance(29.9)
    assert not source.token.cancelled
    clock.advance(0.1)
    assert source.token.reason == Reason(Cause.DEADLINE, "30 s")
    assert child.token.reason == Reason(Cause.PARENT, "call", Reason(Cause.DEADLINE, "30 s"))


def test_a_child_has_its_parents_clock_and_the_nearer_deadline(clock: ManualClock) -> None:
    parent = CancelSource("parent", timeout_s=10, clock=clock)
    assert parent.token.child("near", timeout_s=5).token.deadline == 1005.0
    assert parent.token.child("far", timeout_s=50).token.deadline == 1010.0
    assert parent.token.child("none").token.deadline == 1010.0
    assert CancelSource("free", clock=clock).token.deadline == math.inf


def test_the_near_deadline_stops_only_the_child(clock: ManualClock) -> None:
    parent = CancelSource("parent", timeout_s=10, clock=clock)
    child = parent.token.child("child", timeout_s=5)
    clock.advance(5)
    assert child.token.cancelled
    assert not parent.token.cancelled


@pytest.mark.parametrize("first", ["deadline", "user"])
def test_which_cause_came_first_is_remembered(clock: ManualClock, first: str) -> None:
    source = CancelSource("call", timeout_s=5, clock=clock)
    if first == "user":
        assert source.cancel(Cause.USER_STOP)
        clock.advance(10)
        assert source.token.reason == Reason(Cause.USER_STOP)
    else:
        clock.advance(10)
        assert not source.cancel(Cause.USER_STOP)
        assert source.token.reason == Reason(Cause.DEADLINE, "5 s")


def test_what_has_ended_in_time_is_not_cancelled(clock: ManualClock) -> None:
    with CancelSource("call", timeout_s=5, clock=clock) as source:
        pass
    clock.advance(10)
    assert (source.token.cancelled, source.token.ended) == (False, True)


def test_the_deadline_of_a_parent_that_has_ended_no_longer_counts(clock: ManualClock) -> None:
    parent = CancelSource("parent", timeout_s=5, clock=clock)
    child = parent.token.child("child")
    assert child.token.deadline == 1005.0
    parent.seal()
    assert child.token.deadline == math.inf
    clock.advance(10)
    assert not child.token.cancelled


def test_a_deadline_comes_and_goes_with_a_link(clock: ManualClock) -> None:
    turn = CancelSource("turn", timeout_s=5, clock=clock)
    job = CancelSource("job", clock=clock)
    below = job.token.child("below of job")
    link = job.link(turn.token)
    assert job.token.deadline == below.token.deadline == 1005.0
    assert link.unlink()
    assert job.token.deadline == below.token.deadline == math.inf
    clock.advance(10)
    assert not job.token.cancelled


def test_no_time_at_all_is_cancelled_at_once(clock: ManualClock) -> None:
    source = CancelSource("call", timeout_s=0, clock=clock)
    clock.advance(0)
    assert source.token.cancelled


def test_a_child_that_is_born_cancelled_arms_no_timer(clock: ManualClock) -> None:
    parent = CancelSource("parent", clock=clock)
    parent.cancel(Cause.USER_STOP)
    child = parent.token.child("child", timeout_s=5)
    clock.advance(10)
    assert child.token.reason == Reason(Cause.PARENT, "parent", Reason(Cause.USER_STOP))


def test_the_system_clock_does_it_in_real_time() -> None:
    began = SYSTEM_CLOCK.now()
    source = CancelSource("call", timeout_s=0.02)
    assert source.token.wait(10)
    assert 0.02 <= SYSTEM_CLOCK.now() - began < 5
    assert source.token.reason == Reason(Cause.DEADLINE, "0.02 s")


def test_a_deadline_delivers_like_any_cancel() -> None:
    called = threading.Event()
    CancelSource("call", timeout_s=0.01).token.on_cancel(called.set)
    eventually(called.is_set)
