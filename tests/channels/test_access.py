import pytest

from bargein.channels.access import CODE_S, CODES_MAX, WRONG_MAX, ChannelAccess
from bargein.channels.contract import ChatAddress, ChatKind, Person
from bargein.channels.rows import Ledger, MemoryRows
from bargein.contracts.permission import Standing
from bargein.errors import UserError

ALICE, BOB = Person("1", "Alice"), Person("2", "Bob")
HERS, GROUP = ChatAddress("c1"), ChatAddress("g1", ChatKind.GROUP)

pytestmark = pytest.mark.anyio


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def access_of(rows: MemoryRows, clock: Clock) -> ChannelAccess:
    return ChannelAccess(Ledger(rows, "test"), clock)


async def test_a_code_pairs_one_person_in_one_chat_once() -> None:
    access = access_of(MemoryRows(), Clock())
    code = await access.make_code(ChatKind.PRIVATE)
    assert not await access.try_code(code, GROUP, ALICE), "made for a private chat"
    assert await access.try_code(f"/start {code.lower()}", HERS, ALICE)
    assert not await access.try_code(code, ChatAddress("c2"), BOB), "used up"
    assert await access.admits(HERS, ALICE)
    assert not await access.admits(HERS, BOB)
    assert not await access.admits(GROUP, ALICE)


async def test_a_code_expires() -> None:
    clock = Clock()
    access = access_of(MemoryRows(), clock)
    code = await access.make_code(ChatKind.PRIVATE)
    clock.at += CODE_S
    assert not await access.try_code(code, HERS, ALICE)


async def test_guessing_ends_the_codes_that_wait() -> None:
    access = access_of(MemoryRows(), Clock())
    code = await access.make_code(ChatKind.PRIVATE)
    for _ in range(WRONG_MAX):
        assert not await access.try_code("AAAA-AAAA", HERS, BOB)
    assert not await access.try_code(code, HERS, ALICE)


async def test_codes_are_bounded_and_only_their_hash_is_kept() -> None:
    rows = MemoryRows()
    access = access_of(rows, Clock())
    code = await access.make_code(ChatKind.PRIVATE)
    kept = [body for _, body in await rows.scan("code")]
    assert kept
    assert all(code.replace("-", "").encode() not in body for body in kept)
    for _ in range(CODES_MAX - 1):
        await access.make_code(ChatKind.PRIVATE)
    with pytest.raises(UserError, match="waiting to be used"):
        await access.make_code(ChatKind.PRIVATE)


async def test_a_pairing_can_be_revoked() -> None:
    access = access_of(MemoryRows(), Clock())
    assert await access.try_code(await access.make_code(ChatKind.PRIVATE), HERS, ALICE)
    assert await access.try_code(await access.make_code(ChatKind.GROUP), GROUP, ALICE)
    assert await access.revoke(ALICE.id) == 2
    assert not await access.admits(HERS, ALICE)


async def test_who_was_paired_before_the_start_may_approve_in_private_only() -> None:
    rows, clock = MemoryRows(), Clock()
    before = access_of(rows, clock)
    assert await before.try_code(await before.make_code(ChatKind.PRIVATE), HERS, ALICE)
    assert await before.try_code(await before.make_code(ChatKind.GROUP), GROUP, ALICE)
    assert await before.standing_of(HERS, ALICE) is Standing.WRITER, "paired while it runs"
    clock.at += 1
    after = access_of(rows, clock)
    assert await after.standing_of(HERS, ALICE) is Standing.APPROVER
    assert await after.standing_of(GROUP, ALICE) is Standing.WRITER
    assert await after.standing_of(HERS, BOB) is Standing.WRITER


async def test_a_private_chat_that_becomes_a_group_is_not_paired_any_more() -> None:
    access = access_of(MemoryRows(), Clock())
    assert await access.try_code(await access.make_code(ChatKind.PRIVATE), HERS, ALICE)
    assert not await access.admits(ChatAddress(HERS.id, ChatKind.GROUP), ALICE)
