"""Law 8: what our own cancel caused is not an error, and a real error still is one."""

import logging
import threading

import anyio
import pytest

from bargein.cancel import (
    Cancelled,
    CancelSource,
    Cause,
    TaskOwner,
    current_token,
    run_abandonable,
    run_thread,
)

STOP = Cause.USER_STOP


def test_cancelled_is_no_exception_that_a_broad_handler_takes_for_a_failure() -> None:
    assert not issubclass(Cancelled, Exception)
    source = CancelSource("request")
    source.cancel(STOP)

    def retries() -> str:
        for _ in range(3):
            try:
                source.token.check()
            except Exception:
                continue
        return "retried"

    with pytest.raises(Cancelled, match=r"request was cancelled \(user_stop\)") as caught:
        retries()
    assert caught.value.token is source.token


@pytest.mark.anyio
@pytest.mark.parametrize("stopped", [True, False])
async def test_the_outcome_tells_a_stop_from_a_failure(stopped: bool) -> None:
    """The same function fails for real when it was not told to stop."""
    source = CancelSource("s")
    begun = anyio.Event()
    begun_in_thread = threading.Event()

    def in_thread() -> None:
        token = current_token()
        assert token is not None
        begun_in_thread.set()
        if token.wait(50 if stopped else 0):
            token.check()
        raise ConnectionError("the network, for real")

    async def in_task() -> None:
        begun.set()
        if stopped:
            await anyio.sleep_forever()
        raise ConnectionError("the network, for real")

    statuses: list[str] = []

    async def run_both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(run_one)
            outcome = await run_thread(in_thread, token=source.token, grace_s=30)
            statuses.append(outcome.status)
            assert (outcome.error is None) == stopped

    async def run_one() -> None:
        outcome = await run_abandonable(in_task, token=source.token, grace_s=30)
        statuses.append(outcome.status)
        assert (outcome.error is None) == stopped

    async with TaskOwner(), anyio.create_task_group() as group:
        group.start_soon(run_both)
        await begun.wait()
        await anyio.to_thread.run_sync(begun_in_thread.wait)
        if stopped:
            source.cancel(STOP)
    assert statuses == (["cancelled"] * 2 if stopped else ["failed"] * 2)


@pytest.mark.anyio
async def test_a_failure_while_being_stopped_is_kept_as_an_error_and_not_hidden() -> None:
    """Cleanup that fails is a fault of its own; who reads the outcome sees both."""
    source = CancelSource("s")

    async def fails_in_cleanup() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("while cleaning up")

    async with TaskOwner(), anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)

        group.start_soon(stop)
        outcome = await run_abandonable(fails_in_cleanup, token=source.token, grace_s=30)
    assert outcome.status == "failed"
    assert isinstance(outcome.error, OSError)
    assert outcome.token.cancelled


@pytest.mark.anyio
async def test_a_stop_writes_nothing_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    source = CancelSource("s")

    def looks() -> None:
        token = current_token()
        assert token is not None
        token.sleep(50)

    with caplog.at_level(logging.DEBUG):
        async with TaskOwner(), anyio.create_task_group() as group:
            group.start_soon(lambda: run_thread(looks, token=source.token, grace_s=30))
            group.start_soon(
                lambda: run_abandonable(anyio.sleep_forever, token=source.token, grace_s=30)
            )
            await anyio.wait_all_tasks_blocked()
            source.cancel(STOP)
    assert [record for record in caplog.records if record.name.startswith("bargein")] == []
