"""What `/mcp` shows, over the API: each principal's own servers, with their prompts."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from bargein import Agent, Engine
from bargein.client import Client
from bargein.models.script import Say
from bargein.models.scripted import ScriptedModel
from bargein.server.access import add_token
from tests.mcp.harness import bad_server, sdk_server
from tests.server.stage import START_TOKEN, gateway_over
from tests.session.world import CONFIG

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(40)]


async def test_servers_and_prompts_over_the_api(tmp_path: Path) -> None:
    model = ScriptedModel([[Say("One")]])
    agent = Agent(model, mcp=[sdk_server(), bad_server("dies")])
    async with (
        Engine(
            agent, store="memory", config=CONFIG, principal_of=lambda each: "operator"
        ) as engine,
        gateway_over(engine.core, tmp_path, mcp=engine) as (gateway, _, url),
        Client(url, token=START_TOKEN) as client,
    ):
        before = await client.mcp()
        assert [each.state for each in before.servers] == ["not started", "not started"]
        assert before.prompts == ()
        session = await client.new_session()
        await (await session.send("hello")).result()
        shown = await client.mcp()
        sdk, bad = shown.servers
        assert (sdk.name, sdk.state, sdk.version) == ("sdk", "ready", "2026-07-28")
        assert sdk.server == "sdk 1.2.3"
        assert "mcp__sdk__add" in sdk.tools
        assert "pid" in sdk.processes[0]
        assert (bad.state, bad.principal) == ("failed", "operator")
        assert "its process ended" in bad.error
        assert [each.usage() for each in shown.prompts] == ["/mcp__sdk__review what [tone]"]
        # The engine shows the same: there is one source.
        assert (await engine.mcp_overview()).servers == shown.servers

        text = await client.mcp_prompt("mcp__sdk__review", "it tone=dry")
        assert text == "Please review it in a dry tone."

        # Somebody else sees what there is, and nothing of another's processes.
        _, token = await add_token(gateway.db, "ann")
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.get(f"{url}/v1/mcp") as answer,
        ):
            theirs = await answer.json()
            assert {each["state"] for each in theirs["servers"]} == {"not started"}
            assert theirs["prompts"] == []
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{url}/v1/mcp/prompts/mcp__sdk__nothing", json={}) as answer,
        ):
            assert answer.status == 400
            assert "has no prompt" in (await answer.json())["detail"]
