"""Which token the running code belongs to: it follows the context, and nothing else."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import (
    CancelSource,
    Cause,
    TaskOwner,
    Token,
    as_current,
    current_token,
    in_empty_context,
    is_interrupted,
    run_abandonable,
    run_thread,
    start_thread,
)

STOP = Cause.USER_STOP
color: ContextVar[str] = ContextVar("color", default="none")


def test_outside_of_any_token_nothing_is_interrupted() -> None:
    assert current_token() is None
    assert not is_interrupted()


def test_as_current_nests_and_restores() -> None:
    outer, inner = CancelSource("outer"), CancelSource("inner")
    with as_current(outer.token) as token:
        assert token is outer.token
        with as_current(inner.token):
            assert current_token() is inner.token
            inner.cancel(STOP)
            assert is_interrupted()
            with as_current(None):
                assert current_token() is None
        assert not is_interrupted()
    assert current_token() is None


def test_start_thread_takes_token_and_context_along() -> None:
    source = CancelSource("s")
    seen: list[tuple[Token | None, str, int, str]] = []

    def look(number: int, *, word: str) -> None:
        seen.append((current_token(), color.get(), number, word))

    with as_current(source.token):
        color.set("red")
        thread = start_thread(look, 7, word="x")
        thread.join()
    assert seen == [(source.token, "red", 7, "x")]
    assert thread.daemon
    assert thread.name == "bargein-look"


def test_a_started_thread_may_leave_by_raising_cancelled() -> None:
    """No traceback is printed: pytest would turn one into an error."""
    source = CancelSource("s")

    def works() -> None:
        token = current_token()
        assert token is not None
        token.sleep(20)

    with as_current(source.token):
        thread = start_thread(works)
    source.cancel(STOP)
    thread.join(30)
    assert not thread.is_alive()


def test_a_plain_thread_has_no_token() -> None:
    """Which is why `start_thread` is there."""
    seen: list[Token | None] = []
    with CancelSource("s") as source, as_current(source.token):
        thread = threading.Thread(target=lambda: seen.append(current_token()))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.anyio
async def test_tasks_and_their_tasks_belong_to_the_token_they_were_started_under() -> None:
    source, other = CancelSource("s"), CancelSource("other")
    seen: list[Token | None] = []
    started = anyio.Event()

    async def grandchild() -> None:
        seen.append(current_token())

    async def child() -> None:
        seen.append(current_token())
        async with anyio.create_task_group() as group:
            group.start_soon(grandchild)
        started.set()

    async with anyio.create_task_group() as group:
        with source.token.scope():
            group.start_soon(child)
        with other.token.scope():
            await started.wait()
    assert seen == [source.token, source.token]


@pytest.mark.anyio
async def test_run_thread_and_run_abandonable_jobs_belong_to_their_own_child_token() -> None:
    source = CancelSource("turn")
    seen: list[tuple[str, str]] = []

    def look() -> None:
        token = current_token()
        assert token is not None
        assert token is not source.token
        seen.append((token.name, color.get()))
        start_thread(lambda: seen.append((str(getattr(current_token(), "name", None)), ""))).join()

    async def look_async() -> None:
        look()

    color.set("blue")
    async with TaskOwner():
        await run_thread(look, token=source.token, grace_s=1, name="in a thread")
        await run_abandonable(look_async, token=source.token, grace_s=1, name="in a task")
    assert seen == [
        ("in a thread", "blue"),
        ("in a thread", ""),
        ("in a task", "blue"),
        ("in a task", ""),
    ]
    assert current_token() is None


@pytest.mark.anyio
async def test_loops_of_their_own_run_inside_a_job() -> None:
    """The name of the loop around goes with the context, and must not confuse anyio there."""
    source = CancelSource("s")

    async def inside() -> str:
        token = current_token()
        assert token is not None
        await anyio.lowlevel.checkpoint()
        return token.name

    for run in (
        lambda: anyio.run(inside, backend="asyncio"),
        lambda: anyio.run(inside, backend="trio"),
        lambda: asyncio.run(inside()),
    ):
        outcome = await run_thread(run, token=source.token, grace_s=5, name="job")
        assert outcome.unwrap() == "job"


@pytest.mark.anyio
async def test_a_blocking_wait_is_allowed_in_a_job_and_refused_in_the_loop() -> None:
    source = CancelSource("s")
    with pytest.raises(RuntimeError, match=r"would block the event loop .*wait_async"):
        source.token.wait()
    with pytest.raises(RuntimeError, match="would block the event loop"):
        source.token.sleep(1)
    outcome = await run_thread(source.token.wait, 0.001, token=source.token, grace_s=1)
    assert outcome.unwrap() is False


class Pool:
    """Made lazily by whoever comes first, as connection pools are; its thread looks around."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.token = current_token()

    def token_there(self) -> Token | None:
        return self.pool.submit(current_token).result()


def test_a_lazily_made_pool_does_not_stay_bound_to_the_call_that_came_first() -> None:
    first, second = CancelSource("first"), CancelSource("second")
    pools: list[Pool] = []

    def pool() -> Pool:
        if not pools:
            pools.append(in_empty_context(Pool))
        return pools[0]

    with as_current(first.token):
        assert pool().token_there() is None
    first.cancel(STOP)
    with as_current(second.token):
        assert pool().token is None
        assert pool().token_there() is None
        assert not is_interrupted()
    pools[0].pool.shutdown()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_lazily_started_task_does_not_stay_bound_either() -> None:
    first = CancelSource("first")
    seen: list[Token | None] = []

    async def background() -> None:
        seen.append(current_token())

    with first.token.scope():
        task = in_empty_context(asyncio.get_running_loop().create_task, background())
    await task
    assert seen == [None]


def test_in_empty_context_gives_back_what_the_function_does() -> None:
    assert in_empty_context(lambda a, b: a + b, 1, b=2) == 3
