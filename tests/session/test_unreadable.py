"""A session whose log or state cannot be read: it refuses, it is named, and the others go on."""

from __future__ import annotations

from functools import partial

import anyio
import msgspec
import pytest

from bargein.contracts.event import MessageAccepted
from bargein.contracts.store import SessionUnreadable
from bargein.models.script import Say, Wait
from bargein.session.session import Session
from bargein.stores.memory import MemoryStore
from tests.session.laws import events_of
from tests.session.world import (
    WITHIN_S,
    Gate,
    HeldStore,
    Script,
    World,
    a_while,
    a_world,
    completes,
)

pytestmark = pytest.mark.anyio

NEWER = msgspec.msgpack.encode({"type": "dream_dreamt", "turn": "t1"})
# One field has another kind of value than this version knows.
OTHER = msgspec.msgpack.encode({"type": "turn_started", "turn": 7, "messages": []})


def spoil(store: MemoryStore, name: str, body: bytes = b"\xc1", seq: int = 2) -> None:
    kept = store._disk.kept[name]
    at, _ = kept.events[seq - 1]
    kept.events[seq - 1] = (at, body)


async def with_a_held_message(world: World, name: str) -> Session:
    """Stopped with one message in its queue: unfinished, so that a start brings it back."""
    session = await world.session(name)
    await session.send("1")
    await world.model.gate(name).reached()
    await session.send("2", mode="queue")
    await session.interrupt()
    return session


@pytest.mark.parametrize("body", [b"\xc1", NEWER, OTHER], ids=["damaged", "newer", "other"])
async def test_a_start_goes_on_with_the_others_and_names_those_it_cannot_read(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = HeldStore()
    script: Script = [[Say("One "), Wait(name)] for name in "abc"]
    async with a_world(script, store=store) as world:
        for name in "abc":
            await with_a_held_message(world, name)
    spoil(store, "a", body, seq=len(store._disk.kept["a"].events) - 1)
    store._disk.kept["b"].state = b"\xc1"
    async with a_world([[Say("two")]], store=store) as world:
        with anyio.fail_after(WITHIN_S):
            assert world.engine.core.unreadable.keys() == {"a", "b"}
            for name in "ab":
                with pytest.raises(SessionUnreadable, match=f"of session '{name}' cannot be read"):
                    await world.engine.session(name)
            session = await world.session("c")
            await session.continue_()
            await session.settled()
            assert (await session.inbox()) == ()
            await world.check("c")
    assert [each.getMessage() for each in caplog.records if "'a'" in each.getMessage()]
    caplog.clear()


async def test_a_message_to_a_session_that_cannot_be_read_is_refused() -> None:
    """Also where nothing has to be read to bring the session into memory."""
    store = HeldStore()
    async with a_world([[Say("Hello")]], store=store) as world:
        await completes(await world.session(), "Hi")
    spoil(store, "alice")
    events = len(store._disk.kept["alice"].events)
    async with a_world([[Say("never")], [Say("Hello")]], store=store) as world:
        session = await world.session()
        with anyio.fail_after(WITHIN_S):
            for mode in ("steer", "queue", "interrupt", "rollback", "reject"):
                with pytest.raises(SessionUnreadable, match="event 2 of session 'alice'"):
                    await session.send("are you there?", mode=mode)
            with pytest.raises(SessionUnreadable):
                await session.compact()
            with pytest.raises(SessionUnreadable):
                await session.undo()
        assert len(store._disk.kept["alice"].events) == events, "nothing was accepted"
        assert world.engine.core.unreadable.keys() == {"alice"}
        assert world.model.requests == []


async def test_messages_that_come_while_the_log_is_read_keep_their_order() -> None:
    store = HeldStore()
    async with a_world([[Say("Hello")]], store=store) as world:
        await completes(await world.session(), "Hi")
    gate = Gate()

    async def hold_the_log(operation: str, session: str) -> None:
        if operation == "events":
            await gate()

    async with a_world([[Say("x")] for _ in range(9)], store=store) as world:
        session = await world.session()
        store.before_read = hold_the_log
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(partial(session.send, str(number), mode="queue"))
                await gate.reached.wait()
                await a_while()
            gate.opened.set()
        store.before_read = None
        await session.settled()
        events = events_of(await session.events())
        accepted = [each for each in events if isinstance(each, MessageAccepted)]
        assert [each.message.text for each in accepted] == ["Hi", *map(str, range(5))]
        await world.check()
