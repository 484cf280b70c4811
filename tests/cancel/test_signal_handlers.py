"""A real signal handler cancels, at random moments, while the same thread is in the same token."""

import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import CancelSource, Cause, Reason, TokenEnded, bridge

STOP = Reason(Cause.USER_STOP, "Ctrl-C")
ROUNDS = 250

# A deadlock would also stop the signal that pytest-timeout uses, and the timer is needed here. Each
# of many rounds gives the processor away once, which takes long where many want it.
pytestmark = pytest.mark.timeout(180, method="thread")


@contextmanager
def handler(action: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # What was already on its way is ignored; it must not meet the default action.
        signal.signal(signal.SIGALRM, lambda *_: None)
        time.sleep(0)
        signal.signal(signal.SIGALRM, before)


def child(source: CancelSource) -> None:
    source.token.child("child").seal()


def timed_child(source: CancelSource) -> None:
    source.token.child("child", timeout_s=60).seal()


def on_cancel(source: CancelSource) -> None:
    source.token.on_cancel(lambda: None).remove()


def hook(source: CancelSource) -> None:
    bridge(source.token, lambda: None).remove()


def seal_a_child_with_children(source: CancelSource) -> None:
    child = source.token.child("child")
    grandchild = child.token.child("grandchild")
    child.seal()
    grandchild.seal()


def link(source: CancelSource) -> None:
    CancelSource("linked").link(source.token).unlink()


def cancel_a_child(source: CancelSource) -> None:
    child = source.token.child("child")
    child.token.child("grandchild")
    child.cancel(Cause.BUDGET)


def cancel(source: CancelSource) -> None:
    source.cancel(Cause.BUDGET)


def seal(source: CancelSource) -> None:
    source.seal()


def wait(source: CancelSource) -> None:
    source.token.wait(0.00001)


@pytest.mark.parametrize(
    "operation",
    [
        child,
        timed_child,
        on_cancel,
        hook,
        seal_a_child_with_children,
        link,
        cancel_a_child,
        cancel,
        seal,
        wait,
    ],
)
def test_a_cancel_lands_inside_an_operation(operation: Callable[[CancelSource], None]) -> None:
    chance = random.Random(operation.__name__)
    inside = 0
    for _ in range(ROUNDS):
        source = CancelSource("target")
        came: list[bool] = []
        called: list[int] = []
        bridge(source.token, lambda called=called: called.append(1))  # type: ignore[misc]
        with handler(lambda source=source, came=came: came.append(source.cancel(STOP))):  # type: ignore[misc]
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 150e-6))
            began = time.monotonic()
            while not came:
                try:
                    operation(source)
                except TokenEnded:
                    # Only a seal of the target itself may be first.
                    assert operation is seal
                assert time.monotonic() - began < 30
        (won,) = came
        if operation in (cancel, seal):
            inside += won
        else:
            assert won
            assert source.token.reason == STOP
        assert source.token.cancelled != source.token.ended
        assert called == ([1] if source.token.cancelled else [])
        assert not source.token._below
        assert not source.token._hooks
    assert operation not in (cancel, seal) or inside < ROUNDS


def test_a_waiting_thread_is_woken_by_a_handler_in_the_same_thread() -> None:
    source = CancelSource("target")
    with handler(lambda: source.cancel(STOP)):
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        began = time.monotonic()
        assert source.token.wait(20)
    assert time.monotonic() - began < 15


def test_handlers_inside_handlers() -> None:
    """A handler that is itself interrupted: the timer goes on while it cancels."""
    for _ in range(15):
        sources = [CancelSource(f"{number}") for number in range(30)]
        for source in sources:
            for _ in range(20):
                source.token.child("child")
        rest = list(sources)

        def cancel_one(rest: list[CancelSource] = rest) -> None:
            if rest:
                rest.pop().cancel(STOP)

        with handler(cancel_one):
            signal.setitimer(signal.ITIMER_REAL, 100e-6, 100e-6)
            end = time.monotonic() + 30
            while rest:
                cancel_one()
                assert time.monotonic() < end
        assert all(source.token.cancelled for source in sources)
        assert not any(source.token._below for source in sources)


@pytest.mark.anyio
async def test_a_handler_cancels_the_scope_of_the_loop_that_it_interrupts() -> None:
    assert threading.current_thread() is threading.main_thread()
    for delay_s in (1e-5, 1e-4, 1e-3, 1e-2):
        source = CancelSource("target")
        with handler(lambda source=source: source.cancel(STOP)):  # type: ignore[misc]
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            with anyio.fail_after(30), source.token.scope() as scope:
                while True:
                    await anyio.lowlevel.checkpoint()
        assert scope.caught


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Others have callbacks in the collector (hypothesis has), and what is raised in one of them is
    lost. A signal that comes while it collects is heard in the first of them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def wait_for_the_signal() -> None:
    """A function of its own: where a `while` with a condition jumps back, Python 3.12 and 3.13 do
    not find the handler of a `try` around it."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        # A signal that comes while a thread takes the interpreter back, as after a cancel that
        # gave way, may be looked for only when that happens again.
        time.sleep(0)


@pytest.mark.usefixtures("no_collector")
def test_ctrl_c_inside_cancel_is_raised_and_the_cancel_is_whole() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    raised = 0
    chance = random.Random(1)
    for _ in range(400):
        source = CancelSource("target")
        children = [source.token.child(f"{number}") for number in range(30)]
        called: list[int] = []
        for each in children:
            bridge(each.token, lambda called=called: called.append(1))  # type: ignore[misc]
        with handler(interrupt):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 300e-6))
                source.cancel(STOP)
                wait_for_the_signal()
            except KeyboardInterrupt:
                raised += 1
        if source.token._cell:
            assert all(each.token.cancelled for each in children)
            assert len(called) in (30, 31)
            assert not source.token._below
    assert raised == 400
