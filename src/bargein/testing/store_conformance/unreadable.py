"""Events and states that cannot be read: named exactly, and in nobody's way."""

from typing import cast

import msgspec

from bargein.contracts.event import Event
from bargein.contracts.store import SessionUnreadable, Store, commit_one
from bargein.testing.store_conformance.scene import (
    Checks,
    Scene,
    equal,
    log,
    looked,
    made,
    refused,
    said,
    step,
    true,
    written,
)

UNREADABLE_CHECKS = Checks()
DAMAGE_CHECKS = Checks()
"""For stores whose `StoreUnderTest` can damage an event."""

NOTHING = b"\xc1"
"""No value in any version."""


class DreamDreamt(msgspec.Struct, frozen=True, tag_field="type", tag="dream_dreamt"):
    """An event that only a newer version knows."""

    turn: str


OF_NEWER = cast(Event, DreamDreamt("turn"))


async def of_newer(store: Store, session: str) -> None:
    """A session whose second event of three cannot be read, with words in it."""
    head = await made(store, session)
    events = (said(1), OF_NEWER, said(3))
    await commit_one(store, step(head, *events, text="parrots dream", unfinished=True))


async def is_named(store: Store, session: str, seq: int, last: int) -> None:
    """Reading event `seq` raises an error that names it; events before and after it can be read."""
    for attempt in ({}, {"after": seq - 1}, {"after": seq - 1, "limit": 1}, {"bytes_max": 2**20}):
        error = await refused(SessionUnreadable, store.events(session, **attempt), str(attempt))
        equal((error.session, error.seq), (session, seq), str(attempt))
        true(f"event {seq} of session {session!r}" in str(error), f"found {str(error)!r}")
    before = await store.events(session, limit=seq - 1)
    equal([each.seq for each in before], list(range(1, seq)), "before it")
    after = await store.events(session, after=seq)
    equal([each.seq for each in after], list(range(seq + 1, last + 1)), "after it")


async def others_go_on(store: Store, unreadable: str) -> None:
    """Lists are whole, and another session is written and read."""
    await written(store, "other", 2)
    equal(await log(store, "other"), [said(1), said(2)], "another session")
    listed = {head.id for head in await store.sessions()}
    equal(listed, {unreadable, "other"}, "the list")
    equal(await store.unfinished(), [unreadable], "what is unfinished")


# --- what a newer version wrote


@UNREADABLE_CHECKS.of_store
async def an_event_of_a_newer_version_is_named(store: Store) -> None:
    await of_newer(store, "s")
    await is_named(store, "s", 2, 3)
    # An error leaves nothing behind that the next answer would stumble over.
    for number in range(4, 9):
        await commit_one(store, step(await looked(store, "s"), said(number)))
        await is_named(store, "s", 2, number)


@UNREADABLE_CHECKS.of_store
async def an_event_that_cannot_be_read_is_in_nobodys_way(store: Store) -> None:
    await of_newer(store, "s")
    await refused(SessionUnreadable, store.events("s"))
    await others_go_on(store, "s")
    equal([(each.session, each.seq) for each in await store.search("parrots")], [("s", 3)])
    equal(await store.delete("s", epoch=(await looked(store, "s")).epoch), True, "delete")
    equal((await store.head("s"), await store.events("s")), (None, []), "once it is deleted")


@UNREADABLE_CHECKS.of_scene
async def the_next_owner_takes_what_cannot_be_read_and_all_others(scene: Scene) -> None:
    await of_newer(scene.store, "s")
    await written(scene.store, "t", 1)
    store = await scene.take_over("two")
    for session in ("s", "t"):
        head = await store.claim(session)
        equal(head is not None and head.owner, "two", session)
    await is_named(store, "s", 2, 3)
    await commit_one(store, step(await looked(store, "s"), said(4)))
    await commit_one(store, step(await looked(store, "t"), said(2)))
    equal(await log(store, "t"), [said(1), said(2)])


@UNREADABLE_CHECKS.of_scene
async def a_backup_has_what_cannot_be_read_and_all_others(scene: Scene) -> None:
    await of_newer(scene.store, "s")
    await written(scene.store, "t", 1)
    path = scene.directory / "unreadable backup"
    await scene.store.backup(str(path))
    store = await scene.open_backup(path)
    await is_named(store, "s", 2, 3)
    equal(await log(store, "t"), [said(1)])


@UNREADABLE_CHECKS.of_scene
async def a_state_means_nothing_to_the_store(scene: Scene) -> None:
    """Whether it can be read is the engine's to say; the store gives it back as it was."""
    head = await made(scene.store, "s")
    await commit_one(scene.store, step(head, said(1), state=NOTHING, unfinished=True))
    store = await scene.take_over("two")
    claimed = await store.claim("s")
    found = [claimed, await store.head("s"), *await store.sessions()]
    equal([each is not None and each.state for each in found], [NOTHING] * 3)
    await others_go_on(store, "s")
    equal(await store.delete("s"), True, "delete")


# --- damage


@DAMAGE_CHECKS.of_scene
async def a_damaged_event_is_named_and_in_nobodys_way(scene: Scene) -> None:
    head = await written(scene.store, "s", 3)
    await commit_one(scene.store, step(head, said(4), unfinished=True))
    whole = msgspec.msgpack.encode(said(2))
    for body in (NOTHING, b"", whole[:-3], whole + whole, b"\x00" * 32, b"\xff" * 2000):
        await scene.stores.damage_event("s", 2, body)
        await is_named(scene.store, "s", 2, 4)
    await others_go_on(scene.store, "s")
    await scene.stores.damage_event("s", 2, whole)
    equal(await log(scene.store, "s"), [said(number) for number in range(1, 5)], "when repaired")
