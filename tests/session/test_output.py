"""What the answer of a turn must be: asked for, checked, and asked for again if it does not fit."""

from __future__ import annotations

import msgspec
import pytest

from bargein.contracts.event import TurnOutcome
from bargein.contracts.output import make_output
from bargein.models.script import Answer, Call, Say, Wait
from bargein.session.agent import REPAIRS_MAX, STEPS_AT_ONCE
from bargein.session.session import IdReused, TurnFailed
from bargein.tools import tool
from tests.session.world import Script, a_world

pytestmark = pytest.mark.anyio

COLOUR = make_output(
    {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
    name="colour",
)


@tool
def look() -> str:
    """Look around."""
    return "all is red"


async def test_the_model_is_asked_for_it_by_its_own_means_and_in_words() -> None:
    async with a_world([[Say('{"colour": "red"}')], [Say("words")]]) as world:
        session = await world.engine.session("s")
        sent = await session.send("Which?", output=COLOUR)
        assert (await sent.result()).text == '{"colour": "red"}'
        request = world.model.requests[0]
        assert request.response_schema is not None
        assert msgspec.json.decode(request.response_schema) == msgspec.json.decode(COLOUR.schema)
        assert COLOUR.schema in request.system
        # It is for that turn alone.
        assert (await (await session.send("And now?")).result()).text == "words"
        assert world.model.requests[1].response_schema is None


async def test_only_the_last_words_are_checked() -> None:
    script: Script = [[Say("Let me see."), Call("look", {})], [Say('{"colour": "red"}')]]
    async with a_world(script, tools=[look]) as world:
        session = await world.engine.session("s")
        result = await (await session.send("Which?", output=COLOUR)).result()
        assert result.text == '{"colour": "red"}'
        assert len(world.model.plays) == 2


async def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason() -> None:
    async with a_world(
        [[Say("red!")], [Say('{"colour": "blue"}')], [Say('{"colour": "red"}')]]
    ) as world:
        session = await world.engine.session("s")
        result = await (await session.send("Which?", output=COLOUR)).result()
        assert result.text == '{"colour": "red"}'
        last = str(world.model.requests[2].messages[-1])
        assert "'blue', not one of ['red', 'green']" in last


async def test_one_that_never_fits_fails_the_turn_within_a_bound() -> None:
    async with a_world([[Say("red")]] * (REPAIRS_MAX + 2)) as world:
        session = await world.engine.session("s")
        sent = await session.send("Which?", output=COLOUR)
        with pytest.raises(
            TurnFailed, match=f"does not fit what was asked for, after {REPAIRS_MAX}"
        ):
            await sent.result()
        assert len(world.model.plays) == REPAIRS_MAX + 1


async def test_a_stop_while_it_is_repaired_is_a_stop() -> None:
    script = [Answer([Say("red")]), Answer([Say("gr"), Wait("hold")])]
    async with a_world(script) as world:
        session = await world.engine.session("s")
        sent = await session.send("Which?", output=COLOUR)
        await world.model.gate("hold").reached()
        await session.interrupt()
        assert (await sent.result()).outcome is TurnOutcome.STOPPED


async def test_the_same_id_with_another_output_is_another_message() -> None:
    async with a_world([[Say('{"colour": "red"}')]]) as world:
        session = await world.engine.session("s")
        for _ in range(2):
            sent = await session.send("Which?", client_id="k", output=COLOUR)
            assert (await sent.result()).text == '{"colour": "red"}'
        with pytest.raises(IdReused):
            await session.send("Which?", client_id="k")


async def test_a_large_answer_is_checked_beside_the_loop() -> None:
    rows = make_output({"type": "array", "items": {"type": "integer"}})
    text = msgspec.json.encode(list(range(STEPS_AT_ONCE + 1))).decode()
    async with a_world([[Say(text)]]) as world:
        session = await world.engine.session("s")
        assert (await (await session.send("Count", output=rows)).result()).text == text
