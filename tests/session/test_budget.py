"""Budgets: what ends a turn, when, what is told, and what is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.contracts.budget import Budget, BudgetKind, BudgetScope, Purpose, Spent
from bargein.contracts.event import (
    BudgetUsedUp,
    CallEnded,
    Compressed,
    ModelUsed,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.model import (
    ModelRequest,
    Text,
    ToolCall,
    ToolSchema,
    Usage,
    UserMessage,
)
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    CallStatus,
    ChildTask,
    Effect,
    PlannedCall,
    Refused,
)
from bargein.errors import UserError
from bargein.models.costs import Price
from bargein.models.script import Answer, Call, Count, Fail, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.budget import Accounts
from bargein.session.results import TurnResult
from bargein.session.session import Session
from bargein.session.turn import Turn
from bargein.stores.memory import MemoryStore
from bargein.testing.seeded import Backend
from tests.session.laws import check_log, events_of, statuses
from tests.session.world import (
    CONFIG,
    LIMITS,
    SOON,
    WITHIN_S,
    HeldStore,
    World,
    completes,
    on_virtual_time,
    until_idle,
)

pytestmark = pytest.mark.anyio

WORK = Answer([Say("I work."), Call("work"), Count(100, 10)])
DONE = Answer([Say("Done."), Count(100, 10)])
DOLLAR = Price(10_000.0, 0.0)
"""A cent for a token of input, so that a request of a hundred tokens costs a dollar."""


async def work() -> str:
    """Work."""
    return "worked"


@asynccontextmanager
async def a_frugal_world(
    *answers: Answer,
    budget: Budget | None = None,
    session_budget: Budget | None = None,
    tools: Sequence[Any] = (work,),
    price: Price | None = None,
    store: MemoryStore | None = None,
) -> AsyncIterator[World]:
    model = ScriptedModel(answers, price=price)
    store = store or HeldStore()
    agent = Agent(
        model=model,
        tools=tools,
        budget=budget or Budget(),
        session_budget=session_budget or Budget(),
    )
    async with Engine(agent, store=store, config=CONFIG, limits=LIMITS) as engine:
        yield World(engine, model, store)


async def ended(session: Session, words: str = "go") -> TurnResult:
    """Send a message, and see its turn ended by a budget."""
    with anyio.fail_after(WITHIN_S):
        result = await (await session.send(words)).result()
    assert result.outcome is TurnOutcome.STOPPED
    return result


async def used_up(world: World) -> list[BudgetUsedUp]:
    return [e for e in events_of(await world.log()) if isinstance(e, BudgetUsedUp)]


@pytest.mark.parametrize(
    ("budget", "requests", "kind", "told"),
    [
        # A request and a call are a step each.
        (Budget(steps=2), 1, BudgetKind.STEPS, "the turn has used its 2 steps"),
        (Budget(steps=3), 2, BudgetKind.STEPS, "the turn has used its 3 steps"),
        (Budget(tokens=200), 2, BudgetKind.TOKENS, "the turn has used its 200 tokens"),
        (Budget(cost=1.5), 2, BudgetKind.COST, "the turn has used its $1.50"),
    ],
)
async def test_the_turn_ends_between_two_steps_and_one_can_go_on(
    budget: Budget, requests: int, kind: BudgetKind, told: str
) -> None:
    script = [*[WORK] * requests, DONE]
    async with a_frugal_world(*script, budget=budget, price=DOLLAR) as world:
        session = await world.session()
        result = await ended(session)
        assert len(world.model.requests) == requests
        # Nothing in flight was cut: every call has come to its own end.
        assert set(statuses(await world.log()).values()) == {CallStatus.FINISHED}
        assert result.receipt is not None
        assert not result.receipt.steps
        assert result.receipt.reason is not None
        assert result.receipt.reason.cause is Cause.BUDGET
        assert result.receipt.reason.detail == f"{told}; send a message to go on"
        (event,) = await used_up(world)
        assert (event.scope, event.kind) == (BudgetScope.TURN, kind)
        await completes(session, "go on")
        first = world.model.requests[-1].messages
        told_to_model = [
            part.text
            for message in first
            if isinstance(message, UserMessage)
            for part in message.content
            if isinstance(part, Text) and told in part.text
        ]
        assert len(told_to_model) == 1
        await world.check()


async def test_a_turn_that_comes_to_its_end_with_its_last_step_is_complete() -> None:
    async with a_frugal_world(WORK, DONE, budget=Budget(steps=3, tokens=220)) as world:
        assert (await completes(await world.session(), "go")).text == "Done."
        assert not await used_up(world)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_time_is_a_deadline_that_ends_what_is_in_flight(backend: Backend) -> None:
    async def play(session: Session, model: ScriptedModel) -> None:
        result = await ended(session)
        assert result.text == "half"
        assert result.receipt is not None
        assert result.receipt.reason is not None
        assert result.receipt.reason.cause is Cause.DEADLINE
        assert "the turn has used its 0.05 s" in result.receipt.reason.detail
        assert [step.status for step in result.receipt.steps] == [CallStatus.STOPPED]
        assert model.plays[0].outcome == "cancelled"
        log = await session.events()
        (event,) = [e for e in events_of(log) if isinstance(e, BudgetUsedUp)]
        assert event.kind is BudgetKind.TIME
        await completes(session, "go on")
        check_log(await session.events())

    hold = Answer([Say("half"), Wait("hold")])
    settings = LoopSettings(budget=Budget(time_s=0.05))
    on_virtual_time(play, [hold, DONE], backend=backend, settings=settings)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_turn_that_ends_in_time_leaves_no_timer_that_would_end_the_next(
    backend: Backend,
) -> None:
    async def play(session: Session, model: ScriptedModel) -> None:
        await completes(session, "first")
        await anyio.sleep(0.2)
        sent = await session.send("second")
        await anyio.sleep(0.15)
        # The deadline of the first would be over by now.
        model.gate("hold").open()
        assert (await sent.result()).outcome is TurnOutcome.COMPLETED

    hold = Answer([Wait("hold"), Say("slow")])
    settings = LoopSettings(budget=Budget(time_s=0.3))
    on_virtual_time(play, [DONE, hold], backend=backend, settings=settings)


async def test_what_waits_is_held_when_a_budget_ends_a_turn() -> None:
    slow = Answer([Wait("hold"), Call("work"), Count(100, 10)])
    async with a_frugal_world(slow, DONE, DONE, budget=Budget(steps=2)) as world:
        session = await world.session()
        sent = await session.send("go")
        await world.model.gate("hold").reached()
        await session.send("then push it", mode="queue")
        world.model.gate("hold").open()
        result = await sent.result()
        assert result.outcome is TurnOutcome.STOPPED
        assert result.receipt is not None
        assert len(result.receipt.held) == 1
        assert (await session.state()).held
        await session.continue_()
        await until_idle(session)
        assert not await session.inbox()
        await world.check()


class TestSession:
    async def test_its_budget_is_for_all_turns_together_and_is_granted_anew(self) -> None:
        script = [DONE, DONE, WORK, *[DONE] * 3]
        async with a_frugal_world(*script, session_budget=Budget(tokens=300)) as world:
            session = await world.session()
            await completes(session, "1")
            await completes(session, "2")
            result = await ended(session, "3")
            assert len(world.model.requests) == 3
            assert result.receipt is not None
            assert result.receipt.reason is not None
            assert "the session has used its 300 tokens" in result.receipt.reason.detail
            (event,) = await used_up(world)
            assert event.scope is BudgetScope.SESSION
            # The user's next word is the word to go on, with as much again.
            await completes(session, "4")
            await completes(session, "5")
            await world.check()

    async def test_it_survives_a_restart(self) -> None:
        store = HeldStore()
        budget = Budget(steps=2)
        async with a_frugal_world(DONE, DONE, session_budget=budget, store=store) as world:
            session = await world.session()
            await completes(session, "1")
            await completes(session, "2")
            before = await session.usage()
        async with a_frugal_world(DONE, session_budget=budget, store=store) as world:
            session = await world.session()
            assert await session.usage() == before
            await ended(session, "3")
            assert not world.model.requests
        async with a_frugal_world(DONE, session_budget=budget, store=store) as world:
            await completes(await world.session(), "4")

    @pytest.mark.parametrize("backend", ["trio", "asyncio"])
    def test_its_time_is_that_of_its_turns(self, backend: Backend) -> None:
        async def play(session: Session, model: ScriptedModel) -> None:
            result = await ended(session)
            assert result.receipt is not None
            assert result.receipt.reason is not None
            assert "the session has used its 0.1 s" in result.receipt.reason.detail
            assert (await session.usage()).time_s == pytest.approx(0.1)
            await completes(session, "go on")

        hold = Answer([Wait("hold")])
        settings = LoopSettings(session_budget=Budget(time_s=0.1))
        on_virtual_time(play, [hold, DONE], backend=backend, settings=settings)


class TestUsage:
    async def test_everything_counts_and_the_cost_is_known_if_every_price_is(self) -> None:
        async with a_frugal_world(WORK, DONE, price=DOLLAR) as world:
            session = await world.session()
            await completes(session, "go")
            usage = await session.usage()
            assert (usage.steps, usage.requests, usage.tokens) == (3, 2, 220)
            assert usage.cost == pytest.approx(2.0)
            assert not usage.estimated

    async def test_of_an_unknown_price_nothing_is_guessed(self) -> None:
        async with a_frugal_world(DONE) as world:
            session = await world.session()
            await completes(session, "go")
            usage = await session.usage()
            assert usage.tokens == 110
            assert usage.cost is None

    async def test_a_stopped_request_counts_too(self) -> None:
        async with a_frugal_world(Answer([Say("half"), Wait("hold")]), price=DOLLAR) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            await session.interrupt()
            usage = await session.usage()
            assert usage.requests == 1
            assert usage.tokens > 0
            assert usage.estimated
            assert usage.cost

    async def test_so_does_one_that_a_steer_has_cut(self) -> None:
        hold = Answer([Say("half"), Wait("hold")])
        async with a_frugal_world(hold, DONE) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            await session.send("faster")
            await until_idle(session)
            used = [e for e in events_of(await world.log()) if isinstance(e, ModelUsed)]
            assert len(used) == 2
            assert all(each.usage.input_tokens for each in used)

    async def test_so_does_one_whose_agent_was_given_up(self) -> None:
        """It asked, swallowed its cancel and goes on: what it asked is counted all the same."""
        model = ScriptedModel([Answer([Say("half"), Wait("hold")])])

        async def deaf(turn: Turn) -> None:
            with anyio.CancelScope(shield=True):
                await turn.ask_model(Deaf(model), ModelRequest(turn.history()))

        class Deaf:
            """A model that does not hear its token."""

            name = "deaf"
            context_tokens = None

            def __init__(self, inner: ScriptedModel) -> None:
                self._inner = inner

            def open(self, request: Any, token: Any) -> Any:
                return self._inner.open(request, CancelSource("nobody's").token)

            async def aclose(self) -> None:
                pass

        store = HeldStore()
        async with Engine(deaf, store=store, config=CONFIG, limits=SOON) as engine:
            session = await engine.session("alice")
            await session.send("go")
            await model.gate("hold").reached()
            receipt = await session.interrupt()
            assert receipt.abandoned
            usage = await session.usage()
            assert usage.requests == 1
            assert usage.tokens > 0
            model.gate("hold").open()

    async def test_a_turn_tells_what_it_has_used(self) -> None:
        seen: list[Spent] = []

        async def agent(turn: Turn) -> str:
            seen.append(turn.spent)
            return "done"

        async with Engine(agent, store="memory", config=CONFIG) as engine:
            await completes(await engine.session("alice"), "hi")
        assert seen == [Spent()]


class Delegating:
    """A toolbox whose one call begins a sub-agent."""

    def schemas(self) -> tuple[ToolSchema, ...]:
        return ()

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        if call.name != "delegate":
            return Refused("there is no such tool")
        return PlannedCall(call, Effect.NONE, "delegate")

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        assert context.delegate is not None
        (report,) = await context.delegate([ChildTask("your part")], context.token)
        return report.result


class TestSubAgents:
    """A sub-agent has the budget of its own turn, and what it uses is its parent's expense too."""

    @asynccontextmanager
    async def world(self, *answers: Answer, **settings: Any) -> AsyncIterator[World]:
        model = ScriptedModel(answers, price=DOLLAR)
        store = HeldStore()
        agent = loop_agent(model, Delegating(), LoopSettings(**settings))
        async with Engine(agent, store=store, config=CONFIG, limits=LIMITS) as engine:
            yield World(engine, model, store)

    async def test_what_it_uses_is_counted_in_its_parent(self) -> None:
        part = Answer([Say("my part"), Count(100, 10)], when="your part")
        delegate = Answer([Call("delegate"), Count(100, 10)], when="go")
        async with self.world(part, delegate, DONE) as world:
            session = await world.session()
            await completes(session, "go")
            usage = await session.usage()
            assert usage.tokens == 330
            assert usage.cost == pytest.approx(3.0)
            used = [e for e in events_of(await world.log()) if isinstance(e, ModelUsed)]
            (child,) = [each for each in used if each.purpose is Purpose.CHILD]
            assert child.model.startswith("alice/")
            await world.check()

    async def test_it_is_ended_by_its_own_budget_and_its_parent_goes_on(self) -> None:
        again = Answer([Call("nonsense"), Count(100, 10)], when="your part")
        delegate = Answer([Call("delegate"), Count(10, 1)], when="go")
        script = [delegate, *[again] * 2, Answer([Say("Enough."), Count(10, 1)])]
        async with self.world(*script, budget=Budget(tokens=200)) as world:
            session = await world.session()
            # The sub-agent's tokens are its parent's too: that ends the parent, between two steps.
            result = await ended(session)
            assert result.receipt is not None
            assert result.receipt.reason is not None
            assert "200 tokens" in result.receipt.reason.detail
            assert len(world.model.requests) == 3


async def test_a_budget_of_cost_needs_a_price() -> None:
    with pytest.raises(UserError, match="price of scripted is not known"):
        async with a_frugal_world(DONE, budget=Budget(cost=1.0)):
            pass


async def test_a_model_that_comes_without_a_price_fails_the_turn_and_says_so() -> None:
    async with a_frugal_world(WORK, budget=Budget(cost=1.0), price=DOLLAR) as world:
        session = await world.session()
        world.model.endpoint.price = None
        sent = await session.send("go")
        with pytest.raises(Exception, match="price of a model"):
            await sent.result()


async def test_no_budget_is_none() -> None:
    for wrong in ({"steps": 0}, {"tokens": -1}, {"cost": 0.0}, {"time_s": float("nan")}):
        with pytest.raises(ValueError, match="more than 0"):
            Budget(**wrong)


async def test_a_failed_summary_and_a_failed_request_are_steps_too() -> None:
    async with a_frugal_world(Answer([Fail(status=400)]), DONE) as world:
        session = await world.session()
        with pytest.raises(Exception, match="400"):
            await (await session.send("go")).result()
        usage = await session.usage()
        assert (usage.steps, usage.tokens) == (1, 0)
        # It reached nobody, so that it makes no cost unknown.
        assert usage.cost == 0.0


def test_accounts_follow_from_events_alone() -> None:
    accounts = Accounts()
    usage = Usage(100, 10, 50, cost=0.5)
    ended_call = CallResult(CallStatus.FINISHED, (Text("x"),))
    for event in (
        ModelUsed("t1", "m", usage),
        CallEnded("t1", "c1", ended_call),
        CallEnded("t1", "c2", CallResult(CallStatus.NOT_STARTED, (Text("x"),))),
        BudgetUsedUp("t1", BudgetScope.SESSION, BudgetKind.TOKENS, 110),
        Compressed("t1", 3, "summary"),
    ):
        accounts = accounts.after(event)
    assert accounts.of_grant == Spent(2, 1, 100, 10, 50, 0.5)
    accounts = accounts.after(TurnSettled("t1", TurnOutcome.STOPPED), turn_s=2.0)
    assert accounts.spent == Spent(2, 1, 100, 10, 50, 0.5, time_s=2.0)
    assert accounts.of_grant == Spent()
    assert accounts.after(ModelUsed("", "m", Usage(1, 1))).of_grant.cost is None
