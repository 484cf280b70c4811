"""`with shield(s):` cleanup that a cancel does not cut short, and that has a deadline."""

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import CancelSource, Cause, Reason, current_token, run_thread, shield
from bargein.testing.clock import ManualClock

pytestmark = pytest.mark.anyio

STOP = Cause.USER_STOP


async def test_cleanup_under_a_cancel_runs_to_its_end() -> None:
    source = CancelSource("s")
    steps: list[str] = []
    with anyio.fail_after(10), source.token.scope() as scope:
        try:
            source.cancel(STOP)
            await anyio.sleep_forever()
        finally:
            with shield(5) as guard:
                await anyio.sleep(0.01)
                steps.append("cleaned up")
            assert not guard.expired
    assert steps == ["cleaned up"]
    assert scope.caught


async def test_inside_the_current_token_is_a_fresh_one() -> None:
    source = CancelSource("turn")
    source.cancel(STOP)
    with source.token.scope(), shield(5):
        token = current_token()
        assert token is not None
        assert token.name == "shield in turn"
        assert not token.cancelled
        outcome = await run_thread(lambda: "cleanup in a thread", token=token, grace_s=1)
        assert outcome.unwrap() == "cleanup in a thread"


async def test_at_its_deadline_the_cleanup_is_cut_short() -> None:
    source = CancelSource("s")
    with anyio.fail_after(10), source.token.scope() as scope:
        source.cancel(STOP)
        with shield(0.01) as guard:
            token = current_token()
            await anyio.sleep_forever()
        assert guard.expired
        assert token is not None
        assert token.reason == Reason(Cause.DEADLINE, "0.01 s")
        await anyio.lowlevel.checkpoint()
        pytest.fail("the cancel around it was lost")
    assert scope.caught


async def test_an_error_passes_through() -> None:
    with pytest.raises(LookupError), shield(5):
        raise LookupError


async def test_errors_of_a_group_that_was_cut_short_pass_and_the_scopes_are_in_order() -> None:
    source = CancelSource("s")

    async def fails_when_cut() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError

    with source.token.scope() as scope:
        with pytest.raises(ExceptionGroup) as caught, shield(0.01) as guard:
            async with anyio.create_task_group() as group:
                group.start_soon(fails_when_cut)
        await anyio.lowlevel.checkpoint()
        source.cancel(STOP)
        await anyio.sleep_forever()
    assert caught.group_contains(LookupError)
    assert scope.caught
    assert not source.token._hooks
    assert isinstance(guard, shield)


async def test_it_takes_no_timer_with_it() -> None:
    clock = ManualClock()
    source = CancelSource("s", clock=clock)
    with source.token.scope(), shield(5):
        await anyio.lowlevel.checkpoint()
    clock.advance(10)
    assert clock.timers_held() == 0


async def test_it_is_used_once_and_its_time_is_a_time() -> None:
    guard = shield(1)
    assert not guard.expired
    with guard:
        pass
    with pytest.raises(RuntimeError, match="entered twice"), guard:
        pass
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout_s must be a number of seconds"):
            shield(wrong)
