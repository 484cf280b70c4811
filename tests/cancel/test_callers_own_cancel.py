"""The caller's own `asyncio.timeout`, `TaskGroup` and `task.cancel` around our awaits work as
always, and `cancelling()` is balanced afterwards. On asyncio itself and on uvloop."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import uvloop

from bargein.cancel import (
    CancelSource,
    Cause,
    Outcome,
    Reason,
    TaskOwner,
    Token,
    abandoned,
    current_token,
    run_abandonable,
    run_thread,
    shield,
)
from tests.cancel.harness import eventually

STOP = Reason(Cause.USER_STOP)

Main = Callable[[], Awaitable[None]]
Run = Callable[[Main], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """A plain `asyncio.run`, without anyio around it."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Main) -> None:
        async def wrapped() -> None:
            await main()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0, "a cancel was left over"
            # Nothing is delivered late.
            for _ in range(3):
                await asyncio.sleep(0.001)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(wrapped())

    return run


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass


def waits_for_token() -> None:
    token = current_token()
    assert token is not None
    token.sleep(50)


async def scoped(token: Token) -> None:
    with token.scope():
        await asyncio.sleep(20)


async def in_thread(token: Token) -> Outcome[None]:
    return await run_thread(waits_for_token, token=token, grace_s=20)


async def in_task(token: Token) -> Outcome[None]:
    return await run_abandonable(asyncio.sleep, 20, token=token, grace_s=5)


async def in_stubborn_task(token: Token) -> Outcome[None]:
    return await run_abandonable(stubborn, token=token, grace_s=0.05)


async def shielded(token: Token) -> None:
    with token.scope():
        try:
            await asyncio.sleep(20)
        finally:
            with shield(5):
                await asyncio.sleep(0.005)


async def waits(token: Token) -> bool:
    return await token.wait_async()


OURS: list[Callable[[Token], Awaitable[Any]]] = [
    scoped,
    in_thread,
    in_task,
    in_stubborn_task,
    shielded,
    waits,
]


@pytest.mark.parametrize("ours", OURS)
def test_a_timeout_around_it_is_a_timeout(
    run: Run, ours: Callable[[Token], Awaitable[Any]]
) -> None:
    async def main() -> None:
        source = CancelSource("s")
        async with TaskOwner():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await ours(source.token)
            assert not source.token.cancelled
            assert not source.token._hooks
            assert not source.token._below
        assert abandoned() == []

    run(main)


@pytest.mark.parametrize("ours", OURS)
def test_task_cancel_is_a_cancel(run: Run, ours: Callable[[Token], Awaitable[Any]]) -> None:
    async def main() -> None:
        source = CancelSource("s")
        async with TaskOwner():
            task = asyncio.ensure_future(ours(source.token))
            await asyncio.sleep(0.01)
            assert task.cancel("from outside")
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert not source.token.cancelled

    run(main)


async def plain(token: Token) -> None:
    """What is always so: Python before 3.13 leaves one cancel uncounted in a failing group."""
    await asyncio.sleep(20)


@pytest.mark.parametrize("ours", OURS)
def test_a_task_group_around_it_works_as_always(
    run: Run, ours: Callable[[Token], Awaitable[Any]]
) -> None:
    async def in_group(call: Callable[[Token], Awaitable[Any]]) -> int:
        async def fails() -> None:
            await asyncio.sleep(0.01)
            raise LookupError("a sibling")

        async def calls() -> None:
            await call(CancelSource("s").token)

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(calls())
                group.create_task(fails())

        with pytest.raises(ExceptionGroup) as caught:
            await both()
        assert caught.group_contains(LookupError, depth=1)
        assert len(caught.value.exceptions) == 1
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async def main() -> None:
        async with TaskOwner():
            expected = await asyncio.create_task(in_group(plain))
            assert await asyncio.create_task(in_group(ours)) == expected

    run(main)


@pytest.mark.parametrize("ours", OURS)
def test_a_stop_by_token_leaves_the_task_uncancelled(
    run: Run, ours: Callable[[Token], Awaitable[Any]]
) -> None:
    async def main() -> None:
        source = CancelSource("s")
        threading.Timer(0.01, source.cancel, args=(STOP,)).start()
        async with TaskOwner(), asyncio.timeout(30):
            await ours(source.token)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0.001)

    run(main)


def test_both_at_once_in_every_order_and_distance(run: Run) -> None:
    """The token is cancelled by a thread, the task natively, at about the same time. The native
    cancel always comes through; nothing else is left over."""

    async def main() -> None:
        for number in range(120):
            source = CancelSource("s")
            after: list[str] = []

            async def task_main(source: CancelSource = source, after: list[str] = after) -> None:
                with source.token.scope():
                    await asyncio.sleep(20)
                after.append("the block was left by the token")
                await asyncio.sleep(20)

            task = asyncio.create_task(task_main())
            await asyncio.sleep(0)
            thread = threading.Thread(target=source.cancel, args=(STOP,))
            if number % 3 == 0:
                task.cancel()
                thread.start()
            elif number % 3 == 1:
                thread.start()
                task.cancel()
            else:
                thread.start()
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(30):
                    await task
            thread.join()

    run(main)


def test_both_in_the_same_round_of_the_loop(run: Run) -> None:
    async def main() -> None:
        source = CancelSource("s")

        async def task_main() -> None:
            with source.token.scope():
                await asyncio.sleep(20)
            await asyncio.sleep(20)

        task = asyncio.create_task(task_main())
        await asyncio.sleep(0.001)
        source.cancel(STOP)
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(30):
                await task

    run(main)


def test_the_grace_is_one_even_if_the_caller_is_cancelled_in_the_middle(run: Run) -> None:
    """A second grace would make it 0.7 s each time; a busy machine may make it that once."""

    async def main() -> None:
        release = threading.Event()

        async def in_thread(token: Token) -> None:
            await run_thread(release.wait, 50, token=token, grace_s=0.4)

        async def in_task(token: Token) -> None:
            await run_abandonable(stubborn, token=token, grace_s=0.4)

        async def seconds_of(call: Callable[[Token], Awaitable[None]]) -> float:
            source = CancelSource("s")
            task = asyncio.ensure_future(call(source.token))
            await asyncio.sleep(0.01)
            began = time.monotonic()
            source.cancel(STOP)
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - began

        async with TaskOwner():
            for call in (in_thread, in_task):
                took_s: list[float] = []
                while not took_s or (min(took_s) >= 0.65 and len(took_s) < 8):
                    took_s.append(await seconds_of(call))
                assert 0.35 < min(took_s) < 0.65, took_s
            release.set()

    run(main)


def test_a_second_native_cancel_ends_the_waiting_at_once(run: Run) -> None:
    async def main() -> None:
        source = CancelSource("s")
        release = threading.Event()
        task = asyncio.ensure_future(run_thread(release.wait, 20, token=source.token, grace_s=20))
        await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 15
        assert [each.kind for each in abandoned()] == ["thread"]
        release.set()

    run(main)
    eventually(lambda: abandoned() == [])


def test_the_work_is_told_that_its_caller_is_gone(run: Run) -> None:
    reasons: list[Reason | None] = []

    def looks() -> None:
        token = current_token()
        assert token is not None
        token.wait(20)
        reasons.append(token.reason)

    async def main() -> None:
        source = CancelSource("s")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await run_thread(looks, token=source.token, grace_s=5)

    run(main)
    assert reasons == [Reason(Cause.CLIENT_GONE, "its caller was cancelled")]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_same_on_trio_with_its_own_scopes() -> None:
    for ours in (in_thread, waits):
        source = CancelSource("s")
        with anyio.move_on_after(0.02) as scope:
            await ours(source.token)
        assert scope.cancelled_caught
        assert not source.token._hooks
        assert not source.token._below
    async with TaskOwner():
        source = CancelSource("s")
        with anyio.move_on_after(0.02) as scope:
            await run_abandonable(anyio.sleep_forever, token=source.token, grace_s=1)
        assert scope.cancelled_caught
        assert not source.token._below


def test_a_coroutine_that_is_closed_from_outside_stops_what_it_waited_for(run: Run) -> None:
    """No loop step follows a close: what it waited for is cancelled and given up."""
    stopped = threading.Event()

    def looks() -> None:
        token = current_token()
        assert token is not None
        if token.wait(20):
            stopped.set()

    async def main() -> None:
        source = CancelSource("s")
        coroutine = run_thread(looks, token=source.token, grace_s=5)
        coroutine.send(None)
        coroutine.close()
        await asyncio.to_thread(stopped.wait, 10)
        assert stopped.is_set()

    run(main)
