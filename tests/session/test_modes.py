"""The five modes of a message, and what a stop does to those that wait."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from bargein.contracts.event import (
    InterruptLanded,
    MessageAccepted,
    MessagesTaken,
    QueueHeld,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.message import Disposition, Mode
from bargein.contracts.receipt import ReceiptStatus
from bargein.errors import UserError
from bargein.models.script import Answer, Call, Expect, Say, Step, Wait
from bargein.session.session import Busy, InboxItem, Session, TooLate
from tests.session.laws import events_of, outcomes, said
from tests.session.world import Gate, Script, a_world, answered, completes, wait_for

pytestmark = pytest.mark.anyio

HOLD: Sequence[Step] = [Say("One "), Wait("hold"), Say("two")]


async def ids(session: Session) -> list[str]:
    return [item.message.id for item in await session.inbox()]


@pytest.mark.parametrize("mode", list(Mode))
async def test_when_idle_every_mode_starts_a_turn(mode: Mode) -> None:
    async with a_world([[Say("Hello")]]) as world:
        session = await world.session()
        sent = await session.send("Hi", mode=mode)
        assert (sent.disposition, sent.turn) == (Disposition.STARTED, "t1")
        result = await answered(sent)
        assert (result.outcome, result.text) == (TurnOutcome.COMPLETED, "Hello")
        await world.check()


async def test_a_word_that_we_do_not_know_is_told_with_those_that_we_do() -> None:
    async with a_world([]) as world:
        session = await world.session()
        with pytest.raises(UserError, match="no mode 'now'; it is one of steer, interrupt, queue"):
            await session.send("Hi", mode="now")
        with pytest.raises(UserError, match=r"no scope 'all'; it is one of .*turn"):
            await session.interrupt(scope="all")
        for scope in ("call", "child"):
            with pytest.raises(UserError, match=f"name the {scope} to stop"):
                await session.interrupt(scope=scope)
        await world.check()


async def test_steer_ends_the_request_in_flight_and_keeps_its_text() -> None:
    script: Script = [HOLD, [Expect(user="in French"), Say("Un, deux")]]
    async with a_world(script) as world:
        session = await world.session()
        first = await session.send("Count")
        await world.model.gate("hold").reached()
        steer = await session.send("in French")
        assert (steer.disposition, steer.turn) == (Disposition.STEERING, "t1")
        result = await answered(steer)
        assert result == await answered(first)
        assert (result.turn, result.text) == ("t1", "Un, deux")
        assert [play.outcome for play in world.model.plays] == ["cancelled", "ended"]
        log = await session.events()
        assert said(log) == ["One ", "Un, deux"]
        assert [e for e in events_of(log) if isinstance(e, MessagesTaken)] == [
            MessagesTaken("t1", ("m2",))
        ]
        await world.check()


async def test_steer_lets_running_tools_finish() -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate()
        return "worked"

    script: Script = [[Call("work")], [Expect(result="worked", user="hurry"), Say("Done")]]
    async with a_world(script, tools=[work]) as world:
        session = await world.session()
        sent = await session.send("Work")
        await gate.reached.wait()
        await session.send("hurry")
        gate.opened.set()
        assert (await answered(sent)).text == "Done"
        await world.check()


async def test_interrupt_stops_the_turn_and_is_answered_next() -> None:
    async with a_world([HOLD, [Expect(user="Only to ten"), Say("Ten")]]) as world:
        session = await world.session()
        first = await session.send("Count")
        await world.model.gate("hold").reached()
        second = await session.send("Only to ten", mode="interrupt")
        assert (second.disposition, second.turn) == (Disposition.INTERRUPTING, "t1")
        stopped = await answered(first)
        assert (stopped.outcome, stopped.text) == (TurnOutcome.STOPPED, "One ")
        assert stopped.receipt is not None
        result = await answered(second)
        assert (result.turn, result.text) == ("t2", "Ten")
        assert said(await session.events()) == ["One ", "Ten"]
        await world.check()


async def test_queued_messages_each_have_a_turn_of_their_own_in_order() -> None:
    async with a_world([HOLD, [Say("second")], [Say("third")]]) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        third = await session.send("3", mode="queue")
        assert second.disposition is third.disposition is Disposition.QUEUED
        assert await ids(session) == ["m2", "m3"]
        world.model.gate("hold").open()
        turns = [(await answered(each)).turn for each in (first, second, third)]
        assert turns == ["t1", "t2", "t3"]
        assert [(await answered(each)).text for each in (second, third)] == ["second", "third"]
        await world.check()


async def test_rollback_stops_the_turn_and_hides_it_from_the_model() -> None:
    script: Script = [
        [Say("Fine")],
        HOLD,
        [Expect(user="Something else", messages=3), Say("Right")],
    ]
    async with a_world(script) as world:
        session = await world.session()
        await completes(session, "Hi")
        first = await session.send("Count")
        await world.model.gate("hold").reached()
        second = await session.send("Something else", mode="rollback")
        assert (await answered(first)).outcome is TurnOutcome.STOPPED
        assert (await answered(second)).text == "Right"
        asked = str(world.model.requests[-1].messages)
        assert "Count" not in asked
        assert "One" not in asked
        settled = [e for e in events_of(await session.events()) if isinstance(e, TurnSettled)]
        assert [each.hidden for each in settled] == [False, True, False]
        await world.check()


async def test_reject_is_refused_while_busy_and_leaves_no_trace() -> None:
    async with a_world([HOLD, [Say("Later")]]) as world:
        session = await world.session()
        first = await session.send("Count")
        await world.model.gate("hold").reached()
        with pytest.raises(Busy, match="busy with t1"):
            await session.send("Now", mode="reject", client_id="c1")
        world.model.gate("hold").open()
        await answered(first)
        accepted = [e for e in events_of(await session.events()) if isinstance(e, MessageAccepted)]
        assert len(accepted) == 1
        # It was not accepted, so the same id is no repetition.
        again = await session.send("Now", mode="reject", client_id="c1")
        assert again.disposition is Disposition.STARTED
        assert (await answered(again)).text == "Later"
        await world.check()


async def test_a_stop_holds_what_waits_until_the_user_continues() -> None:
    async with a_world([HOLD, [Say("second")], [Say("third")]]) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        third = await session.send("3", mode="queue")
        receipt = await session.interrupt()
        assert (receipt.status, receipt.held) == (ReceiptStatus.STOPPED, ("m2", "m3"))
        assert receipt.queued == ()
        items = await session.inbox()
        assert [(item.message.id, item.held) for item in items] == [("m2", True), ("m3", True)]
        assert (await session.state()).turn is None
        await session.continue_()
        assert [(await answered(each)).text for each in (second, third)] == ["second", "third"]
        with pytest.raises(TooLate, match="nothing is held"):
            await session.continue_()
        await world.check()


async def test_a_stop_holds_a_steer_that_was_not_taken() -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate()
        return "done"

    script: Script = [[Call("work")], [Expect(user="another way"), Say("that way")]]
    async with a_world(script, tools=[work]) as world:
        session = await world.session()
        await session.send("1")
        await gate.reached.wait()
        steer = await session.send("another way")
        assert steer.disposition is Disposition.STEERING
        receipt = await session.interrupt()
        assert (receipt.status, receipt.held) == (ReceiptStatus.STOPPED, (steer.message,))
        assert (await session.state()).turn is None
        kinds = [type(event) for event in events_of(await world.log())]
        assert (kinds.count(InterruptLanded), kinds.count(QueueHeld)) == (1, 1)
        await session.continue_()
        assert (await answered(steer)).text == "that way"
        await world.check()


async def test_a_message_after_a_stop_is_answered_before_what_was_held() -> None:
    script: Script = [HOLD, [Expect(user="4"), Say("fourth")], [Expect(user="2"), Say("second")]]
    async with a_world(script) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        await session.interrupt()
        fourth = await session.send("4", mode="queue")
        assert (await answered(fourth)).turn == "t2"
        assert (await answered(second)).turn == "t3"
        await world.check()


async def test_a_stop_with_a_message_does_not_hold_the_queue() -> None:
    async with a_world([HOLD, [Say("third")], [Say("second")]]) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        third = await session.send("3", mode="interrupt")
        receipt = (await answered(first)).receipt
        assert receipt is not None
        assert receipt.held == ()
        assert set(receipt.queued) == {"m2", "m3"}
        assert (await answered(third)).text == "third"
        assert (await answered(second)).text == "second"
        await world.check()


async def test_interrupts_that_arrive_while_a_turn_settles_are_taken_together() -> None:
    gate = Gate()

    async def stubborn() -> str:
        """Take its time to stop."""
        try:
            await gate()
        finally:
            with anyio.CancelScope(shield=True):
                await let_go.wait()
        return ""

    let_go = anyio.Event()
    script: Script = [[Call("stubborn")], [Expect(user="2\n3\n4"), Say("all")], [Say("fifth")]]
    async with a_world(script, tools=[stubborn]) as world:
        session = await world.session()
        first = await session.send("1")
        await gate.reached.wait()
        sent = [await session.send("2", mode="interrupt")]
        fifth = await session.send("5", mode="queue")
        sent += [await session.send("3"), await session.send("4", mode="interrupt")]
        let_go.set()
        assert (await answered(first)).outcome is TurnOutcome.STOPPED
        assert {(await answered(each)).turn for each in sent} == {"t2"}
        assert (await answered(fifth)).turn == "t3"
        await world.check()


async def test_steering_that_comes_after_the_last_step_is_the_next_message() -> None:
    release = Gate()

    async def agent(turn: object) -> str:
        if not release.opened.is_set():
            await release()
        return "answer"

    async with a_world(agent=agent) as world:
        session = await world.session()
        first = await session.send("1")
        await release.reached.wait()
        late = await session.send("2")
        assert late.disposition is Disposition.STEERING
        release.opened.set()
        assert (await answered(first)).turn == "t1"
        assert (await answered(late)).turn == "t2"
        await world.check()


async def test_a_steer_that_is_withdrawn_before_it_was_taken_leaves_a_valid_request() -> None:
    async with a_world([HOLD, [Say("three")]]) as world:
        session = await world.session()
        first = await session.send("Count")
        await world.model.gate("hold").reached()
        await session.pause()
        steer = await session.send("never mind")
        await session.withdraw(steer.message)
        await session.resume()
        assert (await answered(first)).outcome is TurnOutcome.COMPLETED
        await world.check()


@pytest.mark.parametrize("mode", ["interrupt", "rollback", "steer"])
async def test_a_message_for_a_turn_that_is_over_is_accepted_and_stops_nothing(mode: str) -> None:
    script: Script = [[Say("first")], HOLD, [Say("third")]]
    async with a_world(script) as world:
        session = await world.session()
        await completes(session, "1")
        second = await session.send("2")
        await world.model.gate("hold").reached()
        late = await session.send("3", mode=mode, expected_turn="t1")
        assert late.disposition is Disposition.QUEUED
        world.model.gate("hold").open()
        assert (await answered(second)).outcome is TurnOutcome.COMPLETED
        assert (await answered(late)).turn == "t3"
        assert set(outcomes(await session.events()).values()) == {TurnOutcome.COMPLETED}
        await world.check()


async def test_the_model_is_told_of_the_stop_with_the_next_message() -> None:
    gate = Gate()

    async def write() -> str:
        """Write."""
        await gate()
        return ""

    script: Script = [[Say("I write."), Call("write")], [Say("Understood")]]
    async with a_world(script, tools=[write]) as world:
        session = await world.session()
        await session.send("Write")
        await gate.reached.wait()
        await session.interrupt()
        await completes(session, "What happened?")
        told = str(world.model.requests[-1].messages[-1])
        assert "stopped before it ended (user_stop)" in told
        assert "write (t1_1_1): stopped; it may have happened half" in told
        assert told.index("stopped before") < told.index("What happened?")
        await world.check()


async def test_answers_by_when_are_of_their_own_session() -> None:
    script: Script = [Answer([Wait("a"), Say("A")], when="for a"), Answer([Say("B")], when="for b")]
    async with a_world(script) as world:
        a, b = await world.session("a"), await world.session("b")
        sent = await a.send("for a")
        assert (await completes(b, "for b")).text == "B"
        world.model.gate("a").open()
        assert (await answered(sent)).text == "A"


def test_inbox_items_show_where_they_wait() -> None:
    assert InboxItem.__struct_fields__ == ("message", "lane", "held")


async def test_the_session_is_told_apart_from_its_name() -> None:
    async with a_world([[Say("A")]]) as world:
        session = await world.session("a")
        assert session.id == "a"
        await session.send("1")
        await wait_for(session, TurnSettled)
