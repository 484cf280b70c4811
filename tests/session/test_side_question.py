"""Side questions: answered beside the running turn, which never notices."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bargein.contracts.budget import Purpose
from bargein.contracts.event import AssistantSaid, ModelUsed
from bargein.contracts.model import AssistantMessage, Text, ToolMessage, UserMessage
from bargein.contracts.receipt import ReceiptStatus, Scope, StepKind
from bargein.errors import UserError, WorldError
from bargein.models.script import Answer, Call, Fail, Say, Wait
from bargein.runtime.engine import Engine
from bargein.session.side_question import SIDE_AT_ONCE_MAX, SideAnswer
from bargein.session.turn import Turn
from tests.session.laws import check_requests, events_of
from tests.session.world import CONFIG, WITHIN_S, Gate, HeldStore, Script, World, a_world, completes

pytestmark = pytest.mark.anyio

BTW = Answer([Say("By the way: yes.")], when="side?")
LONG = Answer([Say("By the"), Wait("aside")], when="side?")
WORK = Answer([Say("I work"), Wait("hold"), Say(" and work.")], when="go")


def words_of(messages: Any) -> str:
    return "\n".join(
        part.text
        for message in messages
        if isinstance(message, UserMessage | AssistantMessage)
        for part in message.content
        if isinstance(part, Text)
    )


async def kinds(world: World) -> list[str]:
    return [type(event).__name__ for event in events_of(await world.log())]


async def test_it_is_answered_beside_a_turn_that_streams() -> None:
    async with a_world([WORK, BTW]) as world:
        session = await world.session()
        sent = await session.send("go")
        await world.model.gate("hold").reached()
        before = await kinds(world)
        with anyio.fail_after(WITHIN_S):
            answer = await session.side_question("side?")
        assert (answer.text, answer.stopped) == ("By the way: yes.", False)
        assert answer.usage.output_tokens
        # The turn still streams, and the log has the usage alone.
        assert (await session.state()).busy
        await session.rename("so that all is stored")
        assert (await kinds(world))[len(before) :] == ["ModelUsed", "SessionTitled"]
        world.model.gate("hold").open()
        with anyio.fail_after(WITHIN_S):
            result = await sent.result()
        assert result.text == "I work and work."
        # It knew what the turn had said so far, and the conversation does not know of it.
        assert "I work" in words_of(world.model.requests[1].messages)
        assert "side?" not in words_of(await session.transcript())
        await world.check()


async def test_it_sees_calls_that_run() -> None:
    gate = Gate()

    async def work() -> str:
        """Work."""
        await gate()
        return "worked"

    script: Script = [Answer([Say("I call."), Call("work")], when="go"), BTW, [Say("Done.")]]
    async with a_world(script, tools=[work]) as world:
        session = await world.session()
        sent = await session.send("go")
        with anyio.fail_after(WITHIN_S):
            await gate.reached.wait()
            await session.side_question("side?")
            messages = world.model.requests[1].messages
            assert isinstance(messages[2], ToolMessage)
            assert "still running" in str(messages[2].results[0].content)
            check_requests(world.model.requests)
            gate.opened.set()
            await sent.result()
        # The real result, and no other, is in the conversation.
        assert "still running" not in str(await session.transcript())
        await world.check()


async def test_its_calls_are_not_run() -> None:
    ran = []

    async def work() -> str:
        """Work."""
        ran.append(1)
        return "worked"

    script = [Answer([Say("I would call."), Call("work")], when="side?")]
    async with a_world(script, tools=[work]) as world:
        session = await world.session()
        answer = await session.side_question("side?")
        assert answer.text == "I would call."
        assert ran == []


async def test_the_usage_counts_for_the_session_and_no_turn() -> None:
    async with a_world([BTW]) as world:
        session = await world.session()
        answer = await session.side_question("side?")
        used = await session.usage()
        assert used.input_tokens == answer.usage.input_tokens
        await session.rename("so that all is stored")
        (event,) = [e for e in events_of(await world.log()) if isinstance(e, ModelUsed)]
        assert (event.turn, event.purpose) == ("", Purpose.SIDE)


async def test_it_reads_the_log_of_a_session_that_has_come_back() -> None:
    store = HeldStore()
    async with a_world([[Say("The sea.")]], store=store) as world:
        await completes(await world.session(), "what is wide?")
    async with a_world([BTW], store=store) as world:
        session = await world.session()
        await session.side_question("side?")
        assert "The sea." in words_of(world.model.requests[0].messages)


class TestStops:
    async def aside(self, world: World, found: list[SideAnswer]) -> None:
        session = await world.session()
        found.append(await session.side_question("side?", question_id="mine"))

    async def test_by_its_id_with_a_receipt_and_the_turn_goes_on(self) -> None:
        async with a_world([WORK, LONG]) as world:
            session = await world.session()
            sent = await session.send("go")
            found: list[SideAnswer] = []
            with anyio.fail_after(WITHIN_S):
                await world.model.gate("hold").reached()
                async with anyio.create_task_group() as group:
                    group.start_soon(self.aside, world, found)
                    await world.model.gate("aside").reached()
                    receipt = await session.interrupt(scope="side", target="mine")
                assert receipt.status is ReceiptStatus.STOPPED
                assert receipt.scope is Scope.SIDE
                (step,) = receipt.steps
                assert step.kind is StepKind.MODEL
                assert step.usage is not None
                assert step.usage.estimated
                assert receipt.spent is not None
                assert receipt.spent.usage == step.usage
                (answer,) = found
                assert (answer.text, answer.stopped) == ("By the", True)
                world.model.gate("hold").open()
                await sent.result()
            await world.check()

    async def test_one_that_is_over_is_too_late(self) -> None:
        async with a_world([BTW]) as world:
            session = await world.session()
            await session.side_question("side?", question_id="mine")
            receipt = await session.interrupt(scope="side", target="mine")
            assert receipt.status is ReceiptStatus.TOO_LATE

    async def test_a_stop_of_the_turn_leaves_it_alone(self) -> None:
        async with a_world([WORK, LONG]) as world:
            session = await world.session()
            await session.send("go")
            found: list[SideAnswer] = []
            with anyio.fail_after(WITHIN_S):
                await world.model.gate("hold").reached()
                async with anyio.create_task_group() as group:
                    group.start_soon(self.aside, world, found)
                    await world.model.gate("aside").reached()
                    await session.interrupt()
                    assert not found
                    world.model.gate("aside").open()
            assert found[0].stopped is False

    async def test_a_stop_of_the_session_ends_it(self) -> None:
        async with a_world([WORK, LONG]) as world:
            session = await world.session()
            await session.send("go")
            found: list[SideAnswer] = []
            with anyio.fail_after(WITHIN_S):
                await world.model.gate("hold").reached()
                async with anyio.create_task_group() as group:
                    group.start_soon(self.aside, world, found)
                    await world.model.gate("aside").reached()
                    await session.interrupt(scope="session")
            assert found[0].stopped

    async def test_cancelling_the_caller_ends_it_and_counts_it(self) -> None:
        async with a_world([LONG, BTW]) as world:
            session = await world.session()
            with anyio.fail_after(WITHIN_S):
                async with anyio.create_task_group() as group:
                    group.start_soon(self.aside, world, [])
                    await world.model.gate("aside").reached()
                    group.cancel_scope.cancel()
                # Its name is free again, and its tokens are counted.
                assert (await session.usage()).requests == 1
                await session.side_question("side?", question_id="mine")

    async def test_the_end_of_the_program_ends_it(self) -> None:
        found: list[SideAnswer] = []
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group, a_world([LONG]) as world:
                await world.session()
                group.start_soon(self.aside, world, found)
                await world.model.gate("aside").reached()
        assert found[0].stopped


class TestRefusals:
    async def test_too_many_at_once(self) -> None:
        async with a_world([LONG] * SIDE_AT_ONCE_MAX) as world:
            session = await world.session()
            with anyio.fail_after(WITHIN_S):
                async with anyio.create_task_group() as group:
                    for number in range(SIDE_AT_ONCE_MAX):
                        group.start_soon(session.side_question, f"side? {number}")
                    await world.model.gate("aside").reached()
                    while len(world.engine.core.side_runs) < SIDE_AT_ONCE_MAX:
                        await anyio.lowlevel.checkpoint()
                    with pytest.raises(UserError, match="which is the limit"):
                        await session.side_question("side?")
                    world.model.gate("aside").open()
            assert world.engine.core.side_runs == {}

    async def test_nothing_asked(self) -> None:
        async with a_world() as world:
            session = await world.session()
            with pytest.raises(UserError, match="characters"):
                await session.side_question("  ")

    async def test_an_agent_of_ones_own(self) -> None:
        async def agent(turn: Turn) -> str:
            return "done"

        async with Engine(agent, store="memory", config=CONFIG) as engine:
            session = await engine.session("alice")
            with pytest.raises(UserError, match="user-written agent"):
                await session.side_question("side?")

    async def test_a_model_that_fails(self) -> None:
        async with a_world([Answer([Fail(status=400)], when="side?")]) as world:
            session = await world.session()
            with pytest.raises(WorldError):
                await session.side_question("side?")
            assert not [e for e in events_of(await world.log()) if isinstance(e, AssistantSaid)]


async def test_a_late_stop_does_not_reach_the_next_one() -> None:
    async with a_world([BTW, LONG]) as world:
        session = await world.session()
        first = await session.side_question("side?")
        answers: list[SideAnswer] = []

        async def ask() -> None:
            answers.append(await session.side_question("side?"))

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await world.model.gate("aside").reached()
                late = await session.interrupt(scope=Scope.SIDE, target=first.id)
                assert late.status is ReceiptStatus.TOO_LATE
                world.model.gate("aside").open()
        assert not answers[0].stopped
