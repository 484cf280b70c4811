"""What a picture says of the inbox is what the engine will do."""

from __future__ import annotations

import pytest

from bargein.models.script import Say, Wait
from bargein.session.session import Session
from bargein.view import Picture
from tests.session.world import a_world, until_idle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def check(session: Session) -> None:
    """The same messages wait for the same, and are held or not."""
    picture, state = Picture.of(await session.events()), await session.state()
    waits = sorted((each.id, str(each.waits_for)) for each in picture.waiting)
    assert waits == sorted((each.message.id, str(each.lane)) for each in state.waiting)
    assert picture.held == state.held
    assert (picture.turn.id if picture.turn is not None else None) == state.turn
    used, spent = picture.used, await session.usage()
    assert (used.requests, used.tokens, used.cost) == (spent.requests, spent.tokens, spent.cost)


async def test_what_waits() -> None:
    async with a_world([[Say("One "), Wait("hold")], *([Say("Next.")] for _ in range(9))]) as world:
        session = await world.session()
        await session.send("go")
        await world.model.gate("hold").reached()
        await session.send("later", mode="queue")
        await session.send("even later", mode="queue")
        await session.move("m3", before="m2")
        await check(session)
        await session.interrupt()
        await check(session)
        await session.withdraw("m3")
        await check(session)
        await session.withdraw("m2")
        await check(session)
        await session.send("go on")
        await until_idle(session)
        await check(session)
        assert list(Picture.of(await session.events()).messages) == ["m1", "m2", "m3", "m4"]
