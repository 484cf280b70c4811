"""`on_cancel`: on a kernel thread, in order, once; nobody's callback harms another."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bargein.cancel import CancelSource, Cause, bridge, counts, current_token
from bargein.cancel.callbacks import Callbacks
from bargein.cancel.context import as_current
from bargein.testing.clock import ManualClock
from tests.cancel.harness import eventually

STOP = Cause.USER_STOP


def test_callbacks_run_once_on_a_kernel_thread_in_the_order_they_were_registered() -> None:
    source = CancelSource("s")
    calls: list[tuple[int, str]] = []
    for number in range(10):
        source.token.on_cancel(
            lambda number=number: calls.append((number, threading.current_thread().name))  # type: ignore[misc]
        )
    source.cancel(STOP)
    source.cancel(STOP)
    eventually(lambda: len(calls) == 10)
    assert calls == [(number, "bargein-callbacks") for number in range(10)]


def test_one_that_is_registered_too_late_runs_at_once() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    called = threading.Event()
    registration = source.token.on_cancel(called.set)
    assert called.wait(30)
    assert not registration.remove()


def test_remove_is_in_time_or_not_and_never_waits() -> None:
    source = CancelSource("s")
    calls: list[str] = []
    kept = source.token.on_cancel(lambda: calls.append("kept"))
    removed = source.token.on_cancel(lambda: calls.append("removed"))
    assert removed.remove()
    assert not removed.remove()
    source.cancel(STOP)
    eventually(lambda: calls)
    assert calls == ["kept"]
    assert not kept.remove()


def test_the_end_of_a_token_forgets_them() -> None:
    source = CancelSource("s")
    called: list[int] = []
    before = source.token.on_cancel(lambda: called.append(1))
    source.seal()
    after = source.token.on_cancel(lambda: called.append(2))
    assert not before.remove()
    assert not after.remove()
    assert not source.token._hooks
    marker = CancelSource("marker")
    done = threading.Event()
    marker.token.on_cancel(done.set)
    marker.cancel(STOP)
    assert done.wait(30)
    assert called == []


def test_one_that_raises_does_not_stop_the_others_and_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = CancelSource("s")
    before = counts()
    called = threading.Event()

    def breaks() -> None:
        raise LookupError("a bug of the user")

    def leaves() -> None:
        raise SystemExit

    source.token.on_cancel(breaks)
    source.token.on_cancel(leaves)
    source.token.on_cancel(called.set)
    with caplog.at_level(logging.ERROR, logger="bargein.cancel"):
        source.cancel(STOP)
        assert called.wait(30)
    # At least: one of another test may be counted only now.
    eventually(lambda: counts().callbacks_run >= before.callbacks_run + 3)
    assert counts().callbacks_failed == before.callbacks_failed + 2
    assert "a bug of the user" in caplog.text


def test_a_bridge_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    source = CancelSource("s")
    child = CancelSource("child", source.token)
    before = counts().bridges_failed
    called: list[str] = []

    def breaks() -> None:
        raise LookupError

    bridge(source.token, breaks)
    bridge(source.token, lambda: called.append("same token"))
    bridge(child.token, lambda: called.append("child"))
    assert source.cancel(STOP)
    assert called == ["same token", "child"]
    assert counts().bridges_failed == before + 1
    assert "a bridge on s raised LookupError" in caplog.text


@contextmanager
def broken_log() -> Iterator[None]:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("the log is broken too")

    log, broken = logging.getLogger("bargein.cancel"), Broken()
    log.addFilter(broken)
    try:
        yield
    finally:
        log.removeFilter(broken)


def test_a_broken_log_does_not_stop_the_others_either() -> None:
    source = CancelSource("s")
    called, bridged = threading.Event(), list[int]()

    def breaks() -> None:
        raise LookupError

    for register in (lambda f: bridge(source.token, f), source.token.on_cancel):
        register(breaks)
    bridge(source.token, lambda: bridged.append(1))
    source.token.on_cancel(called.set)
    with broken_log():
        assert source.cancel(STOP)
        assert bridged == [1]
        assert called.wait(30)


def test_a_callback_may_cancel_and_register_and_even_wait_for_another_token() -> None:
    first, second = CancelSource("first"), CancelSource("second")
    done = threading.Event()

    def callback() -> None:
        assert second.cancel(STOP)
        assert second.token.wait()
        first.token.on_cancel(done.set)
        assert not first.cancel(STOP)

    first.token.on_cancel(callback)
    first.cancel(STOP)
    assert done.wait(30)


def test_callbacks_belong_to_no_token() -> None:
    seen: list[object] = []
    source = CancelSource("s")
    with as_current(source.token):
        source.token.on_cancel(lambda: seen.append(current_token()))
    source.cancel(STOP)
    eventually(lambda: seen)
    assert seen == [None]


def test_one_that_blocks_is_left_behind_and_the_rest_are_late_but_not_lost() -> None:
    clock = ManualClock()
    delivery = Callbacks(clock, callback_s_max=0.05)
    release, over = threading.Event(), threading.Event()
    threads: list[int] = []
    before = counts().callbacks_overdue

    def blocks() -> None:
        threads.append(threading.get_ident())
        release.wait(50)
        over.set()

    delivery.submit(blocks)
    for _ in range(3):
        delivery.submit(lambda: threads.append(threading.get_ident()))
    eventually(lambda: threads)
    clock.advance(0.04)
    assert len(threads) == 1
    clock.advance(0.02)
    eventually(lambda: len(threads) == 4)
    assert len(set(threads)) == 2
    assert threads[1] == threads[2] == threads[3]
    assert counts().callbacks_overdue == before + 1
    release.set()
    assert over.wait(30)


def test_each_that_blocks_costs_one_thread_and_no_more() -> None:
    clock = ManualClock()
    delivery = Callbacks(clock, callback_s_max=0.02)
    release = threading.Event()
    order: list[int] = []

    def blocks(number: int) -> None:
        order.append(number)
        release.wait(50)

    before = set(threading.enumerate())
    for number in range(5):
        delivery.submit(lambda number=number: blocks(number))  # type: ignore[misc]
    delivery.submit(lambda: order.append(99))
    for number in range(5):
        eventually(lambda number=number: order == list(range(number + 1)))  # type: ignore[misc]
        clock.advance(0.02)
    eventually(lambda: order == [0, 1, 2, 3, 4, 99])
    assert len(set(threading.enumerate()) - before) == 6
    release.set()
    # One thread serves on; those that were left behind end.
    eventually(lambda: len(set(threading.enumerate()) - before) == 1)
    delivery.submit(lambda: order.append(100))
    eventually(lambda: order[-1] == 100)


def test_a_slow_one_that_ends_in_time_is_not_replaced() -> None:
    clock = ManualClock()
    delivery = Callbacks(clock, callback_s_max=0.2)
    threads: list[int] = []
    before = counts().callbacks_overdue
    let_on = threading.Semaphore(0)

    def slow() -> None:
        threads.append(threading.get_ident())
        let_on.acquire(timeout=50)

    for _ in range(10):
        delivery.submit(slow)
    for number in range(10):
        eventually(lambda number=number: len(threads) == number + 1)  # type: ignore[misc]
        clock.advance(0.15)
        let_on.release()
    assert len(set(threads)) == 1
    assert counts().callbacks_overdue == before
