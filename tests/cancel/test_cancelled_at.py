"""`Token.cancelled_at`: the instant of a cancel, decided once with the cell."""

import threading
import time

import pytest

from bargein.cancel import CancelSource, Cause
from bargein.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_token_that_lives_or_has_ended_was_never_cancelled(clock: ManualClock) -> None:
    source = CancelSource("job", clock=clock)
    assert source.token.cancelled_at is None
    source.seal()
    clock.advance(1.0)
    assert not source.cancel(Cause.USER_STOP)
    assert source.token.cancelled_at is None


def test_the_first_cancel_sets_it_for_ever(clock: ManualClock) -> None:
    source = CancelSource("job", clock=clock)
    clock.advance(2.0)
    source.cancel(Cause.USER_STOP)
    at = clock.now()
    clock.advance(3.0)
    source.cancel(Cause.SHUTDOWN)
    source.seal()
    assert source.token.cancelled_at == at


def test_what_one_cancel_reaches_has_one_instant_and_what_was_cancelled_before_keeps_its_own(
    clock: ManualClock,
) -> None:
    root = CancelSource("root", clock=clock)
    early = root.token.child("early")
    below = [early.token.child("below early"), root.token.child("child")]
    deep = below[1].token.child("grandchild")
    clock.advance(1.0)
    early.cancel(Cause.USER_STOP)
    first = clock.now()
    clock.advance(1.0)
    root.cancel(Cause.SHUTDOWN)
    second = clock.now()
    told = [each.token.cancelled_at for each in (root, early, *below, deep)]
    assert told == [second, first, first, second, second]


def test_a_child_that_is_born_cancelled_has_the_instant_of_its_parent(clock: ManualClock) -> None:
    root = CancelSource("root", clock=clock)
    root.cancel(Cause.USER_STOP)
    at = clock.now()
    clock.advance(5.0)
    child = root.token.child("late")
    assert child.token.cancelled_at == at
    assert child.token.child("later").token.cancelled_at == at


def test_a_deadline_sets_it_on_the_clock_of_the_deadline(clock: ManualClock) -> None:
    source = CancelSource("job", clock=clock, timeout_s=2.0)
    deadline = source.token.deadline
    clock.advance(5.0)
    assert source.token.cancelled_at == deadline


def test_a_callback_and_another_thread_find_it_set() -> None:
    seen: list[float | None] = []
    for _ in range(200):
        source = CancelSource("job")
        leaf = source.token.child("leaf")
        looked = threading.Event()

        def look(leaf: CancelSource = leaf, looked: threading.Event = looked) -> None:
            while not leaf.token.cancelled:
                pass
            seen.append(leaf.token.cancelled_at)
            looked.set()

        thread = threading.Thread(target=look)
        thread.start()
        before = time.monotonic()
        source.cancel(Cause.USER_STOP)
        after = time.monotonic()
        assert looked.wait(10)
        thread.join()
        at = seen[-1]
        assert at is not None
        assert before <= at <= after
