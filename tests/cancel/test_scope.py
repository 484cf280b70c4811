"""`token.scope()`: a token's cancel, brought into a task; everything else passes through."""

import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, Token, current_token

pytestmark = pytest.mark.anyio

STOP = Cause.USER_STOP


async def test_a_cancel_from_another_thread_ends_the_block() -> None:
    source = CancelSource("s")
    thread = threading.Timer(0.01, source.cancel, args=(STOP,))
    thread.start()
    with anyio.fail_after(30), source.token.scope() as scope:
        await anyio.sleep_forever()
    assert scope.caught
    assert scope.token is source.token
    thread.join()


async def test_a_cancel_from_a_sibling_task_ends_the_block() -> None:
    source = CancelSource("s")
    async with anyio.create_task_group() as group:

        async def sibling() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(sibling)
        with source.token.scope() as scope:
            await anyio.sleep_forever()
    assert scope.caught


async def test_a_cancel_by_the_task_itself_comes_within_its_next_two_awaits() -> None:
    """The loop delivers it, in its next round; trio needs one more to get there."""
    source = CancelSource("s")
    awaits = 0
    with source.token.scope() as scope:
        source.cancel(STOP)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
            awaits += 1
    assert scope.caught
    assert awaits <= 1


async def test_a_token_that_is_cancelled_already_ends_it_at_the_first_await() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    with source.token.scope() as scope:
        await anyio.lowlevel.checkpoint()
        pytest.fail("went on")
    assert scope.caught


async def test_a_block_that_ended_by_itself_was_not_caught() -> None:
    source = CancelSource("s")
    with source.token.scope() as scope:
        await anyio.lowlevel.checkpoint()
    assert not scope.caught
    source.cancel(STOP)
    with source.token.scope() as scope:
        pass
    assert not scope.caught


async def test_the_token_is_current_inside() -> None:
    outer, inner = CancelSource("outer"), CancelSource("inner")
    with outer.token.scope():
        assert current_token() is outer.token
        with inner.token.scope():
            assert current_token() is inner.token
        assert current_token() is outer.token
    assert current_token() is None


async def test_check_inside_is_absorbed_by_the_scope_of_that_token_only() -> None:
    outer, inner = CancelSource("outer"), CancelSource("inner")
    outer.cancel(STOP)
    inner.cancel(STOP)
    with outer.token.scope() as outer_scope:
        with inner.token.scope() as inner_scope:
            outer.token.check()
        pytest.fail("the inner scope absorbed what was not its own")
    assert outer_scope.caught
    assert not inner_scope.caught


async def test_a_cancel_of_the_inner_token_leaves_the_outer_block_running() -> None:
    outer = CancelSource("outer")
    inner = CancelSource("inner", outer.token)
    with outer.token.scope() as outer_scope:
        with inner.token.scope() as inner_scope:
            inner.cancel(STOP)
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
    assert inner_scope.caught
    assert not outer_scope.caught


async def test_a_cancel_of_the_outer_token_ends_both_blocks() -> None:
    outer = CancelSource("outer")
    inner = CancelSource("inner", outer.token)
    reached = []
    with outer.token.scope() as outer_scope:
        with inner.token.scope():
            outer.cancel(STOP)
            await anyio.sleep_forever()
        reached.append("between, without an await")
        await anyio.lowlevel.checkpoint()
        reached.append("not reached")
    assert outer_scope.caught
    assert "not reached" not in reached


async def test_two_scopes_of_one_token_in_one_task() -> None:
    source = CancelSource("s")
    with source.token.scope() as outer:
        with source.token.scope():
            source.cancel(STOP)
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        pytest.fail("went on in the outer block")
    assert outer.caught


async def test_an_error_passes_through_even_when_cancelled() -> None:
    source = CancelSource("s")
    error = LookupError("real")
    source.cancel(STOP)
    with pytest.raises(LookupError) as caught, source.token.scope() as scope:
        raise error
    assert caught.value is error
    assert not scope.caught


async def test_a_timeout_around_it_is_still_a_timeout() -> None:
    source = CancelSource("s")
    with pytest.raises(TimeoutError), anyio.fail_after(0.01), source.token.scope() as scope:
        await anyio.sleep_forever()
    assert not scope.caught


async def test_an_anyio_scope_around_it_is_still_that_scope() -> None:
    source = CancelSource("s")
    with anyio.CancelScope() as around:
        around.cancel()
        with source.token.scope() as scope:
            await anyio.lowlevel.checkpoint()
        pytest.fail("the token's scope absorbed a stranger's cancel")
    assert around.cancelled_caught
    assert not scope.caught


async def test_a_task_group_inside_is_cancelled_as_a_whole() -> None:
    source = CancelSource("s")
    ended = []

    async def child(number: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(number)

    with anyio.fail_after(30), source.token.scope() as scope:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(child, number)
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)
    assert scope.caught
    assert sorted(ended) == [0, 1, 2, 3, 4]


# --- groups of exceptions ---


async def raise_in_group(*errors: BaseException) -> None:
    raise BaseExceptionGroup("several", list(errors))


async def test_only_its_own_cancelled_is_taken_out_of_a_group() -> None:
    mine, other = CancelSource("mine"), CancelSource("other")
    mine.cancel(STOP)
    other.cancel(STOP)
    foreign, error = Cancelled(other.token), LookupError()
    with pytest.raises(BaseExceptionGroup) as caught, mine.token.scope() as scope:
        await raise_in_group(Cancelled(mine.token), foreign, error)
    assert caught.value.exceptions == (foreign, error)
    assert scope.caught


async def test_a_group_of_nothing_but_its_own_is_absorbed() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    inner = BaseExceptionGroup("inner", [Cancelled(source.token)])
    with source.token.scope() as scope:
        await raise_in_group(inner, Cancelled(source.token))
    assert scope.caught


async def test_a_group_without_its_own_passes_as_it_is() -> None:
    source = CancelSource("s")
    group = ExceptionGroup("several", [LookupError(), ValueError()])
    with pytest.raises(ExceptionGroup) as caught, source.token.scope() as scope:
        raise group
    assert caught.value is group
    assert not scope.caught


@pytest.mark.parametrize("own", ["check", "await"])
async def test_a_group_that_mixes_its_own_cancel_with_errors_of_tasks(own: str) -> None:
    """Tasks fail while they are being cancelled: the errors are kept, the cancel is absorbed."""
    source = CancelSource("s")

    async def fails() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("while being cancelled")

    async def stops() -> None:
        await anyio.wait_all_tasks_blocked()
        source.cancel(STOP)
        if own == "check":
            source.token.check()
        await anyio.sleep_forever()

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(fails)
            group.start_soon(stops)

    with pytest.raises(BaseExceptionGroup) as caught, source.token.scope() as scope:
        await both()
    matched, rest = caught.value.split(LookupError)
    assert matched is not None
    assert rest is None
    assert scope.caught or own == "await"


async def test_the_remainder_of_a_group_is_not_an_error_while_handling_an_error() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    with pytest.raises(BaseExceptionGroup) as caught, source.token.scope():
        await raise_in_group(Cancelled(source.token), LookupError())
    assert caught.value.__context__ is None


# --- law 9: aimed; it never leaks into what comes after ---


async def test_a_cancel_that_was_on_its_way_when_the_block_ended_hits_nothing() -> None:
    for _ in range(50):
        source = CancelSource("s")
        with source.token.scope() as scope:
            await anyio.lowlevel.checkpoint()
            source.cancel(STOP)
        assert not scope.caught
        for _ in range(5):
            await anyio.lowlevel.checkpoint()


async def test_a_cancel_at_any_moment_ends_the_block_or_touches_nothing() -> None:
    """The canceller is a thread; the block ends by itself at about the same time."""
    caught = 0
    for number in range(300):
        source = CancelSource("s")
        thread = threading.Thread(target=source.cancel, args=(STOP,))
        with anyio.fail_after(30):
            with source.token.scope() as scope:
                thread.start()
                for _ in range(number % 12):
                    await anyio.lowlevel.checkpoint()
            caught += scope.caught
            await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.0001)
        thread.join()
    assert caught > 0


async def test_after_the_loop_is_gone_a_cancel_still_works() -> None:
    """A scope that was left behind in a closed loop must not break the canceller."""
    source = CancelSource("s")
    flags: list[bool] = []

    def other_loop(token: Token, backend: str) -> None:
        async def main() -> None:
            scope = token.scope()
            scope.__enter__()
            registration = scope._registration
            assert registration is not None
            scope.__exit__(None, None, None)
            registration.enter()

        anyio.run(main, backend=backend)

    for backend in ("asyncio", "trio"):
        await anyio.to_thread.run_sync(other_loop, source.token, backend)
    source.token.on_cancel(lambda: flags.append(True))
    assert source.cancel(STOP)
    await until(lambda: flags == [True])


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - another thread sets it, and no event of ours
            await anyio.sleep(0.001)


async def test_wait_async_wakes_for_a_cancel_and_for_the_end() -> None:
    for end in ("cancel", "seal"):
        source = CancelSource("s")
        finish = (lambda s=source: s.cancel(STOP)) if end == "cancel" else source.seal
        thread = threading.Timer(0.005, finish)
        thread.start()
        with anyio.fail_after(30):
            assert await source.token.wait_async() == (end == "cancel")
            assert await source.token.wait_async() == (end == "cancel")
        thread.join()
        assert not source.token._hooks


async def test_wait_async_that_is_cancelled_itself_leaves_no_hook() -> None:
    source = CancelSource("s")
    with anyio.move_on_after(0.005):
        await source.token.wait_async()
    assert not source.token._hooks
