"""How an engine writes for its sessions: together, and each for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from bargein.contracts.event import TextCheckpoint
from bargein.contracts.message import Mode
from bargein.contracts.store import Commit, StoreFailed
from bargein.errors import BugError
from bargein.models.script import Answer, Wait
from bargein.session.engine_tasks import EngineTasks
from bargein.session.journal import RESTING_MAX, TOGETHER_MAX, GroupCommitter
from bargein.session.session import Session
from bargein.stores.memory import MemoryStore
from tests.session.world import WITHIN_S, a_while, a_world

pytestmark = pytest.mark.anyio


class CountingStore(MemoryStore):
    """Remembers who was written together; a session in `full` fails, one in `stuck` never comes
    back."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[str]] = []
        self.full: set[str] = set()
        self.stuck: set[str] = set()
        self.awake = anyio.Event()
        self.awake.set()

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.requests.append([commit.session for commit in commits])
        await self.awake.wait()
        return await super().commit(commits)

    async def commit_one(self, commit: Commit) -> None:
        if commit.session in self.stuck:
            await anyio.sleep_forever()
        if commit.session in self.full:
            raise StoreFailed("the disk is full, as the test says", retryable=True)
        await super().commit_one(commit)


class Page:
    """A journal that has one thing to write, and may have a bug."""

    def __init__(self, session: str, epoch: int, *, bug: str = "") -> None:
        self.session = session
        self.epoch = epoch
        self.bug = bug
        self.words = "words"
        self.waits = True
        self.error: Exception | None = None
        self.over = anyio.Event()

    def take(self, at: float) -> Commit | None:
        if self.bug in ("take", "end"):
            raise KeyError("m1")
        if not self.waits:
            return None
        self.waits = False
        events = (TextCheckpoint("t1", self.words),)
        return Commit(self.session, self.session, self.epoch, 0, at, events, b"")

    def written(self, commit: Commit) -> None:
        if self.bug == "written":
            raise KeyError("m1")
        self.over.set()

    def not_written(self, error: Exception) -> None:
        self.error = error
        self.over.set()
        if self.bug == "end":
            raise KeyError("m2")


@asynccontextmanager
async def a_committer(store: MemoryStore, linger_s: float = 60.0) -> AsyncIterator[GroupCommitter]:
    home = EngineTasks()
    home.open()
    committer = GroupCommitter(store, linger_s=linger_s, now=lambda: 1.0, spawn=home.spawn)
    committer.open()
    try:
        with anyio.fail_after(WITHIN_S):
            yield committer
    finally:
        await home.close()


async def pages(store: MemoryStore, *names: str) -> list[Page]:
    heads = [await store.create(name, root=name, at=0.0) for name in names]
    return [Page(head.id, head.epoch) for head in heads if head is not None]


async def test_messages_of_one_moment_are_written_together() -> None:
    store = CountingStore()
    names = [f"s{number}" for number in range(20)]

    async def queue(session: Session) -> None:
        await session.send("later", mode=Mode.QUEUE)

    script = [Answer([Wait(name)]) for name in names]
    async with a_world(script, store=store, linger_s=60.0) as world:
        sessions = [await world.session(name) for name in names]
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(session.send, "go")
        for name in names:
            await world.model.gate(name).reached()
        store.requests.clear()
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(queue, session)
        (together,) = [request for request in store.requests if len(request) > 1]
        assert sorted(together) == sorted(names)


async def test_what_fails_in_one_session_touches_no_other() -> None:
    store = CountingStore()
    ann, bob, eve = await pages(store, "ann", "bob", "eve")
    store.full.add("bob")
    async with a_committer(store) as committer:
        for page in (ann, bob, eve):
            committer.commit(page)
        for page in (ann, bob, eve):
            await page.over.wait()
        assert store.requests == [["ann", "bob", "eve"]]
        assert [type(page.error) for page in (ann, bob, eve)] == [
            type(None),
            StoreFailed,
            type(None),
        ]


async def test_nobody_waits_for_the_large_commit_of_another() -> None:
    store = CountingStore()
    ann, bob, eve, zoe = await pages(store, "ann", "bob", "eve", "zoe")
    ann.words = eve.words = "x" * 1_000_000
    store.stuck.update(("ann", "eve"))
    async with a_committer(store) as committer:
        for page in (ann, bob, eve, zoe):
            committer.commit(page)
        await bob.over.wait()
        await zoe.over.wait()
        await a_while()
        assert store.requests[0] == ["bob", "zoe"]
        assert sorted(store.requests[1:]) == [["ann"], ["eve"]]


async def test_a_large_commit_alone_is_written_at_once() -> None:
    store = CountingStore()
    ann, bob = await pages(store, "ann", "bob")
    ann.words = bob.words = "x" * 1_000_000
    async with a_committer(store) as committer:
        for page in (ann, bob):
            committer.commit(page)
        for page in (ann, bob):
            await page.over.wait()
            assert page.error is None
        assert store.requests == [["ann"], ["bob"]]


@pytest.mark.parametrize("bug", ["take", "written", "end"])
async def test_a_bug_in_one_session_touches_no_other(
    bug: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CountingStore()
    ann, bob, eve = await pages(store, "ann", "bob", "eve")
    bob.bug = bug
    async with a_committer(store) as committer:
        for page in (ann, bob, eve):
            committer.commit(page)
        for page in (ann, bob, eve):
            await page.over.wait()
        assert isinstance(bob.error, BugError)
        assert (ann.error, eve.error) == (None, None)
    assert "KeyError" in caplog.text


async def test_a_closed_store_is_told_to_all() -> None:
    store = CountingStore()
    ann, bob = await pages(store, "ann", "bob")
    await store.aclose()
    async with a_committer(store) as committer:
        for page in (ann, bob):
            committer.commit(page)
        for page in (ann, bob):
            await page.over.wait()
            assert isinstance(page.error, StoreFailed)


async def test_one_that_does_not_come_back_holds_up_nobody_who_comes_later() -> None:
    store = CountingStore()
    ann, bob, eve = await pages(store, "ann", "bob", "eve")
    store.stuck.add("ann")
    async with a_committer(store) as committer:
        committer.commit(ann)
        while not store.requests:
            await anyio.lowlevel.checkpoint()
        for page in (bob, eve):
            committer.commit(page)
            await page.over.wait()
        assert store.requests == [["ann"], ["bob"], ["eve"]]
        assert not ann.over.is_set()


async def test_after_a_disk_that_hung_few_hands_are_left_to_rest() -> None:
    store = CountingStore()
    many = await pages(store, *[f"s{number}" for number in range(100)])
    async with a_committer(store) as committer:
        store.awake = anyio.Event()
        for number, page in enumerate(many, 1):
            committer.commit(page)
            while len(store.requests) < number:
                await anyio.lowlevel.checkpoint()
        store.awake.set()
        for page in many:
            await page.over.wait()
        await a_while()
        assert len(committer._resting) == RESTING_MAX


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hand_that_is_called_and_cancelled_at_once_leaves_its_work_to_another() -> None:
    store = CountingStore()
    ann, bob = await pages(store, "ann", "bob")
    home = EngineTasks()
    home.open()
    committer = GroupCommitter(store, linger_s=60.0, now=lambda: 1.0, spawn=home.spawn)
    committer.commit(ann)
    await ann.over.wait()
    await a_while()
    (hand,) = home._tasks
    assert hand.native is not None
    committer.commit(bob)
    hand.native.cancel()
    with anyio.fail_after(WITHIN_S):
        await bob.over.wait()
    await home.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hand_that_is_cancelled_while_it_writes_leaves_nobody_waiting() -> None:
    store = CountingStore()
    ann, bob = await pages(store, "ann", "bob")
    store.awake = anyio.Event()
    home = EngineTasks()
    home.open()
    committer = GroupCommitter(store, linger_s=60.0, now=lambda: 1.0, spawn=home.spawn)
    committer.commit(ann)
    committer.commit(bob)
    await a_while()
    (hand,) = home._tasks
    assert hand.native is not None
    hand.native.cancel()
    with anyio.fail_after(WITHIN_S):
        for page in (ann, bob):
            await page.over.wait()
            assert isinstance(page.error, StoreFailed)
    await home.close()


async def test_a_store_that_does_not_tell_of_each_is_told_to_all() -> None:
    class Forgetful(MemoryStore):
        async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
            return (await super().commit(commits))[1:]

    store = Forgetful()
    ann, bob = await pages(store, "ann", "bob")
    async with a_committer(store) as committer:
        for page in (ann, bob):
            committer.commit(page)
        for page in (ann, bob):
            await page.over.wait()
            assert isinstance(page.error, BugError)


async def test_very_many_are_written_in_parts() -> None:
    store = CountingStore()
    many = await pages(store, *[f"s{number}" for number in range(2 * TOGETHER_MAX + 10)])
    async with a_committer(store) as committer:
        for page in many:
            committer.commit(page)
        for page in many:
            await page.over.wait()
            assert page.error is None
        assert [len(request) for request in store.requests] == [TOGETHER_MAX, TOGETHER_MAX, 10]


async def test_what_lingers_is_written_once_and_at_once_if_in_a_hurry() -> None:
    store = CountingStore()
    ann, bob = await pages(store, "ann", "bob")
    async with a_committer(store) as committer:
        committer.commit_soon(ann)
        committer.commit_soon(bob)
        committer.commit(bob)
        await bob.over.wait()
        assert store.requests == [["bob"]]
        assert not ann.over.is_set()


async def test_what_lingers_is_written_though_nobody_asks() -> None:
    store = CountingStore()
    ann, bob, eve = await pages(store, "ann", "bob", "eve")
    async with a_committer(store, linger_s=0.01) as committer:
        committer.commit_soon(ann)
        await ann.over.wait()
        # The first of two is written early; the second has a time of its own.
        committer.commit_soon(bob)
        committer.commit_soon(eve)
        committer.commit(bob)
        await bob.over.wait()
        await eve.over.wait()
    assert sorted(name for request in store.requests for name in request) == ["ann", "bob", "eve"]
