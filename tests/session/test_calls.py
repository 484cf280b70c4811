"""Tool calls: side by side, stopped one by one, approved, detached, and told truthfully."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from bargein.cancel import Token
from bargein.contracts.event import (
    BackgroundEnded,
    CallEnded,
    CallStarted,
    QuestionAsked,
    QuestionClosed,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.receipt import ReceiptStatus, Scope
from bargein.contracts.tool import Approval, CallStatus, Effect
from bargein.models.script import Call, Expect, Say, Step, Wait
from bargein.session.session import Session, TooLate
from bargein.tools import Decision, Policy, Rule, ToolContext, tool
from tests.session.laws import events_of, outcomes, statuses
from tests.session.world import (
    SOON,
    WITHIN_S,
    Gate,
    Script,
    World,
    a_while,
    a_world,
    answered,
    completes,
    until,
    wait_for,
)

pytestmark = pytest.mark.anyio

ASK = Policy((Rule(Decision.ASK),))


class ToolEnvironment:
    """Tools whose every call waits at a gate of its own."""

    def __init__(self) -> None:
        self.gates: dict[str, Gate] = {}
        self.tokens: dict[str, Token] = {}

    def gate(self, name: str) -> Gate:
        return self.gates.setdefault(name, Gate())

    @property
    def tools(self) -> list[object]:
        async def work(name: str, token: Token) -> str:
            """Work until it is let on."""
            self.tokens[name] = token
            await self.gate(name)()
            return f"{name} is done"

        return [work]


def calling(*names: str) -> list[Step]:
    return [Say("I work."), *(Call("work", {"name": name}) for name in names)]


@asynccontextmanager
async def at_work(
    *names: str, then: Script = (), **options: object
) -> AsyncIterator[tuple[World, Session, ToolEnvironment]]:
    """A session whose turn t1 has these calls running."""
    shop = ToolEnvironment()
    script: Script = [calling(*names), *then]
    async with a_world(script, tools=shop.tools, **options) as world:  # type: ignore[arg-type]
        session = await world.session()
        await session.send("Work")
        for name in names:
            await shop.gate(name).reached.wait()
        yield world, session, shop


async def test_calls_run_side_by_side_and_their_results_keep_the_models_order() -> None:
    async with at_work("a", "b", "c", then=[[Say("Done")]]) as (world, session, shop):
        for name in ("c", "a", "b"):
            shop.gate(name).opened.set()
        await wait_for(session, TurnSettled)
        results = str(world.model.requests[-1].messages[-1])
        assert results.index("a is done") < results.index("b is done") < results.index("c is done")
        await world.check()


async def test_there_is_a_bound_on_calls_at_once() -> None:
    shop = ToolEnvironment()
    script: Script = [calling("a", "b", "c"), [Say("Done")]]
    async with a_world(script, tools=shop.tools, calls_at_once_max=2) as world:
        session = await world.session()
        sent = await session.send("Work")
        await until(lambda: len(shop.tokens) == 2)
        await a_while()
        assert len(shop.tokens) == 2
        first, second = shop.tokens
        shop.gate(first).opened.set()
        await until(lambda: len(shop.tokens) == 3)
        for name in ("a", "b", "c"):
            shop.gate(name).opened.set()
        assert (await answered(sent)).text == "Done"
        assert second in shop.tokens
        await world.check()


async def test_one_call_is_stopped_and_the_turn_and_the_other_call_go_on() -> None:
    then: Script = [[Expect(result="b is done"), Say("One of two")]]
    async with at_work("a", "b", then=then) as (world, session, shop):
        receipt = await session.interrupt(scope="call", target="t1_1_1", by="anna")
        assert (receipt.status, receipt.scope, receipt.target, receipt.by) == (
            ReceiptStatus.STOPPED,
            Scope.CALL,
            "t1_1_1",
            "anna",
        )
        (step,) = receipt.steps
        assert (step.name, step.status, step.effect) == (
            "work",
            CallStatus.STOPPED,
            Effect.UNKNOWN,
        )
        assert not shop.tokens["b"].cancelled
        assert (await session.state()).phase == "running"
        shop.gate("b").opened.set()
        await wait_for(session, TurnSettled)
        log = await session.events()
        assert outcomes(log) == {"t1": TurnOutcome.COMPLETED}
        assert statuses(log) == {"t1_1_1": CallStatus.STOPPED, "t1_1_2": CallStatus.FINISHED}
        again = await session.interrupt(scope="call", target="t1_1_1")
        assert again.status is ReceiptStatus.TOO_LATE
        await world.check()


@pytest.mark.parametrize("target", ["t9_9_9", ""])
async def test_a_stop_of_a_call_that_is_not_there_is_too_late(target: str) -> None:
    async with at_work("a") as (_, session, shop):
        receipt = await session.interrupt(scope="call", target=target)
        assert receipt.status is ReceiptStatus.TOO_LATE
        assert not shop.tokens["a"].cancelled


async def test_the_start_of_a_call_with_an_effect_is_durable_before_it_runs() -> None:
    seen: list[bool] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def write() -> str:
        """Write."""
        seen.append(any(isinstance(e, CallStarted) for e in events_of(await world.log())))
        return "written"

    @tool(effect=Effect.NONE)
    async def read() -> str:
        """Read."""
        return "nothing"

    async with a_world([[Call("write"), Call("read")], [Say("Done")]], tools=[write, read]) as w:
        world = w
        session = await world.session()
        await completes(session, "Write")
        assert seen == [True]
        started = [e for e in events_of(await session.events()) if isinstance(e, CallStarted)]
        assert [(e.call.name, e.effect) for e in started] == [("write", Effect.IDEMPOTENT)]
        await world.check()


async def test_a_call_that_waits_for_its_durable_start_has_not_started_when_stopped() -> None:
    ran: list[str] = []

    async def write() -> str:
        """Write."""
        ran.append("write")
        return "written"

    async with a_world([[Call("write")], [Say("Next")]], tools=[write]) as world:
        session = await world.session()
        world.held_store.hold(CallStarted)
        await session.send("Write")
        await world.held_store.reached.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(session.interrupt)
            await a_while()
            world.held_store.release()
        assert statuses(await session.events()) == {"t1_1_1": CallStatus.NOT_STARTED}
        await completes(session, "And?")
        assert ran == []
        await world.check()


# Approval


async def test_a_call_that_needs_a_yes_waits_for_it() -> None:
    async def write() -> str:
        """Write."""
        return "written"

    script: Script = [[Call("write")], [Expect(result="written"), Say("Done")]]
    async with a_world(script, tools=[write], policy=ASK) as world:
        session = await world.session()
        sent = await session.send("Write")
        (asked,) = await wait_for(session, QuestionAsked)
        assert isinstance(asked.event, QuestionAsked)
        assert asked.event.call_id == "t1_1_1"
        assert not [e for e in events_of(await session.events()) if isinstance(e, CallStarted)]
        # A plain message never answers a question.
        await session.send("allow", mode="queue")
        assert (await session.state()).phase == "running"
        await session.answer(asked.event.id, Approval.ALLOW, by="anna")
        assert (await answered(sent)).text == "Done"
        closed = [e for e in events_of(await session.events()) if isinstance(e, QuestionClosed)]
        assert closed == [QuestionClosed(asked.event.id, "allow", "anna")]
        with pytest.raises(TooLate, match="not open any more"):
            await session.answer(asked.event.id, Approval.ALLOW)


async def test_a_no_is_told_to_the_model_with_its_words() -> None:
    async def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    script: Script = [[Call("write")], [Expect(result="use the other file"), Say("Well")]]
    async with a_world(script, tools=[write], policy=ASK) as world:
        session = await world.session()
        sent = await session.send("Write")
        (asked,) = await wait_for(session, QuestionAsked)
        assert isinstance(asked.event, QuestionAsked)
        await session.answer(asked.event.id, "use the other file")
        assert (await answered(sent)).text == "Well"
        assert statuses(await session.events()) == {"t1_1_1": CallStatus.NOT_STARTED}
        await world.check()


async def test_a_stop_closes_the_question_and_a_late_answer_is_too_late() -> None:
    async def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    async with a_world([[Call("write")], [Say("Next")]], tools=[write], policy=ASK) as world:
        session = await world.session()
        await session.send("Write")
        (asked,) = await wait_for(session, QuestionAsked)
        assert isinstance(asked.event, QuestionAsked)
        receipt = await session.interrupt()
        assert [step.status for step in receipt.steps] == [CallStatus.NOT_STARTED]
        with pytest.raises(TooLate):
            await session.answer(asked.event.id, Approval.ALLOW)
        assert (await completes(session, "And?")).text == "Next"
        await world.check()


async def test_a_late_answer_does_not_answer_the_next_question_of_the_same_call() -> None:
    answers: list[str] = []

    async def survey(context: ToolContext) -> str:
        """Ask twice."""
        answers.append(await context.ask("First?"))
        answers.append(await context.ask("Second?"))
        return "asked"

    async with a_world([[Call("survey")], [Say("Done")]], tools=[survey]) as world:
        session = await world.session()
        sent = await session.send("Ask")
        (first,) = await wait_for(session, QuestionAsked)
        assert isinstance(first.event, QuestionAsked)
        await session.answer(first.event.id, "one")
        second = (await wait_for(session, QuestionAsked, 2))[1]
        with pytest.raises(TooLate):
            await session.answer(first.event.id, "one, again")
        assert isinstance(second.event, QuestionAsked)
        await session.answer(second.event.id, "two")
        assert (await answered(sent)).text == "Done"
        assert answers == ["one", "two"]
        await world.check()


# The background


async def test_a_detached_call_survives_a_stop_of_its_turn_and_its_outcome_is_a_message() -> None:
    then: Script = [[Wait("hold")], [Expect(user="a is done"), Say("Good")]]
    async with at_work("a", then=then) as (world, session, shop):
        await session.detach("t1_1_1")
        await world.model.gate("hold").reached()
        receipt = await session.interrupt()
        assert [(step.kind, step.status) for step in receipt.steps] == [
            ("model", CallStatus.STOPPED)
        ]
        assert not shop.tokens["a"].cancelled
        shop.gate("a").opened.set()
        await wait_for(session, TurnSettled, 2)
        log = await session.events()
        assert outcomes(log) == {"t1": TurnOutcome.STOPPED, "t2": TurnOutcome.COMPLETED}
        assert statuses(log) == {"t1_1_1": CallStatus.DETACHED}
        ended = [e for e in events_of(log) if isinstance(e, BackgroundEnded)]
        assert [(e.call_id, e.result.status) for e in ended] == [("t1_1_1", CallStatus.FINISHED)]
        await world.check()


async def test_the_outcome_of_a_detached_call_joins_a_running_turn_without_cutting_it() -> None:
    then: Script = [[Say("Meanwhile "), Wait("hold"), Say("more")], [Expect(user="a is done")]]
    async with at_work("a", then=then) as (world, session, shop):
        await session.detach("t1_1_1")
        await world.model.gate("hold").reached()
        shop.gate("a").opened.set()
        await wait_for(session, BackgroundEnded)
        world.model.gate("hold").open()
        await wait_for(session, TurnSettled)
        assert [play.outcome for play in world.model.plays] == ["ended"] * 3
        assert outcomes(await session.events()) == {"t1": TurnOutcome.COMPLETED}
        await world.check()


async def test_a_stop_of_the_session_stops_the_background_and_tells_of_it() -> None:
    async with at_work("a", then=[[Say("Moved")], [Say("Next")]]) as (world, session, shop):
        await session.detach("t1_1_1")
        await wait_for(session, TurnSettled)
        receipt = await session.interrupt(scope="session")
        assert receipt.status is ReceiptStatus.STOPPED
        assert [(s.call_id, s.status) for s in receipt.steps] == [("t1_1_1", CallStatus.STOPPED)]
        assert shop.tokens["a"].cancelled
        # Its outcome waits for the user's next word: a stop never starts a turn.
        assert [item.held for item in await session.inbox()] == [True]
        assert (await session.state()).turn is None
        assert (await completes(session, "And?")).text == "Next"
        assert "in the background: stopped" in str(world.model.requests[-1].messages[-1])
        await world.check()


async def test_a_stop_of_the_session_stops_turn_and_background_together() -> None:
    then: Script = [[Wait("hold")], [Say("Next")]]
    async with at_work("a", then=then) as (world, session, shop):
        await session.detach("t1_1_1")
        await world.model.gate("hold").reached()
        receipt = await session.interrupt(scope="session")
        kinds = sorted((step.kind, step.status) for step in receipt.steps)
        assert kinds == [("model", CallStatus.STOPPED), ("tool", CallStatus.STOPPED)]
        assert shop.tokens["a"].cancelled
        assert (await session.state()).turn is None
        assert (await completes(session, "And?")).text == "Next"
        await world.check()


async def test_a_stop_of_the_session_that_comes_too_late_for_its_turn_touches_nothing() -> None:
    async with at_work("a", then=[[Say("Moved")], [Wait("hold")]]) as (world, session, shop):
        await session.detach("t1_1_1")
        await wait_for(session, TurnSettled)
        idle = await session.interrupt(scope="session", expected_turn="t1")
        await session.send("And?")
        await world.model.gate("hold").reached()
        busy = await session.interrupt(scope="session", expected_turn="t1")
        for receipt in (idle, busy):
            assert (receipt.status, receipt.target) == (ReceiptStatus.TOO_LATE, "t1")
            assert receipt.steps == ()
        assert not shop.tokens["a"].cancelled
        assert (await session.state()).turn == "t2"
        receipt = await session.interrupt(scope="session", expected_turn="t2")
        assert {step.kind for step in receipt.steps} == {"model", "tool"}
        assert shop.tokens["a"].cancelled
        await world.check()


async def test_one_call_in_the_background_can_be_stopped_by_its_id() -> None:
    async with at_work("a", "b", then=[[Say("Moved")], [Say("Next")]]) as (world, session, shop):
        await session.detach("t1_1_1")
        await session.detach("t1_1_2")
        await wait_for(session, TurnSettled)
        receipt = await session.interrupt(scope="call", target="t1_1_1")
        assert receipt.status is ReceiptStatus.STOPPED
        assert not shop.tokens["b"].cancelled
        assert (await completes(session, "And?")).text == "Next"
        await world.check()


async def test_a_call_that_is_over_or_stopped_can_not_be_detached() -> None:
    async with at_work("a", then=[[Say("Done")]]) as (world, session, shop):
        with pytest.raises(TooLate, match="t9 is not running"):
            await session.detach("t9")
        await session.interrupt()
        with pytest.raises(TooLate):
            await session.detach("t1_1_1")
        assert shop.tokens["a"].cancelled
        await world.check()


async def test_a_detached_call_can_not_be_detached_again() -> None:
    async with at_work("a", then=[[Say("Moved")]]) as (world, session, _):
        await session.detach("t1_1_1")
        with pytest.raises(TooLate):
            await session.detach("t1_1_1")
        await world.check(busy=True)


async def test_a_call_in_the_background_is_stopped_when_the_engine_closes_and_told_so() -> None:
    async with at_work("a", then=[[Say("Moved")]]) as (world, session, shop):
        await session.detach("t1_1_1")
        await wait_for(session, TurnSettled)
    assert shop.tokens["a"].cancelled
    ended = [e for e in events_of(await world.log()) if isinstance(e, BackgroundEnded)]
    assert [e.result.status for e in ended] == [CallStatus.STOPPED]
    async with a_world([[Say("Next")]], store=world.store) as world:
        session = await world.session()
        assert (await completes(session, "And?")).text == "Next"
        await world.check()


# What does not stop


async def test_a_thread_that_ignores_its_stop_is_abandoned_and_fenced() -> None:
    begun, let_go, late = threading.Event(), threading.Event(), threading.Event()

    def deaf(context: ToolContext) -> str:
        """Do not listen."""
        begun.set()
        let_go.wait()
        context.emit("late output")
        late.set()
        return "late"

    async with a_world([[Call("deaf")], [Say("Next")]], tools=[deaf], limits=SOON) as world:
        session = await world.session()
        await session.send("Go")
        await until(begun.is_set)
        with anyio.fail_after(WITHIN_S):
            receipt = await session.interrupt()
        assert [(s.name, s.status) for s in receipt.abandoned] == [("deaf", CallStatus.ABANDONED)]
        assert receipt.uncertain == receipt.abandoned
        assert (await completes(session, "And?")).text == "Next"
        before = len(await session.events())
        let_go.set()
        await until(late.is_set)
        await a_while()
        assert len(await session.events()) == before
        await world.check()


async def test_a_call_that_finishes_in_spite_of_the_stop_is_told_as_finished() -> None:
    gate = Gate()

    async def quick() -> str:
        """Finish whatever happens."""
        with anyio.CancelScope(shield=True):
            await gate()
        return "finished anyway"

    async with a_world([[Call("quick")], [Say("Next")]], tools=[quick]) as world:
        session = await world.session()
        await session.send("Go")
        await gate.reached.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(session.interrupt)
            await a_while()
            gate.opened.set()
        await completes(session, "And?")
        (ended,) = [e for e in events_of(await session.events()) if isinstance(e, CallEnded)]
        assert ended.result.status in (CallStatus.FINISHED, CallStatus.STOPPED)
        await world.check()


async def test_a_tool_may_send_to_its_own_session_and_steer_it() -> None:
    async def remind() -> str:
        """Send oneself a message."""
        await session.send("from the tool", mode="queue", sender="tool")
        return "reminded"

    async with a_world([[Call("remind")], [Say("Done")], [Say("Reminded")]], tools=[remind]) as w:
        session = await w.session()
        await completes(session, "Go")
        await wait_for(session, TurnStarted, 2)
        await wait_for(session, TurnSettled, 2)
        await w.check()


async def test_a_tool_may_interrupt_its_own_turn_and_nobody_is_stuck() -> None:
    async def give_up() -> str:
        """Stop the turn."""
        await session.interrupt(by="tool")
        return "never"

    async with a_world([[Call("give_up")], [Say("Next")]], tools=[give_up]) as world:
        session = await world.session()
        sent = await session.send("Go")
        result = await answered(sent)
        assert result.outcome is TurnOutcome.STOPPED
        assert result.receipt is not None
        assert (result.receipt.by, result.receipt.abandoned) == ("tool", ())
        assert (await completes(session, "And?")).text == "Next"
        await world.check()
