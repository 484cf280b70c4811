"""A message that is delivered again is recognised, whatever lies between (law 3)."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from bargein.contracts.event import MessageAccepted, MessageWithdrawn, TurnOutcome
from bargein.contracts.message import Disposition
from bargein.contracts.store import AcceptKey
from bargein.models.script import Say, Step, Wait
from bargein.session.engine import EngineClosed
from bargein.session.journal import JournalBroken
from bargein.session.results import MessageGone
from bargein.session.session import IdReused, Sent
from tests.session.laws import events_of
from tests.session.world import Gate, HeldStore, World, a_world, answered, completes, until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


async def accepted(world: World) -> int:
    return len([e for e in events_of(await world.log()) if isinstance(e, MessageAccepted)])


async def test_the_same_id_and_body_is_a_duplicate_with_the_same_result() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        first = await session.send("Hi", client_id="c1")
        await world.model.gate("hold").reached()
        while_running = await session.send("Hi", client_id="c1")
        world.model.gate("hold").open()
        result = await answered(first)
        afterwards = await session.send("Hi", client_id="c1")
        for duplicate in (while_running, afterwards):
            assert duplicate.disposition is Disposition.DUPLICATE
            assert duplicate.message == first.message
            assert await answered(duplicate) == result
        assert await accepted(world) == 1
        await world.check()


async def test_the_same_id_with_another_body_is_refused() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        await session.send("Hi", client_id="c1")
        with pytest.raises(IdReused, match="'c1' was used for another message \\(m1\\)"):
            await session.send("Ho", client_id="c1")
        with pytest.raises(IdReused):
            await session.send("Hi", client_id="c1", mode="interrupt")
        await world.model.gate("hold").reached()
        assert (await session.state()).phase == "running"
        assert await accepted(world) == 1


async def test_an_id_is_of_its_sender_and_its_session() -> None:
    async with a_world([[Say("a")], [Say("b")], [Say("c")]]) as world:
        alice, bob = await world.session("alice"), await world.session("bob")
        assert (await completes(alice, "Hi", client_id="c1")).turn == "t1"
        assert (await completes(alice, "Ho", client_id="c1", sender="other")).turn == "t2"
        assert (await completes(bob, "Hm", client_id="c1")).turn == "t1"


async def test_of_many_deliveries_at_once_one_is_taken() -> None:
    async with a_world([[Say("Hello")]]) as world:
        session = await world.session()
        sent: list[Sent] = []

        async def deliver() -> None:
            sent.append(await session.send("Hi", client_id="c1"))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(deliver)
        kinds = sorted(each.disposition for each in sent)
        assert kinds == [Disposition.DUPLICATE] * 19 + [Disposition.STARTED]
        assert {(await answered(each)).text for each in sent} == {"Hello"}
        assert await accepted(world) == 1


async def test_of_a_message_that_is_kept_only_the_id_is_remembered() -> None:
    words = "x" * 1000
    async with a_world([HOLD]) as world:
        session = await world.session()
        await session.send(words, client_id="c1")
        await session.send(words, client_id="c2", mode="queue")
        inner = world.engine._engine
        assert inner is not None
        actor = await inner.actor(session.id)
        assert len(actor.recent) == 2
        for _, reply in actor.recent.values():
            assert words not in repr((reply.events, reply.keys, reply.follow))


async def check_known(world: World) -> None:
    session = await world.session()
    duplicate = await session.send("Hi", client_id="c1")
    assert duplicate.disposition is Disposition.DUPLICATE
    result = await answered(duplicate)
    assert (result.turn, result.outcome, result.text) == ("t1", TurnOutcome.COMPLETED, "Hello")
    with pytest.raises(IdReused):
        await session.send("Ho", client_id="c1")
    assert await accepted(world) == 1


async def test_an_id_is_known_after_the_session_left_memory() -> None:
    async with a_world([[Say("Hello")]], idle_s=0.01) as world:
        await completes(await world.session(), "Hi", client_id="c1")
        await until(lambda: not world.in_memory)
        await check_known(world)


async def test_an_id_is_known_after_a_restart() -> None:
    async with a_world([[Say("Hello")]]) as world:
        await completes(await world.session(), "Hi", client_id="c1")
    async with a_world(store=world.store) as world:
        await check_known(world)


async def test_a_duplicate_of_what_was_withdrawn_says_so() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        queued = await session.send("2", mode="queue", client_id="c2")
        waiting = await session.send("2", mode="queue", client_id="c2")
        await session.withdraw(queued.message)
        late = await session.send("2", mode="queue", client_id="c2")
        for duplicate in (queued, waiting, late):
            with pytest.raises(MessageGone, match="was withdrawn"):
                await answered(duplicate)


async def test_a_duplicate_that_interrupts_stops_nothing() -> None:
    async with a_world([[Say("first")], HOLD]) as world:
        session = await world.session()
        await completes(session, "1", mode="interrupt", client_id="c1")
        second = await session.send("2")
        await world.model.gate("hold").reached()
        again = await session.send("1", mode="interrupt", client_id="c1")
        assert again.disposition is Disposition.DUPLICATE
        world.model.gate("hold").open()
        assert (await answered(second)).outcome is TurnOutcome.COMPLETED


class HeldLookup(HeldStore):
    """It can be made to wait before it tells what it has found of an id."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        found = await super().find_key(session, sender, client_id)
        if self.gate is not None:
            await self.gate()
        return found


async def test_a_session_may_come_back_and_answer_while_an_id_is_looked_up() -> None:
    store = HeldLookup()
    async with a_world([HOLD, [Say("next")]], store=store) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue", client_id="c2")
        again: list[Sent] = []

        async def send_again() -> None:
            again.append(await session.send("2", mode="queue", client_id="c2"))

        gate = store.gate = Gate()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_again)
            await gate.reached.wait()
            store.fail_next(MessageAccepted)
            with pytest.raises(JournalBroken):
                await session.send("3", mode="queue")
            assert (await answered(first)).outcome is TurnOutcome.CRASHED
            assert (await answered(second)).text == "next"
            gate.opened.set()
        assert again[0].disposition is Disposition.DUPLICATE
        assert (await answered(again[0])).text == "next"
        await world.check()


async def test_an_id_that_is_looked_up_while_the_engine_closes_keeps_nobody_waiting() -> None:
    store = HeldLookup()
    gate = Gate()
    async with anyio.create_task_group() as tasks:
        async with a_world([HOLD], store=store) as world:
            session = await world.session()
            await session.send("1")
            await world.model.gate("hold").reached()
            await session.send("2", mode="queue", client_id="c2")
            store.gate = gate

            async def send_again() -> None:
                with pytest.raises(EngineClosed):
                    await answered(await session.send("2", mode="queue", client_id="c2"))

            tasks.start_soon(send_again)
            await gate.reached.wait()
        gate.opened.set()


@pytest.mark.parametrize("stored", [True, False])
async def test_a_duplicate_of_what_is_being_withdrawn_is_told_when_that_is_durable(
    stored: bool,
) -> None:
    async with a_world([HOLD, [Say("next")]]) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        queued = await session.send("2", mode="queue", client_id="c2")
        world.held_store.hold(MessageWithdrawn)

        async def withdraw() -> None:
            with suppress(JournalBroken):
                await session.withdraw(queued.message)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(withdraw)
            await world.held_store.reached.wait()
            again = await session.send("2", mode="queue", client_id="c2")
            if not stored:
                world.held_store.fail_next(MessageWithdrawn)
            world.held_store.release()
        for each in (queued, again):
            if stored:
                with pytest.raises(MessageGone, match="was withdrawn"):
                    await answered(each)
            else:
                assert (await answered(each)).text == "next"
