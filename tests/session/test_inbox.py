"""What waits can be seen, changed, moved and taken back; an album is one message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from bargein.contracts.event import MessageAccepted, MessageMoved, QueueHeld, TurnStarted
from bargein.contracts.message import Disposition
from bargein.contracts.model import Text
from bargein.contracts.receipt import ReceiptStatus
from bargein.errors import UserError
from bargein.models.script import Expect, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.results import MessageGone
from bargein.session.session import InboxFull, Session, TooLate
from bargein.session.state import Lane
from bargein.testing.seeded import Backend
from tests.session.laws import check_log, events_of
from tests.session.world import (
    Script,
    a_world,
    answered,
    completes,
    on_virtual_time,
    wait_for,
)

pytestmark = pytest.mark.anyio

SCRIPT: Script = [[Say("One "), Wait("hold")], [Say("A")], [Say("B")], [Say("C")], [Say("D")]]


Change = Callable[[Session, str], Awaitable[None]]


async def texts(session: Session) -> list[str]:
    return [item.message.text for item in await session.inbox()]


async def test_what_waits_can_be_listed_edited_moved_and_withdrawn() -> None:
    async with a_world(SCRIPT) as world:
        session = await world.session()
        await session.send("0")
        await world.model.gate("hold").reached()
        sent = [await session.send(str(n), mode="queue", sender=f"s{n}") for n in range(1, 5)]
        one, two, three, four = (each.message for each in sent)
        items = await session.inbox()
        assert (items[0].message.sender, items[0].lane, items[0].held) == ("s1", Lane.QUEUE, False)
        await session.edit(two, "2, changed")
        await session.move(four, before=one)
        await session.move(one)
        await session.withdraw(three)
        assert await texts(session) == ["4", "2, changed", "1"]
        with pytest.raises(MessageGone, match=f"{three} was withdrawn"):
            await answered(sent[2])
        world.model.gate("hold").open()
        turns = [(await answered(sent[n])).turn for n in (3, 1, 0)]
        assert turns == ["t2", "t3", "t4"]
        asked = [str(request.messages[-1]) for request in world.model.requests[1:]]
        assert ["4" in asked[0], "2, changed" in asked[1], "1" in asked[2]] == [True] * 3
        log = events_of(await session.events())
        moves = [e.order for e in log if isinstance(e, MessageMoved)]
        assert moves == [(four, one, two, three), (four, two, three, one)]
        await world.check()


async def test_what_was_changed_is_so_after_a_restart() -> None:
    async with a_world(SCRIPT) as world:
        session = await world.session()
        await session.send("0")
        await world.model.gate("hold").reached()
        sent = [await session.send(str(n), mode="queue") for n in range(1, 4)]
        one, two, three = (each.message for each in sent)
        await session.edit(two, "2, changed")
        await session.move(three, before=one)
        await session.withdraw(one)
        await session.interrupt()
    async with a_world([[Say("A")], [Say("B")]], store=world.store) as world:
        session = await world.session()
        assert await texts(session) == ["3", "2, changed"]
        assert all(item.held for item in await session.inbox())
        assert (await session.state()).turn is None
        await session.continue_()
        await wait_for(session, TurnStarted, 3)
        await world.check(busy=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda session, message: session.edit(message, "other words"),
        lambda session, message: session.move(message),
        lambda session, message: session.withdraw(message),
    ],
    ids=["edit", "move", "withdraw"],
)
async def test_what_was_taken_can_not_be_changed_any_more(change: Change) -> None:
    async with a_world(SCRIPT) as world:
        session = await world.session()
        sent = await session.send("0")
        await world.model.gate("hold").reached()
        with pytest.raises(TooLate, match="it was taken, withdrawn"):
            await change(session, sent.message)


async def test_the_last_one_withdrawn_from_a_held_queue_leaves_nothing_held() -> None:
    async with a_world(SCRIPT) as world:
        session = await world.session()
        await session.send("0")
        await world.model.gate("hold").reached()
        queued = await session.send("1", mode="queue")
        await session.interrupt()
        await session.withdraw(queued.message)
        assert not (await session.state()).held
        assert (await completes(session, "2")).text == "A"
        await world.check()


async def test_an_empty_message_is_refused_with_a_sentence() -> None:
    async with a_world() as world:
        session = await world.session()
        for content in ("", " \n", [], [Text("")]):
            with pytest.raises(UserError, match="the message is empty"):
                await session.send(content)


async def test_a_message_that_is_too_large_is_refused() -> None:
    async with a_world(message_bytes_max=1000) as world:
        session = await world.session()
        with pytest.raises(UserError, match="send at most 1000"):
            await session.send("x" * 1000)


async def test_an_inbox_has_a_bound() -> None:
    async with a_world(SCRIPT, waiting_max=2) as world:
        session = await world.session()
        await session.send("0")
        await world.model.gate("hold").reached()
        await session.send("1", mode="queue")
        await session.send("2", mode="queue")
        with pytest.raises(InboxFull) as full:
            await session.send("3", mode="queue")
        assert full.value.retryable
        # A stop is always heard.
        assert (await session.interrupt()).status is ReceiptStatus.STOPPED
        await world.check()


# Albums


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_album_is_one_message(backend: Backend) -> None:
    async def play(session: Session, model: ScriptedModel) -> None:
        sent = [await session.send(str(n), group="album") for n in range(1, 6)]
        assert {each.disposition for each in sent} == {Disposition.STARTED}
        assert {(await answered(each)).turn for each in sent} == {"t1"}
        check_log(await session.events())

    on_virtual_time(play, [[Expect(user="1\n2\n3\n4\n5"), Say("Nice")]], backend=backend)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_album_that_interrupts_stops_one_turn_and_not_itself(backend: Backend) -> None:
    async def play(session: Session, model: ScriptedModel) -> None:
        first = await session.send("Count")
        await model.gate("hold").reached()
        sent = [await session.send(str(n), mode="interrupt", group="album") for n in range(1, 4)]
        assert (await answered(first)).outcome == "stopped"
        results = [await answered(each) for each in sent]
        assert {(each.turn, each.outcome) for each in results} == {("t2", "completed")}
        check_log(await session.events())

    on_virtual_time(play, [SCRIPT[0], *([Say("Nice")] for _ in range(3))], backend=backend)


async def test_the_rest_of_an_album_joins_the_turn_that_took_its_beginning() -> None:
    script: Script = [[Wait("hold"), Say("?")], [Expect(user="2"), Say("Nice")]]
    async with a_world(script, gather_s=0.0) as world:
        session = await world.session()
        first = await session.send("1", group="album")
        await world.model.gate("hold").reached()
        second = await session.send("2", group="album", mode="interrupt")
        assert second.disposition is Disposition.STEERING
        assert (await answered(second)).turn == (await answered(first)).turn == "t1"
        await world.check()


async def test_a_stop_while_an_album_gathers_holds_it_and_says_so() -> None:
    async with a_world([[Say("Nice")]], gather_s=30.0) as world:
        session = await world.session()
        sent = await session.send("1", group="album")
        # Aimed at something else, it touches nothing.
        assert (await session.interrupt(expected_turn="t0")).status is ReceiptStatus.TOO_LATE
        assert not (await session.state()).held
        receipt = await session.interrupt()
        assert (receipt.status, receipt.held) == (ReceiptStatus.STOPPED, (sent.message,))
        assert [e for e in events_of(await session.events()) if isinstance(e, QueueHeld)]
        await session.continue_()
        assert (await answered(sent)).text == "Nice"
        await world.check()


async def test_an_album_that_was_gathering_at_a_restart_is_answered() -> None:
    async with a_world([[Say("Nice")]], gather_s=30.0) as world:
        session = await world.session()
        await session.send("1", group="album")
        await session.send("2", group="album")
    script: Script = [[Expect(user="1\n2"), Say("Nice")], [Say("And?")]]
    async with a_world(script, store=world.store) as world:
        session = await world.session()
        await wait_for(session, TurnStarted)
        assert (await completes(session, "And?", mode="queue")).turn == "t2"
        await world.check()


async def test_a_message_beside_an_album_goes_with_it() -> None:
    async with a_world([[Expect(user="1\nhurry"), Say("Nice")]], gather_s=30.0) as world:
        session = await world.session()
        album = await session.send("1", group="album")
        plain = await session.send("hurry")
        with anyio.fail_after(20):
            assert (await answered(plain)).turn == (await answered(album)).turn == "t1"
        accepted = [e for e in events_of(await session.events()) if isinstance(e, MessageAccepted)]
        assert len(accepted) == 2
        await world.check()
