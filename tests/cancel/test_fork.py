"""A process that was forked has clocks and callbacks of its own, and none of its parent's."""

import sys

import pytest

from tests.cancel.harness import run_program

# Forking with threads around is warned of since 3.12, and rightly; tools do it nevertheless.
PROGRAM = """
import os, sys, threading, time, warnings
from bargein.cancel import SYSTEM_CLOCK, CancelSource, Cause, bridge
warnings.simplefilter("ignore", DeprecationWarning)

def in_child(check):
    pid = os.fork()
    if pid == 0:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status == 0

def use_all():
    called = threading.Event()
    source = CancelSource("s", timeout_s=0.02)
    source.token.on_cancel(called.set)
    assert source.token.wait(10)
    assert source.token.reason.cause is Cause.DEADLINE
    assert called.wait(10)

"""


def test_a_child_can_use_timers_and_callbacks_whether_or_not_the_parent_did() -> None:
    run_program(PROGRAM + "in_child(use_all); use_all(); in_child(use_all); use_all()")


def test_a_grandchild_can_too() -> None:
    run_program(PROGRAM + "use_all()\nin_child(lambda: (use_all(), in_child(use_all)))")


def test_a_child_inherits_no_timer_and_no_callback_of_its_parent() -> None:
    """What a deadline of the parent is to stop, the parent stops: a bridge may kill a process."""
    run_program(
        PROGRAM
        + """
fired_in = []
source = CancelSource("parent's", timeout_s=1.5)
bridge(source.token, lambda: fired_in.append(os.getpid()))

def check():
    use_all()
    time.sleep(max(0.0, source.token.deadline - SYSTEM_CLOCK.now()) + 0.2)
    assert fired_in == [], fired_in
    assert not source.token.cancelled
    assert SYSTEM_CLOCK.timers_held() < 5

in_child(check)
assert source.token.wait(10)
end = time.monotonic() + 10
while not fired_in:
    assert time.monotonic() < end
assert fired_in == [os.getpid()]
"""
    )


def test_a_child_may_cancel_its_copy_of_a_token() -> None:
    run_program(
        PROGRAM
        + """
source = CancelSource("parent's")
calls = []
source.token.on_cancel(lambda: calls.append(1))

def check():
    assert source.cancel(Cause.USER_STOP)
    end = time.monotonic() + 10
    while not calls:
        assert time.monotonic() < end

in_child(check)
assert not source.token.cancelled
assert calls == []
"""
    )


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_multiprocessing_child_of_a_busy_parent() -> None:
    run_program(
        PROGRAM
        + """
over = threading.Event()
def busy():
    while not over.is_set():
        CancelSource("x", timeout_s=60).seal()
        CancelSource("y", timeout_s=0).token.on_cancel(lambda: None)
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(20): in_child(use_all)
over.set()
"""
    )
