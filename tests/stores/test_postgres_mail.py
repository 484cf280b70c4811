"""Mail between nodes: the row is the letter, the bell only wakes."""

# ruff: noqa: ASYNC110  (what is waited for is in another process)

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from bargein.contracts.mail import Letter
from bargein.stores.postgres import PostgresStore, mail
from bargein.stores.postgres.mail import Mailbox
from bargein.stores.postgres.nodes import channel_of
from tests.stores.postgres_kinds import database, sql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


@pytest.fixture
async def nodes(anyio_backend: object) -> AsyncIterator[tuple[PostgresStore, PostgresStore, str]]:
    async with database() as address:
        one = await PostgresStore.open(address, owner="one")
        two = await PostgresStore.open(address, owner="two")
        yield one, two, address
        await one.aclose()
        await two.aclose()


async def all_of(letters: list[Letter], count: int) -> None:
    async with asyncio.timeout(10):
        while len(letters) < count:
            await asyncio.sleep(0.005)


async def test_a_letter_arrives_once_and_is_gone(
    nodes: tuple[PostgresStore, PostgresStore, str],
) -> None:
    one, two, address = nodes
    got: list[Letter] = []

    async def receive(letter: Letter) -> None:
        got.append(letter)

    two.mail.open(receive)
    for _ in range(3):
        await one.mail.post("two", Letter("one", "k1", b"stop"))
    await one.mail.post("two", Letter("one", "k2", b"more", answers="k\x009"))
    await one.mail.post("three", Letter("one", "k1", b"for another"))
    await all_of(got, 2)
    # The letter is removed when its recipient is done with it; the same key after that is a new
    # letter, which the recipient recognises by its key.
    assert {letter.key for letter in got} == {"k1", "k2"}
    assert next(letter for letter in got if letter.key == "k2").answers == "k\x009"
    async with sql(address) as connection, asyncio.timeout(5):
        while await connection.fetchval("SELECT count(*) FROM bargein.mail") > 1:
            await asyncio.sleep(0.01)


async def test_a_bell_is_heard_long_before_the_next_look(
    nodes: tuple[PostgresStore, PostgresStore, str],
) -> None:
    one, two, _ = nodes
    got: list[Letter] = []

    async def receive(letter: Letter) -> None:
        got.append(letter)

    two.mail.open(receive)
    # The first also waits until the bell hangs.
    await one.mail.post("two", Letter("one", "0", b""))
    await all_of(got, 1)
    await asyncio.sleep(0.1)
    took = []
    for number in range(1, 20):
        began = time.monotonic()
        await one.mail.post("two", Letter("one", str(number), b""))
        await all_of(got, number + 1)
        took.append(time.monotonic() - began)
    assert sorted(took)[len(took) // 2] < mail.LOOK_S / 10


async def test_a_lost_bell_costs_one_look(
    nodes: tuple[PostgresStore, PostgresStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = nodes
    got: list[Letter] = []

    async def receive(letter: Letter) -> None:
        got.append(letter)

    monkeypatch.setattr(mail, "LOOK_S", 0.2)
    monkeypatch.setattr(Mailbox, "ring", lambda self, recipient: None)
    two.mail.open(receive)
    await asyncio.sleep(0.3)
    await one.mail.post("two", Letter("one", "k", b""))
    await all_of(got, 1)


async def test_a_letter_that_could_not_be_dealt_with_comes_again(
    nodes: tuple[PostgresStore, PostgresStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = nodes
    monkeypatch.setattr(mail, "LOOK_S", 0.2)
    seen: list[Letter] = []

    async def receive(letter: Letter) -> None:
        seen.append(letter)
        if len(seen) == 1:
            raise OSError("not now")

    two.mail.open(receive)
    await one.mail.post("two", Letter("one", "k", b"x"))
    await all_of(seen, 2)
    assert seen[0] == seen[1]


async def test_rings_that_come_together_become_one(
    nodes: tuple[PostgresStore, PostgresStore, str],
) -> None:
    one, _, address = nodes
    heard: list[object] = []
    async with sql(address) as listening:
        await listening.add_listener(channel_of("two"), lambda *given: heard.append(given))
        for _ in range(500):
            one.mail.ring("two")
        async with asyncio.timeout(5):
            while one.mail._ringing or not heard:
                await asyncio.sleep(0.01)
        assert len(heard) <= 3
