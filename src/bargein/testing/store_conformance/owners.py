"""Sessions and who may write to them: heads, claims, epochs, owners, sessions under a root."""

import anyio
import msgspec

from bargein.contracts.store import (
    OutOfOrder,
    OwnedElsewhere,
    SessionHead,
    StaleEpoch,
    Store,
    StoreFailed,
    commit_one,
)
from bargein.errors import BugError
from bargein.testing.store_conformance.scene import (
    Checks,
    Scene,
    claimed,
    equal,
    key,
    log,
    looked,
    made,
    made_under,
    refused,
    said,
    step,
    true,
    written,
)

OWNER_CHECKS = Checks()
SHARED_CHECKS = Checks()
"""For stores that several owners can use at the same time."""


# --- sessions and heads


@OWNER_CHECKS.of_store
async def a_new_session_is_empty_and_owned_by_its_maker(store: Store) -> None:
    head = await made(store, "s", at=5.0)
    empty = (head.id, head.root, head.seq, head.state, head.title)
    equal(empty, ("s", "s", 0, b"", ""))
    equal((head.created_at, head.updated_at), (5.0, 5.0))
    equal(head.owner, store.owner, "owner")
    equal(await store.head("s"), head)
    await commit_one(store, step(head, said(1)))


@OWNER_CHECKS.of_store
async def a_session_is_made_once(store: Store) -> None:
    head = await made(store, "s")
    equal(await store.create("s", root="s", at=9.0), None)
    equal(await store.create("s", root="other", at=9.0, epoch=1), None)
    equal(await store.head("s"), head)


@OWNER_CHECKS.of_store
async def a_missing_session_is_not_found(store: Store) -> None:
    equal(await store.head("s"), None)
    equal(await store.claim("s"), None)
    equal(await store.events("s"), [])
    equal(await store.find_key("s", "ann", "c"), None)
    equal(await store.delete("s"), False)
    equal(await store.sessions(), [])
    equal(await store.unfinished(), [])
    equal(await store.search("x"), [])


@OWNER_CHECKS.of_store
async def the_head_has_what_the_last_commit_said(store: Store) -> None:
    head = await made(store, "s", at=1.0)
    await commit_one(store, step(head, said(1), said(2), at=2.0, state=b"one", title="first"))
    second = msgspec.structs.replace(head, seq=2, state=b"one", title="first", updated_at=2.0)
    equal(await store.head("s"), second)
    await commit_one(store, step(second, at=3.0, state=b"two"))
    third = msgspec.structs.replace(second, state=b"two", updated_at=3.0)
    equal(await store.head("s"), third)
    await commit_one(store, step(third, at=3.0, state=b"two", title=""))
    equal((await looked(store, "s")).title, "")


# --- epochs


@OWNER_CHECKS.of_store
async def a_claim_raises_the_epoch_and_keeps_the_rest(store: Store) -> None:
    head = await written(store, "s", 2)
    now = await claimed(store, "s")
    true(now.epoch > head.epoch, f"the epoch stays {now.epoch}")
    equal(msgspec.structs.replace(now, epoch=head.epoch), head)
    equal(await store.head("s"), now)


@OWNER_CHECKS.of_store
async def a_stale_epoch_writes_nothing(store: Store) -> None:
    head = await made(store, "s")
    now = await claimed(store, "s")
    for epoch in (head.epoch, now.epoch + 1, 0, -1):
        await refused(StaleEpoch, commit_one(store, step(head, said(1), epoch=epoch)), f"{epoch}")
    equal(await store.events("s"), [])
    await commit_one(store, step(now, said(1)))


@OWNER_CHECKS.of_store
async def a_stale_writer_gets_stale_epoch_however_far_the_log_has_gone(store: Store) -> None:
    for name, keys in (("without", ()), ("with", (key("c1"),))):
        old = await written(store, name, 60)
        new = await claimed(store, name)
        await commit_one(store, step(new, *(said(number) for number in range(200))))
        events = [said(number) for number in range(10)]
        await refused(StaleEpoch, commit_one(store, step(old, *events, keys=keys)))
        await refused(OutOfOrder, commit_one(store, step(new, *events, keys=keys)))
        equal((await looked(store, name)).seq, 260)


@OWNER_CHECKS.of_store
async def a_claim_of_one_session_leaves_others_alone(store: Store) -> None:
    first, second = await made(store, "a"), await made(store, "b")
    await store.claim("a")
    await commit_one(store, step(second, said(1)))
    await refused(StaleEpoch, commit_one(store, step(first, said(1))))


@OWNER_CHECKS.of_store
async def claims_at_once_all_differ_and_the_highest_holds(store: Store) -> None:
    await made(store, "s")
    heads: list[SessionHead] = []

    async def claim() -> None:
        heads.append(await claimed(store, "s"))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(claim)
    epochs = sorted(head.epoch for head in heads)
    equal(len(set(epochs)), 10, "different epochs")
    equal((await looked(store, "s")).epoch, epochs[-1])


@OWNER_CHECKS.of_store
async def an_epoch_is_never_given_twice(store: Store) -> None:
    """Also not to a new session of the same name: the old owner may still be writing."""
    old = await made(store, "s")
    await store.delete("s")
    new = await made(store, "s")
    true(new.epoch > old.epoch, f"the epoch after a deletion is {new.epoch}, it was {old.epoch}")
    await refused(StaleEpoch, commit_one(store, step(old, said(1))))


@OWNER_CHECKS.of_store
async def a_commit_to_a_deleted_session_is_stale(store: Store) -> None:
    head = await written(store, "s", 1)
    equal(await store.delete("s"), True)
    await refused(StaleEpoch, commit_one(store, step(head, said(2))))
    equal(await store.head("s"), None)


@OWNER_CHECKS.of_store
async def a_stale_owner_cannot_delete(store: Store) -> None:
    old = await made(store, "s")
    new = await claimed(store, "s")
    await refused(StaleEpoch, store.delete("s", epoch=old.epoch))
    equal(await store.head("s"), new)
    equal(await store.delete("s", epoch=new.epoch), True)


# --- owners


@OWNER_CHECKS.of_scene
async def a_new_owner_takes_the_sessions_of_a_dead_one(scene: Scene) -> None:
    first = scene.store
    head = await written(first, "s", 2)
    under = await made_under(first, head, "s/c")
    second = await scene.take_over("two")
    equal((await looked(second, "s")).owner, "one", "owner before the claim")
    now = await claimed(second, "s")
    equal((now.owner, now.seq), ("two", 2))
    equal((await looked(second, "s/c")).owner, "two", "owner of a session under it")
    await commit_one(second, step(now, said(3)))
    # The old owner may still be alive, and must be fenced.
    await refused(StaleEpoch, commit_one(first, step(head, said(3))))
    await refused(StaleEpoch, commit_one(first, step(under, said(1))))
    await refused(StaleEpoch, first.delete("s", epoch=head.epoch))
    equal(await log(second, "s"), [said(1), said(2), said(3)])


@OWNER_CHECKS.of_scene
async def an_owner_keeps_what_nobody_has_claimed(scene: Scene) -> None:
    """Declaring an owner dead fences nothing by itself: only a claim does."""
    mine, other = await made(scene.store, "mine"), await made(scene.store, "other")
    second = await scene.take_over("two")
    await claimed(second, "other")
    await commit_one(scene.store, step(mine, said(1)))
    await refused(StaleEpoch, commit_one(scene.store, step(other, said(1))))


@OWNER_CHECKS.of_scene
async def a_session_stays_its_owners_after_closing(scene: Scene) -> None:
    head = await written(scene.store, "s", 1)
    await scene.store.aclose()
    again = await scene.open("one")
    equal(await looked(again, "s"), head)
    now = await claimed(again, "s")
    equal(now.owner, "one")
    await commit_one(again, step(now, said(2)))


@SHARED_CHECKS.of_scene
async def a_living_owner_keeps_its_sessions(scene: Scene) -> None:
    head = await made(scene.store, "s")
    second = await scene.open("two")
    elsewhere = await refused(OwnedElsewhere, second.claim("s"))
    equal((elsewhere.session, elsewhere.owner), ("s", "one"))
    equal(await second.create("s", root="s", at=1.0), None)
    equal(await second.head("s"), head, "a refused claim changes nothing")
    await commit_one(scene.store, step(head, said(1)))
    equal(await second.claim("nobody"), None)
    own = await made(second, "own")
    equal(own.owner, "two")
    await refused(OwnedElsewhere, scene.store.claim("own"))


@SHARED_CHECKS.of_scene
async def of_many_owners_that_claim_a_dead_ones_session_one_wins(scene: Scene) -> None:
    head = await made(scene.store, "s")
    await scene.stores.bury("one")
    others = [await scene.open(f"owner {number}") for number in range(5)]
    won: list[SessionHead] = []
    lost: list[str] = []

    async def claim(store: Store) -> None:
        try:
            won.append(await claimed(store, "s"))
        except OwnedElsewhere as elsewhere:
            lost.append(elsewhere.owner)

    async with anyio.create_task_group() as group:
        for store in others:
            group.start_soon(claim, store)
    equal(len(won), 1, "how many have won")
    equal(lost, [won[0].owner] * 4, "who the others were told the owner is")
    true(won[0].epoch > head.epoch, "the epoch did not rise")


@SHARED_CHECKS.of_scene
async def a_dead_owner_can_neither_make_nor_claim(scene: Scene) -> None:
    await made(scene.store, "s")
    await scene.stores.bury("one")
    await refused(StoreFailed, scene.store.claim("s"))
    await refused(StoreFailed, scene.store.create("t", root="t", at=0.0))
    second = await scene.open("two")
    equal(await second.head("t"), None)
    equal((await claimed(second, "s")).owner, "two")


# --- sessions under a root


@OWNER_CHECKS.of_store
async def a_session_under_a_root_has_the_roots_epoch(store: Store) -> None:
    root = await made(store, "root")
    child = await made_under(store, root, "child")
    equal((child.root, child.epoch, child.owner), ("root", root.epoch, store.owner))
    await commit_one(store, step(child, said(1)))
    now = await claimed(store, "root")
    equal((await looked(store, "child")).epoch, now.epoch)
    next_one = step(child, said(2), expected_seq=1)
    await refused(StaleEpoch, commit_one(store, next_one))
    await commit_one(store, msgspec.structs.replace(next_one, epoch=now.epoch))


@OWNER_CHECKS.of_store
async def a_commit_names_the_root_of_its_session(store: Store) -> None:
    root, other = await made(store, "root"), await made(store, "other")
    child = await made_under(store, root, "child")
    await commit_one(store, step(child, said(1)))
    child = await looked(store, "child")
    for wrong in (
        step(child, said(2), root="child"),
        step(child, said(2), root="other", epoch=other.epoch),
        step(other, said(1), root="root", epoch=root.epoch),
    ):
        await refused(BugError, commit_one(store, wrong))
    equal(await store.events("other"), [])
    await commit_one(store, step(child, said(2)))
    equal(await store.delete("root"), True)
    child = await made_under(store, other, "child")
    await commit_one(store, step(child, said(3)))
    equal((await looked(store, "child")).root, "other")


@OWNER_CHECKS.of_store
async def only_the_roots_owner_can_make_a_session_under_it(store: Store) -> None:
    root = await made(store, "root")
    for epoch in (None, root.epoch - 1, root.epoch + 1):
        await refused(StaleEpoch, store.create("child", root="root", at=0.0, epoch=epoch))
    await refused(StaleEpoch, store.create("child", root="nobody", at=0.0, epoch=root.epoch))
    equal(await store.head("child"), None)


@OWNER_CHECKS.of_store
async def only_a_root_can_be_claimed(store: Store) -> None:
    root = await made(store, "root")
    child = await made_under(store, root, "child")
    equal(await store.claim("child"), None)
    equal(await store.head("child"), child)
