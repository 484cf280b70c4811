"""Receipts with money: what each stopped step used, and what the whole turn cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from bargein.contracts.event import ModelUsed, TurnSettled
from bargein.contracts.receipt import Receipt, StepKind
from bargein.models.costs import Price
from bargein.models.script import Answer, Call, Count, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.engine import Engine
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.session import Session
from tests.session.laws import events_of
from tests.session.test_budget import DOLLAR, Delegating, a_frugal_world
from tests.session.world import CONFIG, LIMITS, WITHIN_S, HeldStore, World, completes

pytestmark = pytest.mark.anyio

HALF = Answer([Say("half"), Wait("hold")])
STEP = Answer([Say("I work."), Call("work"), Count(100, 10)])


async def stopped_at(world: World, session: Session, gate: str) -> Receipt:
    with anyio.fail_after(WITHIN_S):
        await world.model.gate(gate).reached()
        return await session.interrupt()


async def test_a_stopped_request_says_what_it_used_and_that_it_is_an_estimate() -> None:
    async with a_frugal_world(HALF, price=DOLLAR) as world:
        session = await world.session()
        await session.send("go")
        receipt = await stopped_at(world, session, "hold")
        (step,) = receipt.steps
        assert step.kind is StepKind.MODEL
        assert step.usage is not None
        assert step.usage.estimated
        assert step.usage.input_tokens
        assert step.usage.cost
        assert receipt.spent is not None
        assert receipt.spent.usage == step.usage
        assert receipt.spent.time_s > 0


async def test_the_total_is_that_of_the_whole_turn_and_of_no_other() -> None:
    async with a_frugal_world(STEP, STEP, HALF, price=DOLLAR) as world:
        session = await world.session()
        await session.send("go")
        receipt = await stopped_at(world, session, "hold")
        spent = receipt.spent
        assert spent is not None
        # Two answers, two calls, and the request that was stopped.
        assert (spent.requests, spent.steps) == (3, 5)
        assert spent.input_tokens > 200
        assert spent.cost is not None
        assert spent.cost > 2.0
        used = [e for e in events_of(await world.log()) if isinstance(e, ModelUsed)]
        assert spent.tokens == sum(e.usage.input_tokens + e.usage.output_tokens for e in used)


async def test_an_earlier_turn_is_not_in_the_total() -> None:
    async with a_frugal_world(STEP, Answer([Say("Done."), Count(100, 10)]), HALF) as world:
        session = await world.session()
        await completes(session, "first")
        await session.send("second")
        receipt = await stopped_at(world, session, "hold")
        assert receipt.spent is not None
        assert receipt.spent.requests == 1
        assert receipt.spent.cost is None


async def test_the_log_has_the_same_receipt() -> None:
    async with a_frugal_world(HALF, price=DOLLAR) as world:
        session = await world.session()
        await session.send("go")
        receipt = await stopped_at(world, session, "hold")
        (settled,) = [e for e in events_of(await world.log()) if isinstance(e, TurnSettled)]
        assert settled.receipt == receipt


async def test_nothing_stopped_costs_nothing() -> None:
    async with a_frugal_world(Answer([Say("Done.")])) as world:
        session = await world.session()
        await completes(session, "go")
        assert (await session.interrupt()).spent is None


class TestSubAgents:
    @asynccontextmanager
    async def world(self, *answers: Answer, price: Price | None = DOLLAR) -> AsyncIterator[World]:
        model = ScriptedModel(answers, price=price)
        agent = loop_agent(model, Delegating(), LoopSettings())
        store = HeldStore()
        async with Engine(agent, store=store, config=CONFIG, limits=LIMITS) as engine:
            yield World(engine, model, store)

    part = Answer([Say("my part"), Wait("hold")], when="your part")
    delegate = Answer([Call("delegate"), Count(100, 10)], when="go")

    async def test_a_stop_of_the_turn_counts_its_sub_agents(self) -> None:
        async with self.world(self.part, self.delegate) as world:
            session = await world.session()
            await session.send("go")
            receipt = await stopped_at(world, session, "hold")
            steps = {step.kind: step for step in receipt.steps}
            call, child = steps[StepKind.TOOL].usage, steps[StepKind.CHILD].usage
            assert child is not None
            assert child.input_tokens
            assert child.estimated
            assert call == child
            spent = receipt.spent
            assert spent is not None
            assert spent.input_tokens == 100 + child.input_tokens
            assert spent.cost is not None
            assert child.cost is not None
            assert spent.cost == pytest.approx(1.0 + child.cost)
            assert (await session.usage()).tokens == spent.tokens
            await world.check()

    async def test_a_stop_of_one_sub_agent_counts_that_one(self) -> None:
        after = Answer([Say("Enough."), Count(10, 1)])
        async with self.world(self.part, self.delegate, after) as world:
            session = await world.session()
            sent = await session.send("go")
            with anyio.fail_after(WITHIN_S):
                await world.model.gate("hold").reached()
                (child,) = await session.children()
                receipt = await session.interrupt(scope="child", target=child.id)
                await sent.result()
            assert receipt.spent is not None
            assert receipt.spent.requests == 1
            assert receipt.spent.usage == receipt.steps[0].usage

    async def test_a_stop_of_one_call_counts_its_sub_agents(self) -> None:
        after = Answer([Say("Enough."), Count(10, 1)])
        async with self.world(self.part, self.delegate, after) as world:
            session = await world.session()
            sent = await session.send("go")
            with anyio.fail_after(WITHIN_S):
                await world.model.gate("hold").reached()
                (child,) = await session.children()
                receipt = await session.interrupt(scope="call", target=child.call_id)
                await sent.result()
            assert receipt.spent is not None
            assert receipt.spent.input_tokens
            assert receipt.steps[0].usage == receipt.spent.usage
