"""The Tasks extension: tasks are followed, stopped, resumed, and found after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from bargein import Agent, Engine
from bargein.calls.pipeline import invoke
from bargein.cancel import CancelSource, Cause
from bargein.contracts.event import CallNoted
from bargein.contracts.model import ToolCall, ToolMessage
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallResult, CallStatus
from bargein.mcp import McpServer
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.tools import Policy
from tests import programs
from tests.mcp.harness import SERVERS, House, house
from tests.session.world import CONFIG
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def tasks_server(folder: str | Path, **options: Any) -> McpServer:
    argv = ["-I", "-S", str(SERVERS / "tasks.py"), str(folder)]
    return McpServer("jobs", sys.executable, argv, **options)


def asked(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def change(folder: Path, task: str = "task-1", **values: Any) -> None:
    path = folder / f"{task}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


async def stopped(home: House, folder: Path, tool: str) -> CallResult:
    with CancelSource("call") as source:

        async def stop() -> None:
            await until(lambda: "tasks/get task-1" in asked(folder))
            source.cancel(Cause.USER_STOP)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            results = [await home.call(f"mcp__jobs__{tool}", source=source)]
        return results[0]


async def test_a_task_is_followed_to_its_end(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()
        assert text_of(await home.call("mcp__jobs__quick")) == "it is done"
        failed = await home.call("mcp__jobs__fails")
        assert failed.status is CallStatus.FAILED
        assert "it broke (-32603)" in text_of(failed)
        assert text_of(await home.call("mcp__jobs__plain")) == "no task"


async def test_what_a_task_asks_is_asked_once(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        home.desk().answer = lambda question: "Ann"
        await home.prepare()
        result = await home.call("mcp__jobs__asks")
        assert text_of(result) == '{"who": {"action": "accept", "content": {"name": "Ann"}}}'
        assert asked(tmp_path).count("tasks/update task-1") == 1


async def test_a_stop_cancels_the_task_and_the_status_confirms_it(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()
        result = await stopped(home, tmp_path, "slow")
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert result.stop.told == "MCP server jobs confirmed"
        assert result.stop.confirmed
        assert "tasks/cancel task-1" in asked(tmp_path)


async def test_a_task_that_works_on_was_told_and_may_still_be_running(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()
        result = await stopped(home, tmp_path, "stubborn")
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert result.stop.told == "MCP server jobs told, may still be running"
        assert not result.stop.confirmed


async def test_the_id_is_stored_before_the_first_poll(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()
        may_store = anyio.Event()
        notes: list[str] = []

        async def keep(note: str) -> None:
            notes.append(note)
            await may_store.wait()

        context = msgspec.structs.replace(home.context(), keep_note=keep)
        results: list[CallResult] = []

        async def call() -> None:
            wanted = ToolCall("c1", "mcp__jobs__quick", "{}")
            results.append(await invoke(home.registry, wanted, context))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: bool(notes))
            # The server answers what is asked now, behind any poll that was sent before.
            connection = home.servers.life_of("jobs").connection
            assert connection is not None
            await connection.ask("tools/list")
            assert asked(tmp_path)[-1] == "tools/list"
            may_store.set()
        assert json.loads(notes[0]) == {"server": "jobs", "task": "task-1"}
        assert text_of(results[0]) == "it is done"


async def test_an_id_that_cannot_be_stored_ends_the_task(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()

        async def keep(note: str) -> None:
            raise OSError("the disk is full")

        context = msgspec.structs.replace(home.context(), keep_note=keep)
        result = await invoke(home.registry, ToolCall("c1", "mcp__jobs__slow", "{}"), context)
        assert result.status is CallStatus.FAILED
        assert "tasks/cancel task-1" in asked(tmp_path)


async def test_a_lost_connection_ends_no_task(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()
        results: list[CallResult] = []

        async def call() -> None:
            results.append(await home.call("mcp__jobs__slow"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: "tasks/get task-1" in asked(tmp_path))
            (process,) = home.servers.status()[0].processes
            os.kill(int(process.split()[1]), signal.SIGKILL)
            change(tmp_path, status="completed", result={"content": [_text("after all")]})
        assert text_of(results[0]) == "after all"
        assert asked(tmp_path).count("tools/call") == 1


async def test_a_task_that_the_server_forgot_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with house(tasks_server(tmp_path)) as home:
        await home.prepare()
        results: list[CallResult] = []

        async def call() -> None:
            results.append(await home.call("mcp__jobs__slow"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: "tasks/get task-1" in asked(tmp_path))
            (tmp_path / "task-1.json").unlink()
        assert results[0].status is CallStatus.UNKNOWN
        assert "no such task" in text_of(results[0])


def _text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize("fate", ["running", "finished", "gone"])
async def test_after_a_crash_the_true_outcome_is_fetched(tmp_path: Path, fate: str) -> None:
    home, folder = tmp_path / "home", tmp_path / "tasks"
    folder.mkdir()
    around = {**os.environ, "PYTHONPATH": str(programs.ROOT)}
    argv = [sys.executable, "-m", "tests.mcp.crashing", str(home), str(folder)]
    with subprocess.Popen(argv, env=around, cwd=programs.ROOT) as running:  # noqa: ASYNC220
        try:
            with anyio.fail_after(30):
                await until(lambda: "tasks/get task-1" in asked(folder))
        finally:
            running.kill()
    if fate == "finished":
        change(folder, status="completed", result={"content": [_text("all 42 are built")]})
    elif fate == "gone":
        (folder / "task-1.json").unlink()
    model = ScriptedModel([[Say("I see")]])
    agent = Agent(model, mcp=[tasks_server(folder)], policy=Policy())
    async with Engine(agent, home=home, config=CONFIG) as engine:
        session = await engine.session("alice")
        events = [each.event for each in await session.events()]
        assert [each.call_id for each in events if isinstance(each, CallNoted)]
        await (await session.send("what became of it?")).result()
        (told,) = [each for each in model.requests[0].messages if isinstance(each, ToolMessage)]
        words = "".join(getattr(part, "text", "") for part in told.results[0].content)
        assert asked(folder).count("tools/call") == 1
        if fate == "running":
            assert "confirmed that its task is cancelled" in words
            assert "tasks/cancel task-1" in asked(folder)
        elif fate == "finished":
            assert "all 42 are built" in words
            assert "tasks/cancel task-1" not in asked(folder)
        else:
            assert "unknown" in words.lower()


async def test_a_stop_of_the_turn_cancels_the_task_and_the_receipt_says_so(tmp_path: Path) -> None:
    model = ScriptedModel([[Call("mcp__jobs__slow", {})], [Say("Done")]])
    agent = Agent(model, mcp=[tasks_server(tmp_path)], policy=Policy())
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        await session.send("go")
        await until(lambda: "tasks/get task-1" in asked(tmp_path))
        receipt = await session.interrupt()
        (step,) = [step for step in receipt.steps if step.kind is StepKind.TOOL]
        assert step.detail is not None
        assert step.detail.told == "MCP server jobs confirmed"
