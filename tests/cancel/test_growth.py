"""Nothing grows: ended children are released, also after a million of them."""

import gc
import threading
import tracemalloc
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import SYSTEM_CLOCK, CancelSource, Cause, Token, bridge, run_thread
from tests.cancel.harness import eventually

STOP = Cause.USER_STOP


def bytes_grown_by(action: Callable[[], object], *, times: int) -> float:
    """How many bytes each round of `action` leaves behind."""
    for _ in range(100):
        action()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(times):
            action()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / times


@pytest.mark.timeout(120)
def test_a_million_children_are_released() -> None:
    root = CancelSource("root")
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(500_000):
        CancelSource("child", root.token).seal()
        CancelSource("child", root.token).cancel(STOP)
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert not root.token._below


@pytest.mark.parametrize(
    "way",
    ["seal", "cancel", "drop after unlink", "timeout", "callback", "bridge", "two parents", "wait"],
)
def test_no_way_to_use_a_child_leaves_anything(way: str) -> None:
    root, other = CancelSource("root"), CancelSource("other")

    def once() -> None:
        timeout_s = 3600 if way == "timeout" else None
        child = CancelSource("child", root.token, timeout_s=timeout_s)
        grandchild = CancelSource("grandchild", child.token)
        if way == "cancel":
            child.cancel(STOP)
        elif way == "drop after unlink":
            moved = CancelSource("moved")
            moved.link(root.token).unlink()
        elif way == "callback":
            child.token.on_cancel(lambda: child).remove()
        elif way == "bridge":
            bridge(grandchild.token, lambda: child)
        elif way == "two parents":
            child.link(other.token)
        elif way == "wait":
            child.token.wait(0)
        child.seal()
        grandchild.seal()

    # Cancelled timers are let go of a thousand at a time.
    assert bytes_grown_by(once, times=1000) < (400 if way == "timeout" else 60)
    assert not root.token._below
    assert not other.token._below


def test_a_token_that_changes_hands_for_ever_does_not_grow() -> None:
    parents = [CancelSource(f"{n}") for n in range(2)]
    job = CancelSource("job")
    links = [job.link(parents[0].token)]

    def move() -> None:
        links.append(job.link(parents[len(job.token._above) % 2].token))
        assert links.pop(0).unlink()

    assert bytes_grown_by(move, times=2000) < 20
    assert len(job.token._above) == 1
    assert len(job.token._cell) == 0


def test_a_cancelled_token_that_is_kept_does_not_keep_its_children() -> None:
    kept: list[Token] = []

    def turn() -> None:
        source = CancelSource("turn")
        for _ in range(50):
            source.token.child("call")
        source.cancel(STOP)
        kept.append(source.token)

    # A token with its dicts, and nothing of the fifty, which would be thirty thousand.
    assert bytes_grown_by(turn, times=100) < 10_000
    assert not any(token._below for token in kept)


def test_timers_of_ended_children_are_let_go_of() -> None:
    root = CancelSource("root")
    most = 0
    for number in range(60_000):
        CancelSource("child", root.token, timeout_s=3600).seal()
        if number % 1000 == 0:
            most = max(most, SYSTEM_CLOCK.timers_held())
    assert most < 20_000
    eventually(lambda: SYSTEM_CLOCK.timers_held() < 5000)


@pytest.mark.anyio
async def test_scopes_waits_and_jobs_leave_nothing_on_the_token() -> None:
    source = CancelSource("s")
    threads = threading.active_count()
    for _ in range(50):
        with source.token.scope():
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0):
            await source.token.wait_async()
        await run_thread(int, token=source.token, grace_s=1)
    assert not source.token._hooks
    assert not source.token._below
    eventually(lambda: threading.active_count() <= threads + 1)
