"""`stop="raise"`: a Python loop that looks at nothing is stopped, and no lock is left held."""

import io
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator

import anyio
import pytest

from bargein.cancel import (
    Cancelled,
    CancelSource,
    Cause,
    Reason,
    abandoned,
    current_token,
    run_thread,
)
from bargein.cancel.raising import Raiser
from tests.cancel.harness import eventually

STOP = Reason(Cause.USER_STOP)
HAS_MONITORING = sys.version_info >= (3, 12)


def spins() -> None:
    number = 0
    while True:
        number += 1


async def run_and_stop(
    function: Callable[[], object], *, grace_s: float = 5.0
) -> tuple[str, float]:
    source = CancelSource("s")
    stopped_at: list[float] = []

    async def stop() -> None:
        await anyio.sleep(0.02)
        stopped_at.append(time.monotonic())
        source.cancel(STOP)

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        outcome = await run_thread(function, token=source.token, grace_s=grace_s, stop="raise")
    return outcome.status, time.monotonic() - stopped_at[0]


@pytest.mark.anyio
async def test_a_loop_that_looks_at_nothing_is_stopped_within_its_grace() -> None:
    def nested() -> None:
        for _ in range(10**9):
            inner()

    def inner() -> None:
        total = 0
        for number in range(50):
            total += number

    def builds() -> None:
        while True:
            [number for number in range(20)]  # noqa: C416

    for function in (spins, nested, builds):
        status, waited_s = await run_and_stop(function)
        assert status == "cancelled"
        assert waited_s < 20
    assert abandoned() == []


@pytest.mark.anyio
async def test_its_finally_blocks_run_and_it_may_catch_it_to_give_a_result() -> None:
    steps: list[str] = []

    def cleans_up() -> None:
        try:
            spins()
        finally:
            steps.append("cleaned up")

    def answers() -> str:
        try:
            spins()
        except Cancelled as cancelled:
            return f"{cancelled.token is current_token()} {cancelled}"
        return "not reached"

    assert (await run_and_stop(cleans_up))[0] == "cancelled"
    assert steps == ["cleaned up"]
    source = CancelSource("s")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: cancel_later(source))
        outcome = await run_thread(answers, token=source.token, grace_s=5, stop="raise")
    assert outcome.unwrap() == "True answers was cancelled (parent: s (user_stop))"


async def cancel_later(source: CancelSource) -> None:
    await anyio.sleep(0.02)
    source.cancel(STOP)


@pytest.mark.anyio
async def test_one_that_looks_at_its_token_never_needs_it() -> None:
    def looks() -> None:
        token = current_token()
        assert token is not None
        token.sleep(50)

    # It would be raised after a tenth of the grace.
    status, waited_s = await run_and_stop(looks, grace_s=300)
    assert status == "cancelled"
    assert waited_s < 15


@pytest.mark.anyio
async def test_one_that_swallows_it_is_abandoned() -> None:
    release, swallowed = threading.Event(), threading.Event()

    def swallows() -> None:
        try:
            while not release.is_set():
                pass
        except Cancelled:
            swallowed.set()
            release.wait(50)

    status, waited_s = await run_and_stop(swallows, grace_s=2)
    assert status == "abandoned"
    assert 1.9 < waited_s < 20
    assert swallowed.is_set()
    release.set()
    await anyio.to_thread.run_sync(lambda: eventually(lambda: abandoned() == []))


@pytest.mark.anyio
async def test_one_that_is_in_somebody_elses_code_is_left_alone() -> None:
    """The exception is raised in the function's own file only."""
    namespace: dict[str, Callable[[threading.Event], None]] = {}
    code = "def elsewhere(over):\n    while not over.is_set(): pass"
    exec(compile(code, "somebody_elses_file.py", "exec"), namespace)
    over = threading.Event()

    def calls_elsewhere() -> None:
        namespace["elsewhere"](over)

    status, _ = await run_and_stop(calls_elsewhere, grace_s=0.3)
    assert status == "abandoned"
    over.set()
    await anyio.to_thread.run_sync(lambda: eventually(lambda: abandoned() == []))


@pytest.mark.anyio
async def test_only_the_thread_that_is_aimed_at_is_hit() -> None:
    """The same function runs twice; one call is stopped."""
    stopped, spared = CancelSource("stopped"), CancelSource("spared")
    over = threading.Event()
    statuses: dict[str, str] = {}

    def shared() -> str:
        while not over.is_set():
            pass
        return "to the end"

    async def run(source: CancelSource) -> None:
        outcome = await run_thread(shared, token=source.token, grace_s=5, stop="raise")
        statuses[source.token.name] = outcome.status

    async with anyio.create_task_group() as group:
        group.start_soon(run, stopped)
        group.start_soon(run, spared)
        await anyio.sleep(0.02)
        stopped.cancel(STOP)
        with anyio.fail_after(30):
            while "stopped" not in statuses:  # noqa: ASYNC110 - a thread is waited for
                await anyio.sleep(0.001)
        await anyio.sleep(0.05)
        assert statuses == {"stopped": "cancelled"}
        over.set()
    assert statuses["spared"] == "finished"


@pytest.mark.anyio
async def test_nothing_comes_after_the_job_has_ended() -> None:
    """On a reused thread the exception hit the next job. Here it must hit nothing at all."""
    statuses: list[str] = []
    for _ in range(30):
        source = CancelSource("s")
        source_of_end = time.monotonic() + 0.011

        def ends_by_itself(at: float = source_of_end) -> str:
            while time.monotonic() < at:
                pass
            return "by itself"

        async with anyio.create_task_group() as group:
            group.start_soon(lambda source=source: cancel_at_once(source))  # type: ignore[misc]
            outcome = await run_thread(
                ends_by_itself, token=source.token, grace_s=0.1, stop="raise"
            )
        statuses.append(outcome.status)
    # It is given up where the machine was busy with others for longer than its grace.
    assert statuses.count("abandoned") < 15
    await anyio.to_thread.run_sync(lambda: eventually(lambda: abandoned() == []))
    if HAS_MONITORING:
        from bargein.cancel.raising import _AtMonitoredRound, _way

        assert isinstance(_way, _AtMonitoredRound)
        assert not _way._codes
        assert not _way._errors
        assert not _way._rounds


def test_a_thread_that_has_the_number_of_one_that_ended_is_not_hit() -> None:
    """One is aimed at, and ends before it could be hit; the next often has its number."""
    over, begin = threading.Event(), threading.Event()
    ended_by_themselves: list[int] = []

    def job(loops: bool) -> None:
        begin.wait(10)
        # The first thread comes to no loop, and so to no place where it could be hit.
        if loops:
            while not over.is_set():
                pass
        ended_by_themselves.append(threading.get_ident())

    for _ in range(6):
        source = CancelSource("s")
        source.cancel(STOP)
        raiser = Raiser(job)
        begin.clear()
        over.clear()
        first = threading.Thread(target=job, args=(False,))
        first.start()
        with raiser.aimed_at(first, source.token):
            raiser.try_once()
            begin.set()
            first.join()
            following = threading.Thread(target=job, args=(True,))
            following.start()
            for _ in range(10):
                raiser.try_once()
                time.sleep(0.0001)
            over.set()
            following.join()
    assert len(ended_by_themselves) == 12
    assert len(set(ended_by_themselves)) < 12, "no number was used twice"


async def cancel_at_once(source: CancelSource) -> None:
    source.cancel(STOP)


@pytest.mark.anyio
async def test_it_needs_a_function_written_in_python() -> None:
    source = CancelSource("s")
    with pytest.raises(TypeError, match=r"stop='raise' needs a function written in Python"):
        await run_thread(time.sleep, 0, token=source.token, grace_s=1, stop="raise")
    assert not source.token._below

    class Tool:
        def method(self) -> str:
            return "a method will do"

    outcome = await run_thread(Tool().method, token=source.token, grace_s=1, stop="raise")
    assert outcome.unwrap() == "a method will do"


# --- nothing leaks ---


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


class Locks:
    """The loops that were seen to leak, each with the lock that it would leave held."""

    def __init__(self) -> None:
        self.quit = threading.Event()
        self.lock = threading.Lock()
        self.condition = threading.Condition()
        self.queue: queue.Queue[int] = queue.Queue()
        self.handler = logging.StreamHandler(io.StringIO())
        self.log = logging.getLogger("of a tool")
        self.log.propagate = False
        self.log.handlers.clear()
        self.log.addHandler(self.handler)

    def acquire_and_try(self) -> None:
        while not self.quit.is_set():
            self.lock.acquire()
            try:
                pass
            finally:
                self.lock.release()

    def with_lock(self) -> None:
        while not self.quit.is_set():
            with self.lock:
                pass

    def use_condition(self) -> None:
        while not self.quit.is_set():
            with self.condition:
                self.condition.notify_all()
            with self.condition:
                self.condition.wait(0)

    def use_queue(self) -> None:
        while not self.quit.is_set():
            self.queue.put(1)
            self.queue.get()

    def write_log(self) -> None:
        while not self.quit.is_set():
            self.log.error("a line")

    def is_any_held(self) -> bool:
        for lock in (self.lock, self.condition, self.queue.mutex, self.handler.lock):
            assert lock is not None
            if not lock.acquire(timeout=20):
                return True
            lock.release()
        return False


KINDS = {
    "acquire and try": (Locks.acquire_and_try, 200 if HAS_MONITORING else 60),
    "with Lock": (Locks.with_lock, 200 if HAS_MONITORING else 60),
    # Before 3.12 these are seldom found in their own code, see docs/kernel.md.
    "Condition": (Locks.use_condition, 200 if HAS_MONITORING else 0),
    "queue": (Locks.use_queue, 200 if HAS_MONITORING else 0),
    "log": (Locks.write_log, 200 if HAS_MONITORING else 0),
}


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("kind", KINDS)
def test_no_lock_is_left_held(kind: str) -> None:
    """Raise in fresh threads, hundreds of times where it can be reached, for a while elsewhere."""
    loop, wanted = KINDS[kind]
    raised = 0
    end = time.monotonic() + (6 if wanted else 1.5)
    while raised < (wanted or 20) and time.monotonic() < end:
        locks = Locks()
        hit: list[Cancelled] = []

        def run(locks: Locks = locks, hit: list[Cancelled] = hit) -> None:
            try:
                loop(locks)
            except Cancelled as cancelled:
                hit.append(cancelled)

        source = CancelSource("s")
        source.cancel(STOP)
        thread = threading.Thread(target=run)
        thread.start()
        raiser = Raiser(loop)
        with raiser.aimed_at(thread, source.token):
            while thread.is_alive() and not raiser.try_once() and time.monotonic() < end:
                time.sleep(0.0001)
            locks.quit.set()
            thread.join(30)
        assert not thread.is_alive()
        assert not locks.is_any_held()
        raised += len(hit)
    assert raised >= wanted // 10


class EndsWhenLookedAt(threading.Thread):
    """Ends just after it was found alive."""

    def __init__(self) -> None:
        super().__init__()
        self._let_go = threading.Event()
        self._looked_at = False

    def run(self) -> None:
        self._let_go.wait()

    def is_alive(self) -> bool:
        if self._looked_at:
            return super().is_alive()
        self._looked_at = True
        self._let_go.set()
        self.join()
        return True


@pytest.mark.parametrize("_", range(3))
def test_a_thread_that_ends_while_it_is_looked_at_is_left_alone(_: int) -> None:
    thread = EndsWhenLookedAt()
    thread.start()
    raiser = Raiser(spins)
    with raiser.aimed_at(thread, CancelSource("s").token):
        assert not raiser.try_once()


@pytest.mark.anyio
async def test_a_session_of_jobs_that_end_by_themselves_at_the_last_moment() -> None:
    """Whatever the moment, the outcome is the job's own or the stop's, never an error of ours."""

    def ends_soon() -> str:
        token = current_token()
        assert token is not None
        token.wait(5.0)
        until = time.monotonic() + 0.003
        while time.monotonic() < until:
            pass
        return "done"

    for _ in range(40):
        status, _elapsed = await run_and_stop(ends_soon, grace_s=0.02)
        assert status in ("finished", "cancelled", "abandoned")
    await anyio.to_thread.run_sync(lambda: eventually(lambda: abandoned() == []))
