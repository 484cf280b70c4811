"""Effects that other calls undo: offered, approved, run, stopped and told of like calls."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from bargein import tool
from bargein.contracts.event import (
    CallEnded,
    CallStarted,
    CallsUndoing,
    QuestionAsked,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.message import HeardSoFar
from bargein.contracts.model import Text
from bargein.contracts.tool import Approval, CallStatus, Effect
from bargein.models.script import Call, Expect, Say
from bargein.session.session import Busy, Session, TooLate
from bargein.session.undoing_calls import CallsBeingUndone
from bargein.tools.approval import Decision, Policy, Rule
from bargein.tools.declaration import Tool
from tests.session.laws import events_of
from tests.session.test_crash_points import Filmed, has_messages
from tests.session.test_undo import LateReads
from tests.session.world import (
    WITHIN_S,
    Gate,
    Script,
    a_world,
    completes,
    until_idle,
    wait_for,
)

pytestmark = pytest.mark.anyio


class Shop:
    """Takes orders, and takes them back."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.gate: Gate | None = None

    def tools(self) -> list[Tool[..., Any]]:
        async def cancel(item: str, result: str) -> str:
            """Cancel an order."""
            if self.gate is not None:
                await self.gate()
            self.did.append(f"cancel {item}, {result}")
            return "cancelled"

        @tool(undo=cancel)
        async def order(item: str, count: int = 1) -> str:
            """Order."""
            self.did.append(f"order {count} {item}")
            if item == "stone":
                raise ValueError("not sold here")
            return f"number {len(self.did)}"

        async def pay() -> str:
            """Pay."""
            return "paid"

        return [order, tool(pay)]


def ordering(*items: str) -> list[Any]:
    """One after the other."""
    return [*([Call("order", {"item": item})] for item in items), [Say("Ordered.")]]


def statuses_of(session_log: Any, turn: str) -> dict[str, CallStatus]:
    return {
        each.call_id: each.result.status
        for each in events_of(session_log)
        if isinstance(each, CallEnded) and each.turn == turn
    }


async def undone(session: Session[str], begun: CallsBeingUndone) -> TurnSettled:
    with anyio.fail_after(WITHIN_S):
        await session.settled()
    (end,) = [
        each
        for each in events_of(await session.events())
        if isinstance(each, TurnSettled) and each.turn == begun.turn
    ]
    return end


async def test_calls_are_offered_and_undone_the_last_first() -> None:
    shop = Shop()
    script: Script = [*ordering("tea", "milk"), [Say("Next.")]]
    async with a_world(script, tools=shop.tools()) as world:
        session = await world.session()
        await completes(session, "go")
        preview = await session.preview_undo()
        assert [(each.call, each.undo) for each in preview.offers] == [
            ("t1_2_1", "cancel: milk"),
            ("t1_1_1", "cancel: tea"),
        ]
        assert preview.offers[0].effect == "order: milk: finished"
        told = await session.undo()
        assert told.offers == preview.offers
        begun = await session.undo_calls()
        assert begun == CallsBeingUndone("t2", preview.offers)
        assert (await undone(session, begun)).outcome is TurnOutcome.COMPLETED
        assert shop.did[2:] == ["cancel milk, number 2", "cancel tea, number 1"]
        log = await session.events()
        assert set(statuses_of(log, "t2").values()) == {CallStatus.FINISHED}
        started = [e.call.name for e in events_of(log) if isinstance(e, CallStarted)]
        assert started == ["order", "order", "cancel", "cancel"]
        with pytest.raises(TooLate, match="no call"):
            await session.undo_calls()
        await completes(session, "What now?")
        said = str(world.model.requests[-1].messages)
        assert "[order (t1_1_1), by cancel: finished]" in said
        await world.check()


async def test_one_of_them_and_a_turn_that_undid_calls_is_not_the_last_turn() -> None:
    shop = Shop()
    script: Script = [[Say("One.")], *ordering("tea", "milk"), [Say("Next.")]]
    async with a_world(script, tools=shop.tools()) as world:
        session = await world.session()
        await completes(session, "first")
        await completes(session, "go")
        await undone(session, await session.undo_calls(["t2_1_1"]))
        assert shop.did[2:] == ["cancel tea, number 1"]
        preview = await session.preview_undo()
        assert preview.turn == "t2"
        assert [each.call for each in preview.offers] == ["t2_2_1"]
        assert (await session.undo()).turn == "t2"
        assert (await session.undo()).turn == "t1"
        await completes(session, "What now?")
        said = str(world.model.requests[-1].messages)
        assert "[order (t2_1_1), by cancel: finished]" in said
        assert "[order: milk: finished]" in said
        await world.check()


@pytest.mark.parametrize(("answer", "did"), [(Approval.ALLOW, 1), (Approval.DENY, 0)])
async def test_it_is_approved_like_a_call_and_offered_again_if_not(
    answer: Approval, did: int
) -> None:
    shop = Shop()
    policy = Policy((Rule(Decision.ASK, "cancel"),))
    async with a_world(ordering("tea"), tools=shop.tools(), policy=policy) as world:
        session = await world.session()
        await completes(session, "go")
        begun = await session.undo_calls()
        (asked,) = await wait_for(session, QuestionAsked)
        assert asked.event.question.text == "Allow this call? cancel: tea"  # type: ignore[union-attr]
        assert shop.did[1:] == []
        await session.answer(asked.event.id, answer)  # type: ignore[union-attr]
        await undone(session, begun)
        assert len(shop.did[1:]) == did
        offered = (await session.preview_undo()).offers
        assert [each.call for each in offered] == ([] if did else ["t1_1_1"])
        await world.check()


async def test_a_stop_ends_it_and_its_receipt_names_the_calls() -> None:
    shop = Shop()
    script: Script = [*ordering("tea", "milk"), [Expect(user="Next"), Say("Next.")]]
    async with a_world(script, tools=shop.tools()) as world:
        session = await world.session()
        await completes(session, "go")
        shop.gate = Gate()
        begun = await session.undo_calls()
        with anyio.fail_after(WITHIN_S):
            await shop.gate.reached.wait()
        with pytest.raises(Busy):
            await session.undo_calls()
        receipt = await session.interrupt()
        assert [(step.name, step.status) for step in receipt.steps] == [
            ("cancel", CallStatus.STOPPED)
        ]
        log = await session.events()
        assert list(statuses_of(log, begun.turn).values()) == [
            CallStatus.STOPPED,
            CallStatus.NOT_STARTED,
        ]
        assert len(shop.did) == 2
        await completes(session, "Next")
        said = str(world.model.requests[-1].messages)
        assert "[order (t1_2_1), by cancel: stopped; it may have happened half]" in said
        assert "[order (t1_1_1), by cancel: not_started]" in said
        await world.check()


async def test_what_was_heard_of_a_turn_before_one_that_was_taken_back_with_its_calls() -> None:
    shop = Shop()
    script: Script = [[Say("Welcome.")], *ordering("tea"), [Say("Next.")]]
    async with a_world(script, tools=shop.tools()) as world:
        session = await world.session()
        await completes(session, "hello")
        await completes(session, "tea")
        await undone(session, await session.undo_calls())
        assert (await session.undo()).turn == "t2"
        receipt = await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", 4))
        assert receipt.stored
        await completes(session, "go on")
        shown = str(world.model.requests[-1].messages)
        assert "Welc" in shown
        assert "Welcome" not in shown
        await world.check()


async def test_two_at_once_undo_a_call_once() -> None:
    """The log that the second reads is older than the turn of the first."""
    shop, store = Shop(), LateReads()
    async with a_world(ordering("tea"), tools=shop.tools(), store=store) as world:
        session = await world.session()
        await completes(session, "go")
        store.reads = gate = Gate()

        told: list[str] = []

        async def late() -> None:
            try:
                told.append((await session.undo_calls()).turn)
            except TooLate as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            await gate.reached.wait()
            await undone(session, await session.undo_calls())
            gate.opened.set()
        assert told == ["t2 has begun meanwhile; nothing was taken back"]
        assert shop.did[1:] == ["cancel tea, number 1"]
        await world.check()


async def test_what_may_have_happened_half_is_offered_only_if_no_result_is_needed() -> None:
    shop = Shop()
    did: list[str] = []

    def clear(where: str = "") -> None:
        did.append(f"clear {where}")

    @tool(undo=clear)
    async def fill(where: str) -> str:
        """Fill."""
        raise ValueError("half full")

    script: Script = [
        [Call("order", {"item": "stone"}), Call("fill", {"where": "cup"}), Call("pay")],
        [Say("Hm.")],
        *ordering("tea"),
    ]
    async with a_world(script, tools=[*shop.tools(), fill]) as world:
        session = await world.session()
        await completes(session, "go")
        preview = await session.preview_undo()
        assert [each.undo for each in preview.offers] == ["clear: cup"]
        assert len(preview.effects) == 3
        await undone(session, await session.undo_calls())
        assert did == ["clear cup"]
        with pytest.raises(TooLate, match="no call"):
            await session.undo_calls()
        await completes(session, "and tea")
        with pytest.raises(TooLate, match="t1_1_1"):
            await session.undo_calls(["t1_1_1"])


async def test_after_every_crash_the_log_is_whole_and_nothing_is_undone_twice() -> None:
    shop, store = Shop(), Filmed()
    async with a_world(ordering("tea", "milk"), tools=shop.tools(), store=store) as world:
        session = await world.session()
        await completes(session, "go")
        await undone(session, await session.undo_calls())
    seen = set()
    for snapshot in store.snapshots:
        if not has_messages(snapshot):
            continue
        log = await Filmed.of(snapshot).events("alice")
        if not any(isinstance(each, CallsUndoing) for each in events_of(log)):
            continue
        again = Shop()
        script: Script = [[Say("Next.")]]
        async with a_world(script, tools=again.tools(), store=Filmed.of(snapshot)) as world:
            session = await world.session()
            await until_idle(session)
            assert again.did == []
            now = statuses_of(await session.events(), "t2")
            assert len(now) == 2
            seen |= set(now.values())
            await completes(session, "What now?")
            said = str(world.model.requests[-1].messages)
            assert ("calls were being undone" in said) != ("asked to undo" in said)
            await world.check()
    assert seen == {CallStatus.FINISHED, CallStatus.UNKNOWN, CallStatus.NOT_STARTED}


def test_what_undoes_must_fit_the_tool() -> None:
    def reverse(command: str) -> None:
        """Never called."""

    with pytest.raises(TypeError, match="whose parameter command it does not have"):
        tool(undo=reverse)(pay_nothing)
    with pytest.raises(TypeError, match="must be a function"):
        tool(undo="reverse")(pay_nothing)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="nothing to undo"):
        tool(undo=pay_nothing, effect=Effect.NONE)(pay_nothing)


async def pay_nothing(amount: int) -> Text:
    """Pay."""
    return Text("paid")
