"""Something that happens once: waited for by many, for a time or for good, on every loop."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel.latch import Latch

pytestmark = pytest.mark.anyio


async def test_all_who_wait_are_told_once_it_is_set() -> None:
    latch, told = Latch(), list[bool]()

    async def wait() -> None:
        told.append(await latch.wait())

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert told == []
        latch.set()
        latch.set()
    assert told == [True] * 3
    assert await latch.wait()
    assert await latch.wait(0)


async def test_waiting_has_its_time() -> None:
    latch = Latch()
    for timeout_s in (0.0, 0.001):
        with anyio.fail_after(30):
            assert not await latch.wait(timeout_s)
    assert not latch.is_set


async def test_one_who_came_for_good_can_be_given_a_time() -> None:
    latch, told = Latch(), list[bool]()

    async def wait() -> None:
        told.append(await latch.wait())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            latch.wait_no_longer(3600)
            latch.wait_no_longer(0.001)
    assert told == [False]


async def test_one_who_is_cancelled_only_stops_waiting() -> None:
    latch, told = Latch(), list[bool]()

    async def wait() -> None:
        told.append(await latch.wait())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with anyio.move_on_after(0.001) as scope:
            await latch.wait()
        assert scope.cancelled_caught
        assert not latch.is_set
        latch.set()
    assert told == [True]


async def test_set_and_cancelled_in_the_same_step() -> None:
    """A cancel is never lost, and the others are told all the same."""
    latch, told = Latch(), list[str]()

    async def wait(scope: anyio.CancelScope, name: str) -> None:
        with scope:
            await latch.wait()
            await anyio.lowlevel.checkpoint()
            told.append(name)

    both = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(wait, both, "cancelled")
        group.start_soon(wait, anyio.CancelScope(), "other")
        await anyio.wait_all_tasks_blocked()
        latch.set()
        both.cancel()
    assert told == ["other"]
    assert both.cancelled_caught
