"""Wrong use gets a clear error at once, and changes nothing."""

from collections.abc import Awaitable, Callable
from typing import cast

import anyio
import pytest

from bargein.cancel import (
    CancelSource,
    Cause,
    Reason,
    TaskOwner,
    Token,
    arm_quit_watchdog,
    as_current,
    run_abandonable,
    run_thread,
    shield,
)

NOT_TIMES: list[object] = [-1, -0.001, float("nan"), float("inf"), -float("inf"), 1e300, "1", [1]]


@pytest.mark.parametrize("reason", ["user_stop", None, 3, Cause])
def test_a_reason_that_is_none(reason: object) -> None:
    source = CancelSource("s")
    with pytest.raises(TypeError, match=r"needs a Reason or a Cause, not .*Cause\.USER_STOP"):
        source.cancel(cast(Reason, reason))
    assert not source.token.cancelled


def test_the_tree_alone_says_parent() -> None:
    source = CancelSource("s")
    with pytest.raises(ValueError, match="give the original cause"):
        source.cancel(Reason(Cause.PARENT, "x", Reason(Cause.USER_STOP)))
    with pytest.raises(ValueError, match="the parent's reason, with Cause"):
        source.cancel(Cause.PARENT)
    with pytest.raises(ValueError, match="the parent's reason, with Cause"):
        Reason(Cause.USER_STOP, parent=Reason(Cause.USER_STOP))
    with pytest.raises(TypeError, match=r"needs a Cause, not 'user_stop'"):
        Reason(cast(Cause, "user_stop"))
    assert not source.token.cancelled


@pytest.mark.parametrize("time", NOT_TIMES)
def test_a_time_that_is_none(time: object) -> None:
    parent = CancelSource("parent")
    wrong = cast(float, time)
    uses: list[Callable[[], object]] = [
        lambda: CancelSource("s", timeout_s=wrong),
        lambda: parent.token.child("s", timeout_s=wrong),
        lambda: parent.token.wait(wrong),
        lambda: parent.token.sleep(wrong),
        lambda: shield(wrong),
        lambda: TaskOwner(close_grace_s=wrong),
        lambda: arm_quit_watchdog(wrong),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="must be a number of seconds, 0 or more, not"):
            use()
    assert not parent.token._below


def test_a_watchdog_needs_some_time() -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        arm_quit_watchdog(0)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_source_needs_a_name(name: object) -> None:
    with pytest.raises(ValueError, match="the name of a source must be text"):
        CancelSource(cast(str, name))


@pytest.mark.parametrize("parent", ["parent", 3, CancelSource("a source and not its token")])
def test_a_parent_is_a_token(parent: object) -> None:
    with pytest.raises(TypeError, match="the parent of s must be a Token, not"):
        CancelSource("s", cast(Token, parent))
    source = CancelSource("s")
    with pytest.raises(TypeError, match="the parent of s must be a Token, not"):
        source.link(cast(Token, parent))
    assert not source.token._above


async def not_plain() -> None:
    pass


@pytest.mark.parametrize("callback", [None, 3, not_plain])
def test_a_callback_is_a_plain_function(callback: object) -> None:
    source = CancelSource("s")
    with pytest.raises(TypeError, match="needs a plain function"):
        source.token.on_cancel(cast(Callable[[], object], callback))
    assert not source.token._hooks


@pytest.mark.anyio
async def test_a_scope_is_entered_once() -> None:
    source = CancelSource("s")
    scope = source.token.scope()
    with scope, pytest.raises(RuntimeError, match="a scope of s was entered twice"), scope:
        pass
    with pytest.raises(RuntimeError, match=r"entered twice; call token\.scope"), scope:
        pass
    await anyio.lowlevel.checkpoint()
    assert not source.token._hooks


def test_a_scope_is_for_tasks() -> None:
    source = CancelSource("s")
    with pytest.raises(RuntimeError, match="event loop"), source.token.scope():
        pass
    assert not source.token._hooks


def test_as_current_is_entered_once() -> None:
    current = as_current(CancelSource("s").token)
    with current, pytest.raises(RuntimeError, match="entered twice"), current:
        pass


@pytest.mark.anyio
async def test_jobs_check_their_arguments_before_anything_starts() -> None:
    source = CancelSource("s")
    started: list[int] = []

    def job() -> None:
        started.append(1)

    async def job_async() -> None:
        started.append(1)

    async with TaskOwner() as owner:
        for time in NOT_TIMES:
            wrong = cast(float, time)
            uses: list[Callable[[], Awaitable[object]]] = [
                lambda wrong=wrong: run_thread(job, token=source.token, grace_s=wrong),  # type: ignore[misc]
                lambda wrong=wrong: owner.run(job_async, token=source.token, grace_s=wrong),  # type: ignore[misc]
            ]
            for use in uses:
                with pytest.raises(ValueError, match="grace_s must be a number of seconds"):
                    await use()
        with pytest.raises(ValueError, match="stop must be 'token' or 'raise', not 'kill'"):
            await run_thread(job, token=source.token, grace_s=1, stop="kill")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="stop must be 'cancel' or 'token', not 'kill'"):
            await run_abandonable(job_async, token=source.token, grace_s=1, stop="kill")  # type: ignore[arg-type]
    assert started == []
    assert not source.token._below


def test_a_child_may_not_have_another_kind_of_name_by_accident() -> None:
    assert repr(CancelSource("turn 7").token) == "<Token turn 7: live>"
    assert repr(CancelSource("turn 7")) == "<CancelSource of <Token turn 7: live>>"
