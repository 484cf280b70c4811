"""One who begins to watch in the middle is told how far things are, once, and in order."""

from __future__ import annotations

import anyio
import pytest

from bargein.contracts.event import AssistantSaid, Recorded, TurnSettled
from bargein.contracts.live import AnswerSoFar, OutputSoFar, TextDelta
from bargein.models.script import Call, Say, Step, Wait
from bargein.tools import ToolContext
from tests.session.world import WITHIN_S, Gate, a_world, until, watching

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


@pytest.mark.parametrize("after", [0, None])
async def test_one_who_begins_in_the_middle_of_an_answer_gets_its_beginning(
    after: int | None,
) -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        await session.send("Hi")
        await world.model.gate("hold").reached()
        async with watching(session, after) as seen:
            live = [each for each in seen if not isinstance(each, Recorded)]
            assert live == [AnswerSoFar("t1", "One ")]
            world.model.gate("hold").open()
            await until(lambda: any(isinstance(getattr(e, "event", e), TurnSettled) for e in seen))
        kinds = [type(getattr(each, "event", each)) for each in seen]
        assert kinds.index(AnswerSoFar) < kinds.index(TextDelta) < kinds.index(AssistantSaid)
        assert kinds.count(AnswerSoFar) == 1


async def test_one_who_begins_while_an_answer_is_being_stored_does_not_get_it_twice() -> None:
    async with a_world([[Say("One")]]) as world:
        session = await world.session()
        world.held_store.hold(AssistantSaid)
        await session.send("Hi")
        with anyio.fail_after(WITHIN_S):
            await world.held_store.reached.wait()
        async with watching(session, after=0) as seen:
            assert not any(isinstance(each, AnswerSoFar) for each in seen)
            world.held_store.release()
            await until(lambda: any(isinstance(getattr(e, "event", e), TurnSettled) for e in seen))
        kinds = [type(getattr(each, "event", each)) for each in seen]
        assert kinds.count(AssistantSaid) == 1
        assert TextDelta not in kinds


async def test_one_who_begins_while_a_call_runs_gets_the_end_of_its_output() -> None:
    gate = Gate()

    async def talk(context: ToolContext) -> str:
        """Talk."""
        for _ in range(100):
            context.emit("x" * 1000)
        await gate()
        return "talked"

    async with a_world([[Call("talk")], [Say("Done")]], tools=[talk]) as world:
        session = await world.session()
        await session.send("Talk")
        with anyio.fail_after(WITHIN_S):
            await gate.reached.wait()
        async with watching(session, after=0) as seen:
            expected = OutputSoFar("t1", "t1_1_1", "x" * 16_384, skipped=100_000 - 16_384)
            assert expected in seen
        await session.detach("t1_1_1")
        async with watching(session, after=0) as seen:
            assert expected in seen
        gate.opened.set()
        await session.settled()
