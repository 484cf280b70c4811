"""The system clock: timers in order, on time, cancelled without a trace, harmless to each other."""

import random
import threading
import time
from functools import partial

import pytest

from bargein.cancel import SystemClock
from tests.cancel.harness import eventually, together

# How long after a test has begun to add timers the first is due: longer, if it was not in time.
LEADS_S = (0.05, 0.5, 5.0)


def test_timers_fire_in_the_order_of_their_times_and_not_early() -> None:
    for lead_s in LEADS_S:
        clock = SystemClock()
        fired: list[tuple[float, float]] = []
        now = clock.now() + lead_s
        whens = [now + 0.002 * number for number in range(30)]
        for when in random.Random(3).sample(whens, len(whens)):
            fire = partial(note_time, clock, when, fired)
            clock.call_at(when, fire)
        in_time = clock.now() < now
        eventually(lambda fired=fired: len(fired) == 30)  # type: ignore[misc]
        assert all(at >= when for when, at in fired)
        if in_time:
            assert [when for when, _ in fired] == whens
            return
    pytest.fail("this machine takes seconds to add thirty timers")


def note_time(clock: SystemClock, when: float, fired: list[tuple[float, float]]) -> None:
    fired.append((when, clock.now()))


def test_a_near_timer_overtakes_a_far_one_that_the_thread_waits_for() -> None:
    clock = SystemClock()
    clock.call_at(clock.now() + 3600, lambda: None)
    time.sleep(0.02)
    called = threading.Event()
    began = clock.now()
    clock.call_at(began + 0.01, called.set)
    assert called.wait(30)


def test_a_cancelled_timer_does_not_fire() -> None:
    for lead_s in LEADS_S:
        clock = SystemClock()
        calls: list[str] = []
        done = threading.Event()
        due = clock.now() + lead_s
        timer = clock.call_at(due, partial(calls.append, "cancelled"))
        timer.cancel()
        timer.cancel()
        in_time = clock.now() < due
        clock.call_at(max(due, clock.now()) + 0.01, done.set)
        assert done.wait(30)
        if in_time:
            assert calls == []
            return
    pytest.fail("this machine takes seconds to cancel a timer")


def test_a_timer_that_raises_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    done = threading.Event()

    def breaks() -> None:
        raise SystemExit("not even this")

    clock.call_at(clock.now(), breaks)
    clock.call_at(clock.now() + 0.01, done.set)
    assert done.wait(30)
    assert "not even this" in caplog.text


def test_a_timer_may_add_timers() -> None:
    clock = SystemClock()
    done = threading.Event()
    clock.call_at(clock.now(), lambda: clock.call_at(clock.now() + 0.005, done.set))
    assert done.wait(30)


def test_none_is_missed_when_many_threads_add_them() -> None:
    clock = SystemClock()
    fired: list[tuple[int, int]] = []

    def add(thread: int) -> None:
        chance = random.Random(thread)
        for number in range(500):
            when = clock.now() + chance.choice([0, 0.0001, 0.001, 0.01])
            clock.call_at(when, partial(fired.append, (thread, number)))

    together(*(partial(add, thread) for thread in range(6)))
    eventually(lambda: len(fired) == 3000)
    assert sorted(fired) == [(thread, number) for thread in range(6) for number in range(500)]
    eventually(lambda: clock.timers_held() == 0)


def test_all_threads_that_ask_first_share_one_clock_thread() -> None:
    for _ in range(20):
        clock = SystemClock()
        fired: list[str] = []

        def add(clock: SystemClock = clock, fired: list[str] = fired) -> None:
            clock.call_at(clock.now(), lambda: fired.append(threading.current_thread().name))

        before = set(threading.enumerate())
        together(*([add] * 6))
        eventually(lambda fired=fired: len(fired) == 6)  # type: ignore[misc]
        assert len(set(threading.enumerate()) - before) == 1


def test_cancelled_timers_leave_nothing() -> None:
    clock = SystemClock()
    most = 0
    for number in range(200_000):
        clock.call_at(clock.now() + 3600, lambda: None).cancel()
        if number % 1000 == 0:
            most = max(most, clock.timers_held())
    # How much waits to be admitted and swept at once is up to the scheduler; none of it stays.
    assert most < 100_000
    eventually(lambda: clock.timers_held() < 3000)
