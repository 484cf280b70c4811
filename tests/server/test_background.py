"""A call in the background from its start, as the API shows and stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bargein.models.script import Call, Say
from bargein.tools import ToolContext, tool
from tests.server.stage import Script, serving

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@tool(title=lambda _: "npm run dev")
async def serve(context: ToolContext) -> str:
    """Serve until stopped."""
    context.detach("Started.")
    context.emit("listening\n")
    await context.token.wait_async()
    context.token.check()
    return ""


SCRIPT: Script = [[Call("serve")], [Say("it is up")]]


async def test_it_is_seen_everywhere_and_stopped_with_its_session(tmp_path: Path) -> None:
    async with serving(SCRIPT, tmp_path, tools=[serve]) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "go"})
        await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        detail = await stage.get(session)
        (call,) = detail["calls"]
        assert (call["id"], call["name"], call["title"], call["detached"]) == (
            "t1_1_1",
            "serve",
            "npm run dev",
            True,
        )
        assert call["running_s"] >= 0
        assert detail["session"]["background"] == 1
        assert (await stage.get("/v1/sessions"))["sessions"][0]["background"] == 1
        (running,) = (await stage.get("/v1/admin/running"))["sessions"]
        assert (running["background"], running["background_calls"]) == (1, ["serve: npm run dev"])

        # A stop that means turns says that none runs, and what does.
        spoken = await stage.post(f"{session}/messages", {"text": "/stop"})
        assert spoken["reply"] == "nothing is running but 1 in the background"

        async with stage.events(f"{session}/events") as events:
            assert (await events.until("output_so_far"))["text"] == "listening\n"
            receipt = await stage.post(f"{session}/interrupt", {"scope": "session"})
            assert receipt["status"] == "stopped"
            assert [(s["call_id"], s["status"]) for s in receipt["steps"]] == [
                ("t1_1_1", "stopped")
            ]
            ended = (await events.until("background_ended"))["event"]
            assert (ended["call_id"], ended["result"]["status"]) == ("t1_1_1", "stopped")
        detail = await stage.get(session)
        assert (detail["calls"], detail["session"]["turn"]) == ([], None)


async def test_it_is_stopped_alone_by_its_id(tmp_path: Path) -> None:
    async with serving(SCRIPT, tmp_path, tools=[serve]) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "go"})
        await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        receipt = await stage.post(f"{session}/calls/t1_1_1/interrupt")
        assert (receipt["status"], receipt["scope"]) == ("stopped", "call")
        receipt = await stage.post(f"{session}/calls/t1_1_1/interrupt")
        assert receipt["status"] == "too_late"


async def test_an_admin_stops_all_that_a_session_does(tmp_path: Path) -> None:
    async with serving(SCRIPT, tmp_path, tools=[serve]) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "go"})
        await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        assert (await stage.post("/v1/admin/stop", {}))["receipts"] == []
        (receipt,) = (await stage.post("/v1/admin/stop", {"scope": "session"}))["receipts"]
        assert [step["call_id"] for step in receipt["steps"]] == ["t1_1_1"]
        assert (await stage.get("/v1/admin/running"))["sessions"] == []
