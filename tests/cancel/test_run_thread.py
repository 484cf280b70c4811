"""`run_thread`: the outcome of a function in a thread, whatever it does when told to stop."""

import threading
import time
from collections.abc import Iterator

import anyio
import pytest

from bargein.cancel import (
    Cancelled,
    CancelSource,
    Cause,
    Reason,
    TooManyAbandoned,
    abandoned,
    counts,
    current_token,
    is_interrupted,
    run_thread,
)
from bargein.cancel.accounts import ABANDONED_MAX
from tests.cancel.harness import eventually

pytestmark = pytest.mark.anyio

STOP = Reason(Cause.USER_STOP)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What blocked functions wait for; set at the end, so that none outlives its test."""
    event = threading.Event()
    yield event
    event.set()
    eventually(lambda: abandoned() == [])


async def cancel_soon(source: CancelSource, ready: threading.Event) -> None:
    await anyio.to_thread.run_sync(ready.wait)
    source.cancel(STOP)


async def test_a_value_an_error_and_the_arguments() -> None:
    source = CancelSource("s")

    def fails() -> None:
        raise LookupError("its own")

    outcome = await run_thread(divmod, 7, 2, token=source.token, grace_s=1)
    assert (outcome.status, outcome.value, outcome.error) == ("finished", (3, 1), None)
    assert outcome.unwrap() == (3, 1)
    assert outcome.elapsed_s >= 0
    failed = await run_thread(fails, token=source.token, grace_s=1)
    assert failed.status == "failed"
    with pytest.raises(LookupError, match="its own"):
        failed.unwrap()
    assert not source.token._below


async def test_each_job_has_a_fresh_daemon_thread_and_a_child_token_that_ends_with_it() -> None:
    source = CancelSource("s")
    threads: list[threading.Thread] = []

    def job() -> None:
        threads.append(threading.current_thread())

    for number in range(3):
        outcome = await run_thread(job, token=source.token, grace_s=1, name=f"job {number}")
        assert outcome.token.name == f"job {number}"
        assert outcome.token.ended
    assert len({id(thread) for thread in threads}) == 3
    assert all(thread.daemon for thread in threads)
    assert [thread.name for thread in threads] == [f"bargein-job {n}" for n in range(3)]


@pytest.mark.parametrize("way", ["check", "sleep", "wait", "is_interrupted", "value"])
async def test_a_function_that_looks_at_its_token_is_cancelled_at_once(way: str) -> None:
    source = CancelSource("s")
    ready = threading.Event()

    def job() -> str:
        token = current_token()
        assert token is not None
        ready.set()
        if way == "sleep":
            token.sleep(50)
        elif way == "wait":
            assert token.wait(50)
            token.check()
        else:
            while not is_interrupted():
                time.sleep(0.0005)
            if way != "value":
                token.check()
        return "a last word"

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_soon, source, ready)
        with anyio.fail_after(30):
            outcome = await run_thread(job, token=source.token, grace_s=30)
    if way == "value":
        # It had a result when it stopped: a cancel that came too late to matter.
        assert (outcome.status, outcome.value) == ("finished", "a last word")
    else:
        assert (outcome.status, outcome.error) == ("cancelled", None)
        with pytest.raises(Cancelled) as caught:
            outcome.unwrap()
        assert caught.value.token is outcome.token


async def test_under_a_cancelled_token_nothing_is_started() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    ran: list[int] = []
    outcome = await run_thread(lambda: ran.append(1), token=source.token, grace_s=1)
    assert outcome.status == "cancelled"
    await anyio.sleep(0.01)
    assert ran == []


async def test_somebody_elses_cancelled_is_a_failure() -> None:
    """Only what our own cancel caused is `cancelled`."""
    source, other = CancelSource("s"), CancelSource("other")
    other.cancel(STOP)
    outcome = await run_thread(other.token.check, token=source.token, grace_s=1)
    assert outcome.status == "failed"
    assert isinstance(outcome.error, Cancelled)


async def test_one_blocked_in_c_is_abandoned_within_its_budget(release: threading.Event) -> None:
    source = CancelSource("s")
    before = counts()
    lock = threading.Lock()
    lock.acquire()
    functions = {
        "time.sleep": lambda: time.sleep(2.5),
        "lock.acquire": lambda: lock.acquire(timeout=50),
        "Event.wait": lambda: release.wait(50),
    }
    took: dict[str, float] = {}

    async def run(name: str) -> None:
        outcome = await run_thread(functions[name], token=source.token, grace_s=0.1, name=name)
        assert outcome.status == "abandoned"
        took[name] = outcome.elapsed_s

    with anyio.fail_after(40):
        async with anyio.create_task_group() as group:
            for name in functions:
                group.start_soon(run, name)
            await anyio.sleep(0.05)
            source.cancel(STOP)
    assert set(took) == set(functions)
    assert all(0.09 < each < 2.4 for each in took.values())
    assert {each.name for each in abandoned()} == set(functions)
    assert all(each.kind == "thread" for each in abandoned())
    assert counts().threads_abandoned == before.threads_abandoned + 3
    lock.release()


async def test_a_late_result_goes_nowhere_and_is_counted(release: threading.Event) -> None:
    source = CancelSource("s")
    before = counts().late_results
    ready = threading.Event()

    def job() -> str:
        ready.set()
        release.wait(50)
        return "too late"

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_soon, source, ready)
        outcome = await run_thread(job, token=source.token, grace_s=0.01)
    assert (outcome.status, outcome.value) == ("abandoned", None)
    assert [each.name for each in abandoned()] == ["job"]
    release.set()
    with anyio.fail_after(30):
        while counts().late_results == before:  # noqa: ASYNC110 - the thread tells nobody
            await anyio.sleep(0.001)
    assert abandoned() == []
    assert outcome.value is None


async def test_a_late_result_is_counted_even_when_the_loop_is_gone() -> None:
    before = counts().late_results
    finish = threading.Event()
    ready = threading.Event()

    def job() -> None:
        ready.set()
        finish.wait(50)

    async def main() -> None:
        source = CancelSource("s")
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_soon, source, ready)
            await run_thread(job, token=source.token, grace_s=0.01)

    await anyio.to_thread.run_sync(anyio.run, main)
    finish.set()
    await anyio.to_thread.run_sync(lambda: eventually(lambda: counts().late_results == before + 1))


async def test_the_number_of_abandoned_threads_is_bounded(release: threading.Event) -> None:
    source = CancelSource("s")
    source_of_more = CancelSource("more")

    async def abandon_one() -> None:
        await run_thread(release.wait, 50, token=source.token, grace_s=0, name="wedged")

    async with anyio.create_task_group() as group:
        for _ in range(ABANDONED_MAX):
            group.start_soon(abandon_one)
        await anyio.wait_all_tasks_blocked()
        source.cancel(STOP)
    assert len(abandoned()) == ABANDONED_MAX
    with pytest.raises(TooManyAbandoned, match=r"64 pieces .* still running \(wedged\)"):
        await run_thread(int, token=source_of_more.token, grace_s=1)
    release.set()
    await anyio.to_thread.run_sync(lambda: eventually(lambda: abandoned() == []))
    assert (await run_thread(int, token=source_of_more.token, grace_s=1)).unwrap() == 0


async def test_two_blocking_jobs_do_not_hold_the_loop(release: threading.Event) -> None:
    """Two blocking tools in parallel froze the loop until both were done."""
    source = CancelSource("s")
    ticks = 0
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(lambda: run_thread(release.wait, 50, token=source.token, grace_s=1))
        for _ in range(20):
            await anyio.sleep(0.001)
            ticks += 1
        release.set()
    assert ticks == 20


async def test_one_of_two_jobs_is_stopped_alone() -> None:
    turn = CancelSource("turn")
    calls = [turn.token.child(f"call {n}") for n in range(2)]
    statuses: dict[int, str] = {}
    finish = threading.Event()

    def job() -> None:
        token = current_token()
        assert token is not None
        while not finish.is_set():
            token.sleep(0.001)

    async def run(number: int) -> None:
        outcome = await run_thread(job, token=calls[number].token, grace_s=30)
        statuses[number] = outcome.status
        finish.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run, 0)
        group.start_soon(run, 1)
        await anyio.wait_all_tasks_blocked()
        calls[1].cancel(STOP)
    assert statuses == {1: "cancelled", 0: "finished"}
    assert not turn.token.cancelled


async def test_a_grace_of_nothing_still_hears_one_that_has_just_ended() -> None:
    source = CancelSource("s")
    outcome = await run_thread(lambda: source.cancel(STOP), token=source.token, grace_s=5)
    assert outcome.status == "finished"
