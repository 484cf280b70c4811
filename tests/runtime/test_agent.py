"""An agent is given by position and by name, and its sub-agents share what it has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bargein import Agent, Engine, ToolContext, tool
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.session.session import Session
from tests.session.world import CONFIG

pytestmark = pytest.mark.anyio


@dataclass
class Shop:
    prices: dict[str, float]


@tool
def price(article: str, context: ToolContext[Shop]) -> float:
    """Look up a price."""
    return context.deps.prices[article]


def test_the_model_comes_first_and_all_else_by_name() -> None:
    assert Agent("openai:gpt-5-mini", tools=[price]).model == "openai:gpt-5-mini"
    with pytest.raises(TypeError, match="positional"):
        Agent("openai:gpt-5-mini", [price])  # type: ignore[call-arg]


async def told(session: Session) -> str:
    """What the tools have told the models, in the session and in its sub-agents."""
    return str(await session.transcript())


async def test_tools_get_the_agents_deps() -> None:
    model = ScriptedModel([[Call("price", {"article": "tea"})], [Say("There.")]])
    agent = Agent(model, tools=[price], deps=Shop({"tea": 4.5}))
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        assert [event async for event in session.stream("How much is tea?")]
        assert "4.5" in await told(session)


@pytest.mark.parametrize("own", [None, Shop({"tea": 7.5})], ids=["inherited", "own"])
async def test_sub_agents_have_deps_of_their_own_or_their_parents(own: Shop | None) -> None:
    model = ScriptedModel(
        [
            [Call("delegate", {"tasks": [{"task": "find out", "agent": "clerk"}]})],
            [Call("price", {"article": "tea"})],
            [Say("found it")],
            [Say("There.")],
        ]
    )
    clerk = Agent(tools=[price], description="knows prices", deps=own)
    agent = Agent(model, deps=Shop({"tea": 4.5}), sub_agents={"clerk": clerk})
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        assert [event async for event in session.stream("How much is tea?")]
        (child,) = await session.children()
        assert ("4.5" if own is None else "7.5") in await told(await engine.session(child.id))


async def test_a_tool_without_its_deps_is_refused_when_the_engine_opens() -> None:
    engine = Engine(Agent(ScriptedModel([]), tools=[price]), store="memory", config=CONFIG)
    with pytest.raises(TypeError, match="tool price needs deps of type Shop"):
        await engine.__aenter__()
