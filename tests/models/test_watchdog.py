from __future__ import annotations

from collections.abc import Callable

import pytest

from bargein.cancel import CancelSource, Cause
from bargein.models.watchdog import Watchdog
from tests.models.harness import ManualClock, ManualTimer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make(clock: ManualClock) -> tuple[CancelSource, Watchdog]:
    source = CancelSource("attempt", clock=clock)
    return source, Watchdog(source)


def test_it_bites_when_nothing_happens(clock: ManualClock) -> None:
    source, dog = make(clock)
    dog.watch("connecting", 5)
    clock.advance(4.9)
    assert not source.token.cancelled
    clock.advance(0.2)
    assert source.token.cancelled
    assert source.token.reason is not None
    assert source.token.reason.cause is Cause.DEADLINE
    assert dog.expired == "connecting took longer than 5 s"
    assert clock.pending() == []


def test_lines_keep_it_quiet(clock: ManualClock) -> None:
    source, dog = make(clock)
    dog.watch("the next piece", 5)
    for _ in range(10):
        clock.advance(4)
        dog.line()
    assert not source.token.cancelled
    assert len(clock.pending()) == 1
    clock.advance(5)
    assert source.token.cancelled


def test_lines_without_parts_do_not_for_ever(clock: ManualClock) -> None:
    source, dog = make(clock)
    dog.watch("the next piece", 5, parts_limit_s=20)
    for _ in range(4):
        clock.advance(4)
        dog.line()
    assert not source.token.cancelled
    clock.advance(4)
    assert source.token.cancelled


def test_parts_do(clock: ManualClock) -> None:
    source, dog = make(clock)
    dog.watch("the next piece", 5, parts_limit_s=20)
    for _ in range(50):
        clock.advance(4)
        dog.part()
    assert not source.token.cancelled


def test_a_new_phase_has_its_own_limit(clock: ManualClock) -> None:
    source, dog = make(clock)
    dog.watch("connecting", 5)
    clock.advance(4)
    dog.watch("the first byte", 100)
    clock.advance(99)
    assert not source.token.cancelled
    clock.advance(2)
    assert dog.expired.startswith("the first byte")


def test_progress_of_one_phase_is_not_held_against_the_next(clock: ManualClock) -> None:
    source, dog = make(clock)
    dog.watch("long", 100)
    clock.advance(50)
    dog.watch("short", 3)
    clock.advance(2)
    assert not source.token.cancelled


@pytest.mark.parametrize("how", ["stopped", "ended", "cancelled"])
def test_it_sleeps_when_all_is_over(clock: ManualClock, how: str) -> None:
    source, dog = make(clock)
    dog.watch("connecting", 5)
    if how == "stopped":
        dog.stop()
    elif how == "ended":
        source.seal()
    else:
        source.cancel(Cause.USER_STOP)
    clock.advance(10)
    assert dog.expired == ""
    assert clock.pending() == []


def test_an_end_that_comes_while_the_timer_is_made_leaves_none() -> None:
    class EndsMeanwhile(ManualClock):
        def call_at(self, when: float, callback: Callable[[], object]) -> ManualTimer:
            timer = super().call_at(when, callback)
            source.seal()
            return timer

    racing = EndsMeanwhile()
    source, dog = make(racing)
    dog.watch("connecting", 5)
    assert racing.pending() == []
