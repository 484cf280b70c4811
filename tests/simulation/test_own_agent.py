"""`check_agent`: an agent of one's own in simulated worlds."""

from __future__ import annotations

import pytest

from bargein.contracts.model import Model, ModelRequest
from bargein.contracts.tool import Toolbox
from bargein.session.turn import AgentFunction, Turn
from bargein.testing.seeded import Backend
from bargein.testing.simulate import check_agent


def build(model: Model, tools: Toolbox) -> AgentFunction:
    async def agent(turn: Turn) -> None:
        going_on = True
        while going_on:
            asked = await turn.ask_model(model, ModelRequest(messages=turn.history()))
            await turn.run_calls(tools, asked.calls)
            steers = await turn.boundary()
            going_on = bool(asked.calls or steers)

    return agent


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_agent_that_keeps_to_its_turn_passes(backend: Backend) -> None:
    check_agent(build, seeds=range(25), backend=backend)


def test_an_agent_that_fails_of_itself_is_found_with_the_smallest_story() -> None:
    def build_broken(model: Model, tools: Toolbox) -> AgentFunction:
        async def agent(turn: Turn) -> None:
            await turn.ask_model(model, ModelRequest(messages=turn.history()))
            for message in await turn.boundary():
                raise KeyError(message.id)

        return agent

    with pytest.raises(AssertionError, match="failed of itself: KeyError") as caught:
        check_agent(build_broken)
    story = str(caught.value)
    assert "law 8 (our own doing is not an error)" in story
    assert story.count("does Send") == 2


def test_an_agent_that_asks_again_though_nothing_was_said_is_found() -> None:
    def build_broken(model: Model, tools: Toolbox) -> AgentFunction:
        async def agent(turn: Turn) -> None:
            for _ in range(2):
                await turn.ask_model(model, ModelRequest(messages=turn.history()))

        return agent

    with pytest.raises(AssertionError, match=r"law 5 \(a valid transcript\)"):
        check_agent(build_broken)
