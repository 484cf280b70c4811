"""Words that an agent of one's own says, or takes, before the calls that it was given have their
results: what goes to the model is well formed all the same (law 5), and nothing is left out."""

from __future__ import annotations

import pytest

from bargein.contracts.model import ModelRequest
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.session.turn import Turn
from bargein.stores.memory import MemoryStore
from bargein.tools import ToolRegistry
from tests.session.laws import check_requests
from tests.session.world import SOON, Gate, a_world, answered, completes

pytestmark = pytest.mark.anyio


async def work() -> str:
    """Work."""
    return "worked"


TOOLBOX = ToolRegistry([work])


def a_model() -> ScriptedModel:
    return ScriptedModel([[Say("I work."), Call("work")], [Say("Done")], [Say("Next")]])


async def ask(turn: Turn, model: ScriptedModel) -> None:
    await turn.ask_model(model, ModelRequest(turn.history()))


@pytest.mark.parametrize("runs", [True, False])
async def test_what_it_tells_the_model_comes_after_the_results(runs: bool) -> None:
    model = a_model()

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        if asked.calls:
            turn.tell("Be brief.")
            if runs:
                await turn.run_calls(TOOLBOX, asked.calls)
            await ask(turn, model)

    async with a_world(agent=agent) as world:
        session = await world.session()
        await completes(session, "Hi")
        await completes(session, "Go on")
        check_requests(model.requests)
        assert "Be brief." in str(model.requests[1].messages[-1])
        await world.check()


async def test_a_steer_that_it_takes_before_it_runs_the_calls_comes_after_the_results() -> None:
    model, gate = a_model(), Gate()

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        if asked.calls:
            await gate()
            assert [each.text for each in await turn.boundary()] == ["Quick"]
            await turn.run_calls(TOOLBOX, asked.calls)
            await ask(turn, model)

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("Hi")
        await gate.reached.wait()
        await session.send("Quick")
        gate.opened.set()
        await answered(sent)
        await completes(session, "Go on")
        check_requests(model.requests)
        assert "Quick" in str(model.requests[1].messages[-1])
        await world.check()


@pytest.mark.parametrize("stopped", [False, True])
async def test_what_it_says_itself_instead_of_running_them_comes_after_their_results(
    stopped: bool,
) -> None:
    model, gate = a_model(), Gate()

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        if asked.calls:
            turn.emit("Never mind.")
            await gate()

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("Hi")
        await gate.reached.wait()
        if stopped:
            await session.interrupt()
        gate.opened.set()
        assert (await answered(sent)).text == "Never mind."
        await completes(session, "Go on")
        check_requests(model.requests)
        assert "Never mind." in str(model.requests[1].messages)
        await world.check()


async def test_a_crash_while_it_says_something_of_its_own_before_it_runs_them() -> None:
    model, gate, store = a_model(), Gate(), MemoryStore()

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        if asked.calls:
            turn.emit("Never mind.")
            await turn.keep("so that all before it is durable", b"")
            await gate()

    async with a_world(agent=agent, store=store, limits=SOON, checkpoint_s=0.0) as world:
        await (await world.session()).send("Hi")
        await gate.reached.wait()
        async with a_world(agent=agent, store=store) as next_world:
            session = await next_world.session()
            await completes(session, "Go on")
            check_requests(model.requests)
            assert "Never mind." in str(model.requests[1].messages)
            await next_world.check()
