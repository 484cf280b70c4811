"""`run_abandonable` and `TaskOwner`: whatever a coroutine does with its cancel, others go on."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import (
    Cancelled,
    CancelSource,
    Cause,
    Reason,
    TaskOwner,
    abandoned,
    counts,
    current_token,
    run_abandonable,
    shield,
)
from tests.cancel.harness import run_program

pytestmark = pytest.mark.anyio

STOP = Reason(Cause.USER_STOP)
GRACE_S = 0.05
# Longer than the grace even on a busy machine.
CLEANS_UP_S = 1.5


# --- coroutines that will not stop ---


async def swallows_cancels() -> None:
    while True:
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            pass


async def swallows_everything() -> None:
    while True:
        try:
            await anyio.sleep(1)
        except BaseException:
            pass


async def swallows_in_a_scope() -> None:
    with anyio.CancelScope():
        await swallows_cancels()


async def swallows_under_timeouts() -> None:
    while True:
        with anyio.move_on_after(5):
            await swallows_cancels()


async def swallows_in_a_task_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(swallows_cancels)
        group.start_soon(swallows_everything)


async def swallows_beside_a_task_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        await swallows_cancels()


async def swallows_in_nested_task_groups() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(swallows_in_a_task_group)
        group.start_soon(swallows_in_a_scope)


async def cleans_up_for_ever() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        await swallows_cancels()


async def cleans_up_in_a_shield() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(CLEANS_UP_S)


async def swallows_in_a_shield_of_ours() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        with shield(CLEANS_UP_S):
            await swallows_cancels()


STUBBORN = [
    swallows_cancels,
    swallows_everything,
    swallows_in_a_scope,
    swallows_under_timeouts,
    swallows_in_a_task_group,
    swallows_beside_a_task_group,
    swallows_in_nested_task_groups,
    cleans_up_for_ever,
    cleans_up_in_a_shield,
    swallows_in_a_shield_of_ours,
]
# Trio stops nothing in a shield: there it is waited for until the shield is over.
CLOSE_GRACES_S: dict[Callable[[], Awaitable[None]], float] = {
    cleans_up_in_a_shield: 10 * CLEANS_UP_S,
    swallows_in_a_shield_of_ours: 2 * CLEANS_UP_S,
}


async def run_and_stop(
    function: Callable[[], Awaitable[None]], owner: TaskOwner, grace_s: float = GRACE_S
) -> tuple[str, float]:
    """Its status, and how long the caller had to wait after the stop."""
    source = CancelSource("s")
    stopped_at: list[float] = []

    async def stop() -> None:
        await anyio.wait_all_tasks_blocked()
        stopped_at.append(time.monotonic())
        source.cancel(STOP)

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        outcome = await run_abandonable(function, token=source.token, grace_s=grace_s, owner=owner)
    return outcome.status, time.monotonic() - stopped_at[0]


async def cpu_share(span_s: float) -> float:
    began, cpu = time.monotonic(), time.process_time()
    await anyio.sleep(span_s)
    return (time.process_time() - cpu) / (time.monotonic() - began)


@pytest.mark.parametrize("function", STUBBORN)
async def test_it_is_abandoned_and_keeps_neither_caller_nor_owner_nor_core(
    function: Callable[[], Awaitable[None]],
) -> None:
    before = counts()
    with anyio.fail_after(45):
        close_grace_s = CLOSE_GRACES_S.get(function, 0.5)
        async with TaskOwner(close_grace_s=close_grace_s) as owner:
            status, waited_s = await run_and_stop(function, owner)
            assert status == "abandoned"
            assert GRACE_S * 0.9 < waited_s < GRACE_S + 15
            await anyio.sleep(0.02)
            assert await cpu_share(0.15) < 0.3
            closing_at = time.monotonic()
        assert time.monotonic() - closing_at < 15
    assert counts().coroutines_abandoned == before.coroutines_abandoned + 1
    assert abandoned() == []


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})])
async def test_the_same_with_timeouts_and_groups_of_asyncio_itself() -> None:
    async def in_timeout() -> None:
        async with asyncio.timeout(60):
            await swallows_cancels()

    async def in_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(swallows_cancels())
            group.create_task(swallows_cancels())

    async def gathers() -> None:
        await asyncio.gather(swallows_cancels(), swallows_cancels())

    with anyio.fail_after(45):
        async with TaskOwner(close_grace_s=0.5) as owner:
            for function in (in_timeout, in_group, gathers):
                status, waited_s = await run_and_stop(function, owner)
                assert status == "abandoned", function
                assert waited_s < GRACE_S + 10
            await anyio.sleep(0.02)
            assert await cpu_share(0.2) < 0.3


def test_tasks_that_stopped_work_left_behind_do_not_hold_up_the_end_of_the_loop() -> None:
    """The work ends, and leaves a task of its own that swallows its cancels."""

    async def leaves_one_behind() -> None:
        await asyncio.wait([asyncio.create_task(swallows_cancels())])

    async def main() -> None:
        async with TaskOwner() as owner:
            assert (await run_and_stop(leaves_one_behind, owner, grace_s=20))[0] == "cancelled"

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 40


async def test_one_that_stops_when_told_is_cancelled_and_cleans_up() -> None:
    steps: list[str] = []

    async def polite() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            steps.append("cleaned up")

    async with TaskOwner() as owner:
        assert (await run_and_stop(polite, owner, grace_s=5))[0] == "cancelled"
    assert steps == ["cleaned up"]


async def test_one_that_swallows_is_told_again_until_it_listens() -> None:
    told = 0

    async def listens_the_fifth_time() -> None:
        nonlocal told
        while True:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                told += 1
                if told == 5:
                    raise

    async with TaskOwner() as owner:
        status, _ = await run_and_stop(listens_the_fifth_time, owner, grace_s=20)
    assert (status, told) == ("cancelled", 5)


async def test_a_value_an_error_and_the_arguments() -> None:
    source = CancelSource("s")

    async def divide(a: int, b: int) -> float:
        await anyio.lowlevel.checkpoint()
        return a / b

    async with TaskOwner():
        outcome = await run_abandonable(divide, 6, 3, token=source.token, grace_s=1)
        assert (outcome.status, outcome.unwrap()) == ("finished", 2.0)
        failed = await run_abandonable(divide, 6, 0, token=source.token, grace_s=1)
        assert failed.status == "failed"
        with pytest.raises(ZeroDivisionError):
            failed.unwrap()
    assert not source.token._below


async def test_a_result_that_came_with_the_cancel_is_kept() -> None:
    source = CancelSource("s")

    async def answers_anyway() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return "a last word"

    async with TaskOwner() as owner, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(stop)
        outcome = await owner.run(answers_anyway, token=source.token, grace_s=5)
    assert (outcome.status, outcome.value) == ("finished", "a last word")


async def test_with_stop_token_it_is_not_cancelled_but_looks_itself() -> None:
    source = CancelSource("s")

    async def looks() -> str:
        token = current_token()
        assert token is not None
        assert await token.wait_async()
        await anyio.sleep(0.005)
        return "in its own time"

    async with TaskOwner() as owner, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(stop)
        outcome = await owner.run(looks, token=source.token, grace_s=5, stop="token")
    assert outcome.unwrap() == "in its own time"


async def test_with_stop_token_too_it_is_abandoned_when_it_does_not_look() -> None:
    source = CancelSource("s")
    async with TaskOwner() as owner, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(stop)
        outcome = await owner.run(
            swallows_everything, token=source.token, grace_s=GRACE_S, stop="token"
        )
        assert outcome.status == "abandoned"
        await anyio.sleep(0.02)
        assert await cpu_share(0.1) < 0.3
    assert abandoned() == []


async def test_a_late_result_goes_nowhere_and_is_counted() -> None:
    source = CancelSource("s")
    before = counts().late_results

    finish = anyio.Event()

    async def late() -> str:
        with anyio.CancelScope(shield=True):
            await finish.wait()
        return "too late"

    async with TaskOwner() as owner, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(stop)
        outcome = await owner.run(late, token=source.token, grace_s=0.01)
        assert (outcome.status, outcome.value) == ("abandoned", None)
        assert [each.kind for each in abandoned()] == ["coroutine"]
        finish.set()
        await anyio.wait_all_tasks_blocked()
    assert counts().late_results == before + 1
    assert abandoned() == []
    assert outcome.value is None


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})])
async def test_a_cancel_that_was_not_ours_is_a_failure_and_not_our_stop() -> None:
    """It waited for a future that somebody else cancelled."""

    async def waits_for_a_cancelled_future() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    source = CancelSource("s")
    async with TaskOwner():
        outcome = await run_abandonable(waits_for_a_cancelled_future, token=source.token, grace_s=1)
    assert outcome.status == "failed"
    assert isinstance(outcome.error, asyncio.CancelledError)


async def test_under_a_cancelled_token_nothing_is_started() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    async with TaskOwner() as owner:
        outcome = await owner.run(swallows_everything, token=source.token, grace_s=1)
    assert outcome.status == "cancelled"
    with pytest.raises(Cancelled):
        outcome.unwrap()


async def test_work_inside_work() -> None:
    """A call that runs calls of its own: stopping the outer one stops and settles all."""
    source = CancelSource("turn")
    statuses: list[str] = []

    async def outer() -> None:
        token = current_token()
        assert token is not None
        async with anyio.create_task_group() as group:

            async def inner() -> None:
                outcome = await run_abandonable(
                    swallows_everything, token=token, grace_s=GRACE_S, name="inner"
                )
                statuses.append(outcome.status)

            group.start_soon(inner)
            group.start_soon(inner)

    async with TaskOwner(close_grace_s=0.5) as owner, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(stop)
        outcome = await owner.run(outer, token=source.token, grace_s=30)
        assert outcome.status == "cancelled"
        await anyio.sleep(0.02)
        assert await cpu_share(0.1) < 0.3
    assert abandoned() == []


async def test_it_may_await_any_awaitable() -> None:
    class Answer:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield from anyio.lowlevel.checkpoint().__await__()
            return 42

    source = CancelSource("s")
    async with TaskOwner():
        outcome = await run_abandonable(Answer, token=source.token, grace_s=1)
    assert outcome.unwrap() == 42


# --- the owner ---


async def test_closing_the_owner_stops_what_is_left_and_does_not_wait_for_ever() -> None:
    source = CancelSource("s")
    statuses: list[tuple[str, Cause]] = []

    async def polite() -> None:
        await anyio.sleep_forever()

    async def run(owner: TaskOwner, function: Callable[[], Awaitable[None]]) -> None:
        outcome = await owner.run(function, token=source.token, grace_s=0.05)
        assert outcome.token.reason is not None
        statuses.append((outcome.status, outcome.token.reason.cause))

    with anyio.fail_after(45):
        async with anyio.create_task_group() as group:
            async with TaskOwner(close_grace_s=0.2) as owner:
                for function in (polite, swallows_everything, cleans_up_in_a_shield):
                    group.start_soon(run, owner, function)
                await anyio.wait_all_tasks_blocked()
                began = time.monotonic()
            assert time.monotonic() - began < 15
    assert sorted(statuses) == [
        ("abandoned", Cause.SHUTDOWN),
        ("abandoned", Cause.SHUTDOWN),
        ("cancelled", Cause.SHUTDOWN),
    ]
    assert not source.token.cancelled


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})])
async def test_on_asyncio_closing_the_owner_goes_through_shields() -> None:
    async def hides() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(60)

    with anyio.fail_after(45):
        async with TaskOwner(close_grace_s=0.05) as owner:
            assert (await run_and_stop(hides, owner))[0] == "abandoned"
            assert [each.name for each in abandoned()] == ["hides"]
    assert abandoned() == []
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "hides"] == []


async def test_the_innermost_open_owner_is_used() -> None:
    source = CancelSource("s")
    with pytest.raises(
        RuntimeError, match=r"needs an owner for its task; put `async with TaskOwner"
    ):
        await run_abandonable(anyio.sleep, 0, token=source.token, grace_s=1)
    async with TaskOwner() as outer:
        async with TaskOwner() as inner:
            await run_abandonable(anyio.sleep, 0, token=source.token, grace_s=1)
            assert not inner._works
        await run_abandonable(anyio.sleep, 0, token=source.token, grace_s=1)
    for closed in (outer, inner, TaskOwner()):
        with pytest.raises(RuntimeError, match="not open"):
            await closed.run(anyio.sleep, 0, token=source.token, grace_s=1)
    with pytest.raises(RuntimeError, match="entered twice"):
        await outer.__aenter__()


async def test_coroutines_that_refuse_even_to_be_closed_are_counted() -> None:
    before = counts().coroutines_frozen
    async with TaskOwner() as owner:
        for _ in range(3):
            assert (await run_and_stop(swallows_everything, owner, grace_s=0))[0] == "abandoned"
            assert (await run_and_stop(swallows_cancels, owner, grace_s=0))[0] == "abandoned"
    assert counts().coroutines_frozen == before + 3


def test_their_number_is_bounded() -> None:
    done = run_program(
        """
import anyio
from bargein.cancel import CancelSource, TaskOwner, TooManyAbandoned, accounts, run_abandonable
accounts.FROZEN_MAX = 3

async def swallow():
    while True:
        try:
            await anyio.sleep(60)
        except BaseException:
            pass

async def main():
    async with TaskOwner():
        for number in range(4):
            try:
                source = CancelSource("call", timeout_s=0.01)
                await run_abandonable(swallow, token=source.token, grace_s=0)
                await anyio.sleep(0.01)
            except TooManyAbandoned as error:
                print(number, error)

anyio.run(main)
"""
    )
    assert done.stdout.startswith("3 3 coroutines refused to be stopped")
    assert done.stderr.count("would not be closed") == 3


async def test_ordinary_tasks_of_the_loop_are_not_touched() -> None:
    """Tasks that were not started by an abandonable work run as they always did."""
    source = CancelSource("s")
    seen: list[str] = []

    async def plain() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled as always")
            raise

    async with TaskOwner() as owner, anyio.create_task_group() as group:
        group.start_soon(plain)
        await owner.run(anyio.sleep, 0, token=source.token, grace_s=1)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert seen == ["cancelled as always"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_never_began_is_not_said_to_be_never_awaited() -> None:
    """Tasks of a work are driven, and one may be cancelled before its first step."""

    async def starts_and_cancels() -> str:
        task = asyncio.create_task(swallows_everything(), name="mine")
        assert task.get_coro().__name__ == "swallows_everything"  # type: ignore[union-attr]
        task.cancel()
        await asyncio.wait([task])
        return "cancelled" if task.cancelled() else "ran"

    source = CancelSource("s")
    async with TaskOwner():
        outcome = await run_abandonable(starts_and_cancels, token=source.token, grace_s=1)
    assert outcome.unwrap() == "cancelled"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_factory_that_was_there_is_still_used() -> None:
    loop = asyncio.get_running_loop()
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine, **options):  # type: ignore[no-untyped-def]
        made.append(coroutine.__name__)
        return asyncio.Task(coroutine, loop=loop, **options)

    before = loop.get_task_factory()
    loop.set_task_factory(factory)
    try:
        source = CancelSource("s")

        async def starts_one() -> None:
            await asyncio.create_task(asyncio.sleep(0))

        async with TaskOwner():
            await run_abandonable(starts_one, token=source.token, grace_s=1)
    finally:
        loop.set_task_factory(before)
    assert made == ["sleep"]
