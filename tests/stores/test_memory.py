from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from bargein.contracts.store import StoreFailed, commit_one
from bargein.stores.memory import MemoryStore
from bargein.testing.store_conformance.scene import looked, made, said, step


@pytest.mark.anyio
async def test_a_write_that_fails_before_it_is_durable_never_happened() -> None:
    store = MemoryStore()
    head = await made(store, "s")
    asked: list[tuple[str, str]] = []

    async def fail(operation: str, session: str) -> None:
        asked.append((operation, session))
        raise StoreFailed("the disk is on fire", retryable=True)

    store.before_commit = fail
    with pytest.raises(StoreFailed, match="on fire"):
        await commit_one(store, step(head, said(1)))
    assert asked == [("commit", "s")]
    store.before_commit = None
    assert await store.head("s") == head
    await commit_one(store, step(head, said(1)))


@pytest.mark.anyio
async def test_a_write_that_fails_after_it_was_durable_did_happen() -> None:
    store = MemoryStore()
    head = await made(store, "s")

    async def fail(operation: str, session: str) -> None:
        raise StoreFailed("lost the answer", retryable=True)

    store.after_commit = fail
    with pytest.raises(StoreFailed, match="lost the answer"):
        await commit_one(store, step(head, said(1)))
    assert (await looked(store, "s")).seq == 1


@pytest.mark.anyio
async def test_a_slow_write_holds_up_its_own_session_only() -> None:
    store = MemoryStore()
    slow, quick = await made(store, "slow"), await made(store, "quick")
    gate = anyio.Event()

    async def wait(operation: str, session: str) -> None:
        if session == "slow":
            await gate.wait()

    store.before_commit = wait
    async with anyio.create_task_group() as group:
        for number in (1, 2):
            group.start_soon(commit_one, store, step(slow, said(number), expected_seq=number - 1))
            await anyio.wait_all_tasks_blocked()
        await commit_one(store, step(quick, said(1)))
        assert (await looked(store, "slow")).seq == 0
        gate.set()
    assert [one.event for one in await store.events("slow")] == [said(1), said(2)]


@pytest.mark.anyio
async def test_a_slow_write_is_not_overtaken_by_a_quick_one() -> None:
    store = MemoryStore()
    head = await made(store, "s")
    gate = anyio.Event()
    asked = 0

    async def wait_once(operation: str, session: str) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await gate.wait()

    store.before_commit = wait_once
    async with anyio.create_task_group() as group:
        for number in (1, 2):
            group.start_soon(commit_one, store, step(head, said(number), expected_seq=number - 1))
            await anyio.wait_all_tasks_blocked()
        gate.set()
    assert [one.event for one in await store.events("s")] == [said(1), said(2)]


@pytest.mark.anyio
@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_crash_leaves_exactly_what_was_durable(moment: str) -> None:
    store = MemoryStore()
    head = await made(store, "s")

    async def hang(operation: str, session: str) -> None:
        await anyio.sleep_forever()

    setattr(store, moment, hang)
    async with anyio.create_task_group() as group:
        group.start_soon(commit_one, store, step(head, said(1), state=b"new"))
        await anyio.wait_all_tasks_blocked()
        durable = store.snapshot()
        group.cancel_scope.cancel()

    revived = MemoryStore()
    revived.restore(durable)
    claimed = await revived.claim("s")
    assert claimed is not None
    expected = (0, b"") if moment == "before_commit" else (1, b"new")
    assert (claimed.seq, claimed.state) == expected
    assert claimed.epoch > head.epoch


@pytest.mark.anyio
async def test_a_snapshot_does_not_change_and_can_be_used_twice() -> None:
    store = MemoryStore()
    head = await made(store, "s")
    durable = store.snapshot()
    await commit_one(store, step(head, said(1)))
    await made(store, "t")
    for _ in range(2):
        revived = MemoryStore()
        revived.restore(durable)
        assert await revived.head("s") == head
        assert await revived.head("t") is None
        await commit_one(revived, step(head, said(2)))


@pytest.mark.anyio
async def test_reads_can_fail_too() -> None:
    store = MemoryStore()
    await made(store, "s")

    async def fail(operation: str, session: str) -> None:
        raise StoreFailed(f"no {operation}", retryable=True)

    store.before_read = fail
    with pytest.raises(StoreFailed, match="no head"):
        await store.head("s")


@pytest.mark.anyio
async def test_nothing_is_kept_of_writes_that_are_over() -> None:
    store = MemoryStore()
    for number in range(100):
        head = await made(store, f"s{number}")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await commit_one(store, step(head, said(1)))
    await anyio.lowlevel.checkpoint()
    assert store._disk.turns == {}
