"""Functions in their own process: killed whatever they do, and reported truthfully if they die."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bargein.contracts.tool import CallStatus
from bargein.models.script import Call, Expect, Say
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from bargein.tools import ToolRegistry
from bargein.tools.declaration import Tool
from tests.conftest import BACKENDS, Backend
from tests.process.keeper import PATIENT
from tests.tools import isolated
from tests.tools.bench_of_tools import Shop, open_shop
from tests.tools.conftest import set_ladder
from tests.tools.desk import Desk, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

TOOLS: tuple[Tool[..., Any], ...] = tuple(
    each for each in vars(isolated).values() if isinstance(each, Tool)
)


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


@pytest.fixture
async def shop(warm_loop: None, tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(tmp_path, more=TOOLS) as opened:
        yield opened


async def test_arguments_go_there_and_the_result_comes_back(shop: Shop, desk: Desk) -> None:
    result = await shop.use(desk, "add", points=[{"x": 1}, {"x": 2, "y": 3}], scale="2.5")
    assert result.status is CallStatus.FINISHED
    value = msgspec.json.decode(text_of(result))
    assert value["x"] == 7.5
    assert not shop.is_alive(value["pid"])
    assert "".join(desk.live) == "adding 2\n"


async def test_failures_and_deaths_are_told(shop: Shop, desk: Desk) -> None:
    result = await shop.use(desk, "divide", number=0)
    assert (result.status, text_of(result)) == (
        CallStatus.FAILED,
        "ZeroDivisionError: division by zero",
    )
    result = await shop.use(desk, "die")
    assert result.status is CallStatus.FAILED
    assert "ended without a result (ended by SIGKILL).\ndying" in text_of(result)
    result = await shop.use(desk, "read_input")
    assert text_of(result) == "''"


@pytest.mark.parametrize("name", ["catastrophic_pattern", "start_others"])
async def test_whatever_it_does_it_is_stopped(shop: Shop, desk: Desk, name: str) -> None:
    async def stop() -> None:
        await shop.file("pid")
        desk.stop()

    began_at = time.monotonic()
    result = await shop.use_and(desk, stop, name, folder=str(shop.folder))
    assert time.monotonic() - began_at < 40
    assert result.status is CallStatus.STOPPED
    assert result.stop is not None
    assert result.stop.confirmed
    assert len(result.stop.processes) >= (2 if name == "start_others" else 1)
    assert shop.alive() == []


async def test_it_may_stop_by_itself_when_its_token_says_so(
    shop: Shop, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_ladder(monkeypatch, PATIENT)

    async def stop() -> None:
        await shop.file("pid")
        desk.stop()

    result = await shop.use_and(desk, stop, "stop_politely", folder=str(shop.folder))
    assert result.status is CallStatus.STOPPED
    assert await shop.file("cleaned") == "yes"


def test_a_registry_without_processes_refuses_such_tools() -> None:
    with pytest.raises(ValueError, match="needs its own process"):
        ToolRegistry([isolated.add])


async def test_an_agent_needs_no_workspace_for_them(warm_loop: None, tmp_path: Path) -> None:
    model = ScriptedModel(
        [[Call("add", {"points": [{"x": 3}, {"x": 4}]})], [Expect(result='"x":7.0'), Say("Seven.")]]
    )
    agent = Agent(model=model, tools=[isolated.add])
    config = Config(tmp_path, ModelSettings(), {})
    async with Engine(agent, store="memory", config=config) as engine:
        assert [each.name for each in engine.tools] == ["add"]
        session = await engine.session("alice")
        sent = await session.send("Add three and four")
        assert str(await sent.result()) == "Seven."
    above = Agent(model=model, sub_agents={"adder": agent})
    async with Engine(above, store="memory", config=config) as engine:
        assert [each.name for each in engine.tools] == ["delegate"]


def test_functions_of_the_main_program_can_be_isolated_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, os\n"
        "from bargein.cancel import CancelSource, TaskOwner\n"
        "from bargein.contracts.model import ToolCall\n"
        "from bargein.contracts.tool import CallContext\n"
        "from bargein.process import open_containment\n"
        "from bargein.tools import invoke, nobody_to_ask, tool\n"
        "from bargein.tools.standard import open_tool_environment, standard_registry\n"
        "@tool(isolation='process')\n"
        "def double(number: int) -> int:\n"
        "    return 2 * number\n"
        "async def main():\n"
        "    async with await open_containment() as containment, TaskOwner():\n"
        "        tool_environment = open_tool_environment(containment, '.', os.environ)\n"
        "        registry = standard_registry(tool_environment, [double])\n"
        "        token = CancelSource('program').token\n"
        "        context = CallContext('c', 's', token, token, print, nobody_to_ask)\n"
        "        call = ToolCall('c', 'double', '{\"number\": 21}')\n"
        "        print((await invoke(registry, call, context)).content[0].text)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
