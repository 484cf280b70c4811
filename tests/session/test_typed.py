"""Typed results: an agent or a message names a type, and the result has a value of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic
import pytest

from bargein import Agent, Engine, NoOutput, Turn, tool
from bargein.contracts.event import AssistantSaid, TurnOutcome
from bargein.contracts.model import ToolMessage
from bargein.contracts.output import make_output
from bargein.events import TextDelta, TurnSettled
from bargein.models.script import Answer, Call, Fail, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import REPAIRS_MAX
from bargein.session.session import TurnFailed
from bargein.stores.memory import MemoryStore
from tests.session.world import CONFIG, LIMITS, Script

pytestmark = pytest.mark.anyio


@dataclass
class City:
    name: str
    people: int


class Colour(TypedDict):
    name: str


class Even(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Shade(pydantic.BaseModel):
    name: str


PARIS = '{"name": "Paris", "people": 2100000}'


@tool
def look() -> str:
    """Look around."""
    return "a tower"


@asynccontextmanager
async def an_engine(
    agent: Agent[Any], store: MemoryStore | None = None
) -> AsyncIterator[Engine[Any]]:
    engine = Engine(agent, store=store or MemoryStore(), config=CONFIG, limits=LIMITS)
    async with engine:
        yield engine


def played(script: Script) -> ScriptedModel:
    return ScriptedModel(script)


async def test_an_agents_type_flows_to_the_result() -> None:
    model = played([[Say(PARIS)]])
    async with Engine(Agent(model, output=City), store="memory", config=CONFIG) as engine:
        session = await engine.session("s")
        result = await (await session.send("Which city?")).result()
        assert_type(result.output, City)
        assert result.output == City("Paris", 2_100_000)
        assert result.output is result.output
        assert result.text == PARIS
    schema = model.requests[0].response_schema
    assert schema is not None
    assert msgspec.json.decode(schema)["required"] == ["name", "people"]
    assert '"people"' in model.requests[0].system


async def test_without_a_type_the_output_is_the_text() -> None:
    async with Engine(Agent(played([[Say("Hi!")]])), store="memory", config=CONFIG) as engine:
        result = await (await (await engine.session("s")).send("Hello")).result()
        assert_type(result.output, str)
        assert result.output == "Hi!"


async def test_a_message_may_ask_for_another_type_or_for_words() -> None:
    model = played(
        [[Say('{"name": "red"}')], [Say("Just words.")], [Say('{"value": [1, 2]}')], [Say(PARIS)]]
    )
    async with Engine(Agent(model, output=City), store="memory", config=CONFIG) as engine:
        session = await engine.session("s")
        colour = (await (await session.send("Which colour?", output=Colour)).result()).output
        assert_type(colour, Colour)
        assert colour == {"name": "red"}
        words = (await (await session.send("Explain", output=str)).result()).output
        assert_type(words, str)
        assert words == "Just words."
        assert model.requests[1].response_schema is None
        numbers = (await (await session.send("Count", output=list[int])).result()).output
        assert_type(numbers, list[int])
        assert numbers == [1, 2]
        assert (await (await session.send("Which city?")).result()).output.name == "Paris"


async def test_a_pydantic_model_and_a_plain_schema() -> None:
    model = played([[Say('{"name": "teal"}')], [Say('{"name": "teal"}')]])
    async with Engine(Agent(model), store="memory", config=CONFIG) as engine:
        session = await engine.session("s")
        shade = (await (await session.send("Which?", output=Shade)).result()).output
        assert_type(shade, Shade)
        assert shade == Shade(name="teal")
        schema = make_output({"type": "object", "required": ["name"]})
        assert (await (await session.send("Which?", output=schema)).result()).output == {
            "name": "teal"
        }


async def test_tools_may_be_called_first() -> None:
    model = played([[Say("Let me look."), Call("look", {})], [Say(PARIS)]])
    async with an_engine(Agent(model, tools=[look], output=City)) as engine:
        result = await (await (await engine.session("s")).send("Which city?")).result()
        assert result.output.name == "Paris"


@pytest.mark.parametrize("by", ["agent", "message"])
async def test_what_a_validator_refuses_is_asked_for_again_with_its_words(by: str) -> None:
    model = played([[Say('{"number": 3}')], [Say('{"number": 4}')]])
    agent: Agent[Any] = Agent(model, output=Even) if by == "agent" else Agent(model)
    async with an_engine(agent) as engine:
        session = await engine.session("s")
        options: dict[str, Any] = {} if by == "agent" else {"output": Even}
        result = await (await session.send("A number", **options)).result()
        assert result.output == Even(4)
    assert "3 is odd" in str(model.requests[1].messages[-1])


async def test_it_is_asked_for_again_within_a_bound() -> None:
    model = played([[Say('{"number": 3}')]] * (REPAIRS_MAX + 2))
    async with an_engine(Agent(model, output=Even)) as engine:
        sent = await (await engine.session("s")).send("A number")
        with pytest.raises(TurnFailed, match=f"after {REPAIRS_MAX} repairs: 3 is odd"):
            await sent.result()
    assert len(model.plays) == REPAIRS_MAX + 1


async def test_a_stopped_turn_has_no_output_and_says_so() -> None:
    model = played([Answer([Say('{"name": "Par'), Wait("hold")])])
    async with an_engine(Agent(model, output=City)) as engine:
        session = await engine.session("s")
        sent = await session.send("Which city?")
        await model.gate("hold").reached()
        await session.interrupt()
        result = await sent.result()
        assert result.outcome is TurnOutcome.STOPPED
        with pytest.raises(NoOutput, match=r"turn t1 has no output, because it was stopped"):
            _ = result.output


async def test_a_failed_turn_raises_when_its_result_is_asked_for() -> None:
    async with an_engine(Agent(played([[Fail(400)]]), output=City)) as engine:
        sent = await (await engine.session("s")).send("Which city?")
        with pytest.raises(TurnFailed):
            await sent.result()


async def test_a_steer_without_a_type_leaves_that_of_the_first_message() -> None:
    model = played([Answer([Say("Well"), Wait("hold")]), Answer([Say('{"name": "red"}')])])
    async with an_engine(Agent(model)) as engine:
        session = await engine.session("s")
        first = await session.send("Which colour?", output=Colour)
        await model.gate("hold").reached()
        second = await session.send("a warm one")
        model.gate("hold").open()
        assert (await first.result()).output == {"name": "red"}
        assert (await second.result()).output == '{"name": "red"}'


async def test_the_last_type_asked_for_counts_and_the_first_sender_is_told() -> None:
    model = played([Answer([Say("Well"), Wait("hold")]), Answer([Say('{"name": "red"}')])])
    async with an_engine(Agent(model)) as engine:
        session = await engine.session("s")
        first = await session.send("Which number?", output=Even)
        await model.gate("hold").reached()
        second = await session.send("No: which colour?", output=Colour)
        model.gate("hold").open()
        assert (await second.result()).output == {"name": "red"}
        with pytest.raises(NoOutput, match=r"no output of type Even: .*number"):
            _ = (await first.result()).output


async def test_the_answers_of_a_named_sub_agent_have_its_type() -> None:
    model = played(
        [
            [Call("delegate", {"tasks": [{"task": "find it", "agent": "guide"}]})],
            [Say("Paris, I think.")],
            [Say(PARIS)],
            [Say("Done.")],
        ]
    )
    guide = Agent(output=City, description="knows cities")
    async with an_engine(Agent(model, sub_agents={"guide": guide})) as engine:
        session = await engine.session("s")
        assert (await (await session.send("Which city?")).result()).output == "Done."
    told = model.requests[3].messages[-1]
    assert isinstance(told, ToolMessage)
    assert PARIS in str(told)


async def test_a_copy_of_a_typed_agent_reports_in_words() -> None:
    model = played(
        [[Call("delegate", {"tasks": [{"task": "find it"}]})], [Say("It is Paris.")], [Say(PARIS)]]
    )
    async with an_engine(Agent(model, sub_agents={}, output=City)) as engine:
        session = await engine.session("s")
        assert (await (await session.send("Which city?")).result()).output.name == "Paris"
    assert model.requests[1].response_schema is None


@pytest.mark.parametrize("by", ["agent", "message"])
async def test_after_a_restart_the_type_still_applies(by: str) -> None:
    """A message that waits is taken by the next process. The agent's type is in its code, the
    message's schema in the log."""
    store = MemoryStore()
    agent_of: Any = (lambda m: Agent(m, output=City)) if by == "agent" else Agent
    options: dict[str, Any] = {} if by == "agent" else {"output": City}
    first = played([Answer([Say("Well"), Wait("hold")])])
    async with an_engine(agent_of(first), store) as engine:
        session = await engine.session("s")
        await session.send("Hello")
        await first.gate("hold").reached()
        await session.send("Which city?", mode="queue", client_id="c1", **options)
    second = played([[Say("Paris")], [Say(PARIS)], [Say(PARIS)]])
    async with an_engine(agent_of(second), store) as engine:
        session = await engine.session("s")
        again = await session.send("Which city?", mode="queue", client_id="c1", **options)
        assert (await again.result()).output == City("Paris", 2_100_000)
    assert "not JSON alone" in str(second.requests[1].messages[-1])


async def test_a_stream_of_a_typed_turn_has_its_result() -> None:
    model = played([[Say("hm")], [Say(PARIS[:9]), Say(PARIS[9:])]])
    async with Engine(Agent(model, output=City), store="memory", config=CONFIG) as engine:
        session = await engine.session("s")
        stream = session.stream("Which city?")
        events = [event async for event in stream]
        result = await stream.result()
        assert_type(result.output, City)
        assert result.output.name == "Paris"
    assert isinstance(events[-1], TurnSettled)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == f"hm{PARIS}"
    said = [event for event in events if isinstance(event, AssistantSaid)]
    assert len(said) == 2


async def test_a_stream_that_was_not_read_has_no_result_yet() -> None:
    async with an_engine(Agent(played([]))) as engine:
        stream = (await engine.session("s")).stream("Hi", output=City)
        with pytest.raises(Exception, match="read the stream first"):
            await stream.result()
        await stream.aclose()


async def test_an_agent_of_ones_own_sees_the_type_and_its_answer_is_decoded() -> None:
    seen: list[str] = []

    async def agent(turn: Turn) -> str:
        assert turn.output_type is not None
        seen.append(turn.output_type.name)
        return PARIS if turn.output_type.name == "City" else "no JSON"

    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("s")
        result = await (await session.send("Which city?", output=City)).result()
        assert result.output == City("Paris", 2_100_000)
        odd = await (await session.send("Which colour?", output=Colour)).result()
        with pytest.raises(NoOutput, match="no output of type Colour"):
            _ = odd.output
    assert seen == ["City", "Colour"]


@pytest.mark.parametrize("kind", [complex, "City", [City]])
async def test_a_type_that_cannot_be_described_is_refused_where_it_is_given(kind: Any) -> None:
    with pytest.raises(TypeError, match="output is"):
        Agent(output=kind)
    async with an_engine(Agent(played([]))) as engine:
        session = await engine.session("s")
        with pytest.raises(TypeError, match="output is"):
            await session.send("Which?", output=kind)
        assert await session.events() == []


def answers(*texts: str) -> Sequence[Sequence[Say]]:
    return [[Say(text)] for text in texts]


def test_results_without_await() -> None:
    from bargein import sync

    agent = Agent(played(answers(PARIS, '{"name": "red"}', PARIS)), output=City)
    with sync.Engine(agent, store="memory", config=CONFIG) as engine:
        session = engine.session("s")
        city = session.send("Which city?").result().output
        assert_type(city, City)
        assert city.name == "Paris"
        colour = session.send("Which colour?", output=Colour).result().output
        assert_type(colour, Colour)
        stream = session.stream("Which city?")
        assert list(stream)
        assert_type(stream.result().output, City)
        assert stream.result().output.people == 2_100_000
