"""What servers offer besides plain calls: images, progress, changed tools, prompts as commands of
the chat. The server is written with the official SDK."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from bargein import Agent, Engine
from bargein.cli.chat.commands import run_command
from bargein.cli.chat.talk import Talk
from bargein.contracts.model import Image, UserMessage
from bargein.mcp import McpServer
from bargein.models.script import Say
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import Config, load_config
from tests.cli.test_talk import HeardFace
from tests.mcp.harness import SERVERS, House, house, sdk_server
from tests.mcp.test_peers import served
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def ready(home: House) -> None:
    await home.prepare()
    await until(lambda: home.servers.status()[0].state == "ready")


async def test_images_and_progress() -> None:
    async with house(sdk_server()) as home:
        await ready(home)
        result = await home.call("mcp__sdk__picture")
        (image,) = [part for part in result.content if isinstance(part, Image)]
        assert image.media_type == "image/png"
        assert text_of(await home.call("mcp__sdk__steps", {"number": 3})) == "3 steps"
        assert any("step 0 (0 of 3)" in line for line in home.desk().live)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_changed_tools_are_heard(transport: str) -> None:
    if transport == "stdio":
        await _grows(sdk_server())
        return
    with served([sys.executable, str(SERVERS / "sdk.py"), "http"], "") as port:
        await _grows(McpServer("sdk", url=f"http://127.0.0.1:{port}/mcp"))


async def _grows(server: McpServer) -> None:
    async with house(server) as home:
        await ready(home)
        assert "mcp__sdk__grown" not in home.registry.names
        assert text_of(await home.call("mcp__sdk__grow")) == "there is one more"
        await until(lambda: "mcp__sdk__grown" in home.registry.names)
        assert text_of(await home.call("mcp__sdk__grown")) == "grown"


async def test_servers_and_prompts_in_the_chat(tmp_path: Path) -> None:
    face, model = HeardFace(), ScriptedModel([[Say("One")], [Say("Two")]])

    def open_engine(config: Config, on_notice: Callable[[str], object]) -> Engine:
        return Engine(Agent(model, mcp=[sdk_server()]), config=config, store="memory")

    talk = Talk(load_config({"BARGEIN_HOME": str(tmp_path)}), face, open_engine=open_engine)
    async with anyio.create_task_group() as group:
        group.start_soon(talk.run)
        await talk.ready.wait()
        await run_command(talk, "/mcp")
        assert face.told[-1] == "  sdk  not started"
        engine, session = talk.opened()
        await (await session.send("hello")).result()
        assert isinstance(engine, Engine)
        await until(lambda: engine.mcp_status()[0].state == "ready")
        await run_command(talk, "/mcp sdk")
        assert "  sdk  ready, sdk 1.2.3, MCP 2026-07-28" in face.told[-1]
        assert "    mcp__sdk__add" in face.told[-1]
        assert "process: pid" in face.told[-1]
        assert "/mcp__sdk__review what [tone]" in face.told[-1]
        await run_command(talk, "/mcp__sdk__review it tone=dry")
        await until(lambda: len(model.requests) == 2)
        said = model.requests[1].messages[-1]
        assert isinstance(said, UserMessage)
        assert "Please review it in a dry tone." in str(said)
        group.cancel_scope.cancel()
