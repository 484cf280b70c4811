"""A session can begin with what was said elsewhere."""

from __future__ import annotations

import anyio
import pytest

from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.errors import UserError
from bargein.models.script import Say
from tests.session.world import a_world, completes

pytestmark = pytest.mark.anyio

CALL = ToolCall("c1", "look", "{}")
RESULT = ToolMessage((ToolResult("c1", (Text("nothing"),)),))
HISTORY: tuple[ModelMessage, ...] = (
    UserMessage((Text("Look."),)),
    AssistantMessage((CALL,)),
    RESULT,
    AssistantMessage((Text("There is nothing."),)),
)


async def test_the_model_is_shown_it_first_and_it_survives_a_restart() -> None:
    async with a_world([[Say("a")]]) as world:
        session = await world.session()
        await session.begin_with(HISTORY, instructions="Be brief.")
        await completes(session, "Again")
        assert world.model.requests[0].messages == (*HISTORY, UserMessage((Text("Again"),)))
        assert "Be brief." in world.model.requests[0].system
        await world.check()
    async with a_world([[Say("b")]], store=world.store) as again:
        await completes(await again.session(), "And again")
        request = again.model.requests[0]
        assert request.messages[:4] == HISTORY
        assert "Be brief." in request.system


async def test_it_comes_first_or_not_at_all() -> None:
    async with a_world([[Say("a")]]) as world:
        session = await world.session()
        refused = 0

        async def begin() -> None:
            nonlocal refused
            try:
                await session.begin_with(HISTORY)
            except UserError:
                refused += 1

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(begin)
        assert refused == 2
        await completes(session, "Hi")
        await begin()
        assert refused == 3


@pytest.mark.parametrize(
    "history",
    [
        (AssistantMessage((CALL,)),),
        (AssistantMessage((CALL,)), UserMessage((Text("x"),))),
        (RESULT,),
        (AssistantMessage((CALL,)), RESULT, RESULT),
        (AssistantMessage((CALL, ToolCall("c2", "look", "{}"))), RESULT),
    ],
)
async def test_a_broken_one_is_refused(history: tuple[ModelMessage, ...]) -> None:
    async with a_world([[Say("a")]]) as world:
        session = await world.session()
        with pytest.raises(UserError, match="call"):
            await session.begin_with(history)
        await session.begin_with(HISTORY)
