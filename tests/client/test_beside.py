"""Over the wire: side questions, what the user heard, and receipts with money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein import HeardSoFar
from bargein.contracts.model import AssistantMessage, Text
from bargein.contracts.receipt import ReceiptStatus
from bargein.errors import UserError
from bargein.models.script import Answer, Say, Wait
from bargein.session.state import Phase
from tests.client.joined import joined, local
from tests.server.stage import WITHIN_S, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

SEA = "The sea is wide and the wind is strong."
WORK = Answer([Say(SEA), Wait("hold")], when="go")
LONG = Answer([Say("By the"), Wait("aside")], when="side?")
BTW = Answer([Say("By the way: yes.")], when="side?")


async def test_a_side_question_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with serving([WORK, BTW], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await session.send("go")
        await stage.model.gate("hold").reached()
        with anyio.fail_after(WITHIN_S):
            answer = await session.side_question("side?")
        assert (answer.text, answer.stopped) == ("By the way: yes.", False)
        assert (await session.state()).busy


async def test_cancelling_a_side_question_stops_it_at_the_server(tmp_path: Path) -> None:
    async with serving([LONG], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:
                group.start_soon(session.side_question, "side?")
                await stage.model.gate("aside").reached()
                group.cancel_scope.cancel()
            runs = stage.engine.side_runs
            await until(lambda: not runs)
        assert (await session.usage()).requests == 1


async def test_a_stop_by_its_id_has_a_receipt_with_money(tmp_path: Path) -> None:
    async with serving([LONG], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    assert (await session.side_question("side?", question_id="mine")).stopped

                group.start_soon(ask)
                await stage.model.gate("aside").reached()
                receipt = await session.interrupt(scope="side", target="mine")
        assert receipt.status is ReceiptStatus.STOPPED
        assert receipt.spent is not None
        assert receipt.spent.estimated
        assert receipt.steps[0].usage == receipt.spent.usage
        with pytest.raises(UserError, match="say which"):
            await session.interrupt(scope="side")


async def test_what_was_heard(tmp_path: Path) -> None:
    async with serving([WORK, [Say("Yes.")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await session.send("go")
        await stage.model.gate("hold").reached()
        receipt = await session.interrupt(heard=HeardSoFar("t1", 15))
        assert receipt.spent is not None
        assert receipt.spent.tokens
        await (await session.send("and?", heard=HeardSoFar("t1", 7))).result()
        said = [each for each in await session.transcript() if isinstance(each, AssistantMessage)]
        assert said[0].content == (Text("The sea"),)
        # The engine's own session says the same.
        assert await local(stage, session).transcript() == await session.transcript()
        late = await session.interrupt(expected_turn="t1", heard=HeardSoFar("t1", 3))
        assert late.status is ReceiptStatus.TOO_LATE
        said = [each for each in await session.transcript() if isinstance(each, AssistantMessage)]
        assert said[0].content == (Text("The"),)


async def test_a_stop_that_is_asked_again_of_another_start_still_tells_what_was_heard(
    tmp_path: Path,
) -> None:
    async with serving([[Say(SEA)]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await (await session.send("go")).result()
        body = {"start": "another", "heard": {"turn": "t1", "characters": 7}}
        answer = await stage.post(f"/v1/sessions/{session.id}/interrupt", body)
        assert answer["status"] == "too_late"
        said = [each for each in await session.transcript() if isinstance(each, AssistantMessage)]
        assert said[0].content == (Text("The sea"),)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"scope": "session"},
        {"expected_turn_id": "t1"},
        {"scope": "turn", "target": "t1"},
        {"heard": {"turn": "t1", "characters": 7}},
        {"scope": "session", "heard": {"turn": "t1", "characters": 7}},
        {"expected_turn_id": "t1", "heard": {"turn": "t1", "characters": 7}},
    ],
)
async def test_a_stop_that_was_asked_of_another_start_stops_nothing_that_runs_now(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Not even a turn of the same name: the one that was meant may never have been stored."""
    async with serving([WORK], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        sent = await session.send("go")
        await stage.model.gate("hold").reached()
        path = f"/v1/sessions/{session.id}/interrupt"
        answer = await stage.post(path, {"start": "another", **more})
        assert (answer["status"], answer["scope"]) == ("too_late", more.get("scope", "turn"))
        state = await session.state()
        assert (state.phase, state.turn) == (Phase.RUNNING, "t1")
        stage.model.gate("hold").open()
        assert (await sent.result()).outcome == "completed"
