"""Large commits. A store may write others first and cut them into parts; callers see no
difference."""

import anyio
import anyio.lowlevel

from bargein.contracts.event import CallEnded, Event, Recorded, UserSaid
from bargein.contracts.model import Image, Text
from bargein.contracts.store import (
    DuplicateKey,
    OutOfOrder,
    StaleEpoch,
    Store,
    commit_one,
)
from bargein.contracts.tool import CallResult, CallStatus
from bargein.testing.store_conformance.scene import (
    Checks,
    Scene,
    equal,
    key,
    log,
    looked,
    made,
    refused,
    said,
    step,
)

LARGE_CHECKS = Checks()

BYTES = 300_000


def much(number: int, size: int = BYTES) -> Event:
    """An event with a text that differs in every part of it."""
    words = "".join(f"{number}.{place} " for place in range(size // 8))
    return UserSaid("turn", (Text(words),))


@LARGE_CHECKS.of_store
async def large_events_come_back_as_they_were(store: Store) -> None:
    head = await made(store, "s")
    image = Image("image/png", bytes(range(256)) * 2_000)
    ended = CallEnded("t", "c1", CallResult(CallStatus.FINISHED, (Text("é" * 90_000), image)))
    events = (said(1), much(1), said(2), ended, much(2, 3_000_000), said(3))
    await commit_one(store, step(head, *events, at=7.5, text="needle", keys=(key("c1"),)))
    wanted = [Recorded(seq, 7.5, event) for seq, event in enumerate(events, 1)]
    equal(await store.events("s") == wanted, True, "the events are as they were")
    equal(await store.events("s", after=1, limit=2) == wanted[1:3], True, "a page of them")
    equal(
        len(await store.events("s", bytes_max=BYTES // 2)), 2, "events of a page with enough bytes"
    )
    equal([found.seq for found in await store.search("needle")], [6])
    equal(await store.find_key("s", "ann", "c1"), key("c1"))
    equal((await looked(store, "s")).seq, 6)


@LARGE_CHECKS.of_store
async def large_and_small_writes_of_a_session_keep_their_order(store: Store) -> None:
    head = await made(store, "s")
    seen: list[int] = []

    async def write(place: int, started: anyio.Event) -> None:
        started.set()
        event = said(place) if place % 3 else much(place)
        await commit_one(store, step(head, event, expected_seq=place, state=b"%d" % place))
        seen.append((await looked(store, "s")).seq)

    async with anyio.create_task_group() as group:
        for place in range(12):
            started = anyio.Event()
            group.start_soon(write, place, started)
            await started.wait()
    wanted = [said(place) if place % 3 else much(place) for place in range(12)]
    equal(await log(store, "s") == wanted, True, "the order of the log is that of asking")
    equal((await looked(store, "s")).state, b"11")
    equal(len(seen), 12)


@LARGE_CHECKS.of_store
async def a_claim_waits_for_the_large_write_before_it(store: Store) -> None:
    head = await made(store, "s")
    async with anyio.create_task_group() as group:
        started = anyio.Event()

        async def write() -> None:
            started.set()
            await commit_one(store, step(head, much(1)))

        group.start_soon(write)
        await started.wait()
        again = await store.claim("s")
    equal(again is not None and again.seq, 1, "events at the claim")
    await refused(StaleEpoch, commit_one(store, step(head, said(2), expected_seq=1)))


@LARGE_CHECKS.of_store
async def a_refused_large_commit_writes_nothing(store: Store) -> None:
    head, other = await made(store, "s"), await made(store, "other")
    await commit_one(store, step(head, said(1), keys=(key("c1"),)))
    head = await looked(store, "s")
    stale = commit_one(store, step(head, much(2), epoch=head.epoch + 9))
    await refused(StaleEpoch, stale)
    await refused(OutOfOrder, commit_one(store, step(head, much(2), expected_seq=7)))
    await refused(DuplicateKey, commit_one(store, step(head, much(2), keys=(key("c1"),))))
    outcomes = await store.commit(
        [step(head, much(2), epoch=head.epoch + 9), step(other, much(3)), step(head, much(4))]
    )
    equal([type(outcome) for outcome in outcomes], [StaleEpoch, type(None), type(None)])
    equal(await log(store, "s") == [said(1), much(4)], True, "only what was accepted is there")
    equal(await log(store, "other") == [much(3)], True, "the others are there")


@LARGE_CHECKS.of_store
async def a_large_event_that_is_not_unicode_is_refused(store: Store) -> None:
    head, other = await made(store, "s"), await made(store, "other")
    bad = UserSaid("turn", (Text("x" * BYTES + "\ud800"),))
    outcomes = await store.commit([step(head, bad), step(other, much(1))])
    equal(isinstance(outcomes[0], ValueError), True, f"a ValueError, not {outcomes[0]!r}")
    equal(outcomes[1], None)
    equal(await store.head("s"), head)


@LARGE_CHECKS.of_store
async def a_cancelled_large_write_is_decided_when_the_session_is_read(store: Store) -> None:
    head = await made(store, "s")
    for number in range(9):
        async with anyio.create_task_group() as group:
            commit = step(head, much(number), keys=(key(f"c{number}"),))
            group.start_soon(commit_one, store, commit)
            for _ in range(number % 3):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        now = await looked(store, "s")
        found = await store.find_key("s", "ann", f"c{number}")
        equal(now.seq - head.seq, 0 if found is None else 1, "events of a cancelled write")
        await anyio.sleep(0.002)
        equal(await store.head("s"), now, "the session some time later")
        head = now


@LARGE_CHECKS.of_scene
async def large_events_are_there_for_the_next_owner_and_in_a_backup(scene: Scene) -> None:
    store = scene.store
    await commit_one(store, step(await made(store, "s"), said(1), much(1), said(2)))
    wanted = [said(1), much(1), said(2)]
    path = scene.directory / "large backup"
    await store.backup(str(path))
    equal(await log(await scene.open_backup(path), "s") == wanted, True, "as backed up")
    equal(await log(await scene.take_over("two"), "s") == wanted, True, "as written")


@LARGE_CHECKS.of_store
async def a_deleted_session_takes_its_large_events_along(store: Store) -> None:
    head, other = await made(store, "s"), await made(store, "other")
    await store.commit([step(head, much(1)), step(other, much(2))])
    equal(await store.delete("s"), True)
    equal(await log(store, "s"), [])
    again = await made(store, "s")
    await commit_one(store, step(again, much(3)))
    equal(await log(store, "s") == [much(3)], True, "the new one's")
    equal(await log(store, "other") == [much(2)], True, "the other's")
