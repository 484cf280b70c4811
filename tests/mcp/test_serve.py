"""`bargein mcp serve`: the agent as a tool. Its peers: the official SDK's client, ours, a pipe."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from bargein import Agent, Engine
from bargein.cancel import CancelSource, Cause
from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.contracts.tool import CallStatus, Question
from bargein.mcp import McpServer
from bargein.mcp_server.server import McpAgentServer
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.tools import Decision, Policy, Rule
from tests.mcp.harness import house
from tests.process import zoo
from tests.session.world import CONFIG
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROGRAM = [sys.executable, "-m", "bargein", "mcp", "serve"]
WITHIN_S = 30.0

SAYS = """
[[answers]]
steps = [{ do = "say", text = "It is done." }]
[[answers]]
steps = [{ do = "say", text = "And again." }]
"""

STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


def runs(seconds: str) -> str:
    """A script with a call that forks into a session of its own; its length makes it known."""
    command = f"setsid sleep {seconds} & touch begun; sleep {seconds}"
    return f"""
[[answers]]
steps = [{{ do = "call", name = "terminal", arguments = {{ command = "{command}" }} }}]
[[answers]]
steps = [{{ do = "say", text = "never" }}]
"""


def new_length() -> str:
    return f"600.{secrets.randbelow(10**9):09}"


def sleeping(seconds: str) -> int:
    """How many processes sleep for that long."""
    found = 0
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += each.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]
    return found


ASKS = """
[[answers]]
steps = [{ do = "call", name = "terminal", arguments = { command = "echo hello > made" } }]
[[answers]]
steps = [{ do = "say", text = "It is made." }]
"""


@pytest.fixture(scope="module", params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The server is a process of its own; which loop its peer uses makes no difference."""
    name: str = request.param
    return name


def environment(folder: Path, script: str, mark: str = "", mode: str = "full") -> dict[str, str]:
    (folder / "script.toml").write_text(script)
    settings = folder / ".config" / "bargein" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('approval.ask = ["terminal"]\n')
    marked = zoo.environment(mark) if mark else {}
    return {
        **{name: value for name, value in marked.items() if name.startswith(zoo.MARK)},
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / ".config"),
        "BARGEIN_HOME": str(folder / "data"),
        "BARGEIN_MODEL": f"scripted:{folder / 'script.toml'}",
        "BARGEIN_MODE": mode,
    }


@asynccontextmanager
async def sdk_client(folder: Path, around: dict[str, str], **options: Any) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=PROGRAM[0], args=PROGRAM[1:], env=around, cwd=str(folder)
    )
    async with Client(parameters, **options) as client:
        yield client


def ours(folder: Path, around: dict[str, str]) -> McpServer:
    return McpServer("inner", PROGRAM[0], PROGRAM[1:], env=around, cwd=str(folder))


def words_of(result: mcp_types.CallToolResult) -> str:
    return "".join(getattr(each, "text", "") for each in result.content)


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_the_sdks_client_delegates_and_continues(tmp_path: Path, era: str) -> None:
    told: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with sdk_client(tmp_path, environment(tmp_path, SAYS), mode=era) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "agent"
        result = await client.call_tool("agent", {"task": "do it"}, progress_callback=note)
        assert not result.is_error
        assert words_of(result) == "It is done."
        assert result.structured_content is not None
        assert told
        session = result.structured_content["session"]
        again = await client.call_tool("agent", {"task": "more", "session": session})
        assert words_of(again) == "And again."
        wrong = await client.call_tool("agent", {"task": "more", "session": "alice"})
        assert wrong.is_error
        assert "there is no session 'alice'" in words_of(wrong)
        assert (await client.call_tool("agent", {})).is_error


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_cancel_of_the_sdks_client_stops_the_turn_for_real(
    tmp_path: Path, era: str
) -> None:
    mark, length = zoo.new_mark(), new_length()
    async with sdk_client(tmp_path, environment(tmp_path, runs(length), mark), mode=era) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    await until((tmp_path / "begun").exists)
                    await until(lambda: sleeping(length) == 2)
                    scope.cancel()

                tasks.start_soon(stop)
                await client.call_tool("agent", {"task": "run it"})
        assert scope.cancelled_caught
        with anyio.fail_after(WITHIN_S):
            await until(lambda: sleeping(length) == 0)
        # The server goes on.
        assert (await client.list_tools()).tools
    await until(lambda: zoo.alive(mark) == [])


async def test_our_client_stops_it_and_the_agents_processes_end(tmp_path: Path) -> None:
    length = new_length()
    server = ours(tmp_path, environment(tmp_path, runs(length)))
    async with house(server, folder=tmp_path) as home:
        await home.prepare()
        with CancelSource("call") as source:

            async def stop() -> None:
                await until(lambda: sleeping(length) == 2)
                source.cancel(Cause.USER_STOP)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                result = await home.call("mcp__inner__agent", {"task": "run it"}, source=source)
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert result.stop.told == "MCP server inner told, may still be running"
        with anyio.fail_after(WITHIN_S):
            await until(lambda: sleeping(length) == 0)


@pytest.mark.parametrize("answer", ["allow", "deny"])
async def test_an_approval_is_asked_of_our_clients_user(tmp_path: Path, answer: str) -> None:
    server = ours(tmp_path, environment(tmp_path, ASKS, mode="ask"))
    async with house(server, folder=tmp_path) as home:
        asked: list[Question] = []

        def reply(question: Question) -> str:
            asked.append(question)
            return answer

        home.desk().answer = reply
        await home.prepare()
        result = await home.call("mcp__inner__agent", {"task": "make it"})
        assert text_of(result) == "It is made."
        assert "echo hello > made" in asked[0].text
        assert asked[0].choices == ("allow", "session", "deny", "decline")
        assert (tmp_path / "made").exists() == (answer == "allow")


async def test_an_approval_is_asked_of_the_sdks_client_in_the_older_era(tmp_path: Path) -> None:
    async def allow(context: Any, params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"answer": "allow"})

    around = environment(tmp_path, ASKS, mode="ask")
    async with sdk_client(tmp_path, around, mode="legacy", elicitation_callback=allow) as client:
        result = await client.call_tool("agent", {"task": "make it"})
        assert words_of(result) == "It is made."
        assert (tmp_path / "made").exists()


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_client_that_cannot_be_asked_gets_an_error_that_names_the_question(
    tmp_path: Path, era: str
) -> None:
    around = environment(tmp_path, ASKS, mode="ask")
    async with sdk_client(tmp_path, around, mode=era) as client:
        result = await client.call_tool("agent", {"task": "make it"})
        assert result.is_error
        assert "echo hello > made" in words_of(result)
        assert "no elicitation" in words_of(result)
        assert not (tmp_path / "made").exists()


def begin(folder: Path, around: dict[str, str]) -> subprocess.Popen[bytes]:
    served = subprocess.Popen(
        PROGRAM,
        cwd=folder,
        env=around,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw"}}
    say(served, {"id": 1, "method": "initialize", "params": hello})
    assert heard(served)["result"]["protocolVersion"] == "2025-11-25"
    return served


def say(served: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert served.stdin is not None
    served.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    served.stdin.flush()


def heard(served: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert served.stdout is not None
    return dict(json.loads(served.stdout.readline()))


@pytest.mark.parametrize("end", ["eof", "term", "unread"])
async def test_the_end_of_the_client_stops_everything(tmp_path: Path, end: str) -> None:
    mark, length = zoo.new_mark(), new_length()
    served = begin(tmp_path, environment(tmp_path, runs(length), mark))
    assert served.stdin is not None
    assert served.stdout is not None
    assert served.stderr is not None
    try:
        call = {"name": "agent", "arguments": {"task": "run it"}, "_meta": {"progressToken": 1}}
        say(served, {"id": 2, "method": "tools/call", "params": call})
        await until(lambda: sleeping(length) == 2)
        if end == "eof":
            served.stdin.close()
        elif end == "term":
            served.send_signal(signal.SIGTERM)
        else:
            served.stdout.close()
            # It learns that nobody reads when it next writes.
            say(served, {"id": 3, "method": "ping"})
        with anyio.fail_after(WITHIN_S):
            await anyio.to_thread.run_sync(served.wait)
        assert sleeping(length) == 0
        assert zoo.alive(mark) == []
        assert served.returncode in (0, 130), served.stderr.read().decode()
    finally:
        served.kill()
        served.wait()
        for stream in (served.stdin, served.stdout, served.stderr):
            stream.close()


async def test_what_is_no_request_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    served = begin(tmp_path, environment(tmp_path, SAYS))
    assert served.stdin is not None
    assert served.stdout is not None
    assert served.stderr is not None
    try:
        served.stdin.write(b"junk\n")
        served.stdin.flush()
        assert heard(served)["error"]["code"] == -32700
        say(served, {"id": 2, "method": "no/such"})
        assert heard(served)["error"]["code"] == -32601
        say(served, {"id": 3, "method": "tools/call", "params": {"name": "other"}})
        assert "there is agent" in heard(served)["error"]["message"]
        meta = {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}
        say(served, {"id": 4, "method": "server/discover", "params": {"_meta": meta}})
        assert "2026-07-28" in heard(served)["error"]["data"]["supported"]
        say(served, {"id": 5, "method": "ping"})
        assert heard(served)["result"] == {}
    finally:
        served.kill()
        served.wait()
        for stream in (served.stdin, served.stdout, served.stderr):
            stream.close()


async def test_in_the_stateless_era_an_answer_names_its_question_and_counts_once(
    tmp_path: Path,
) -> None:
    served = begin(tmp_path, environment(tmp_path, ASKS, mode="ask"))
    assert served.stdin is not None
    assert served.stdout is not None
    assert served.stderr is not None
    try:
        call = {"name": "agent", "arguments": {"task": "make it"}, "_meta": STATELESS}
        say(served, {"id": 2, "method": "tools/call", "params": call})
        answer = heard(served)["result"]
        assert answer["resultType"] == "input_required"
        state = answer["requestState"]
        given = {"answer": {"action": "accept", "content": {"answer": "allow"}}}
        wrong = {**call, "requestState": "guess", "inputResponses": given}
        say(served, {"id": 3, "method": "tools/call", "params": wrong})
        assert heard(served)["result"]["isError"]
        right = {**call, "requestState": state, "inputResponses": given}
        say(served, {"id": 4, "method": "tools/call", "params": right})
        assert heard(served)["result"]["structuredContent"]["text"] == "It is made."
        # An answer counts once.
        say(served, {"id": 5, "method": "tools/call", "params": right})
        assert heard(served)["result"]["isError"]
        assert (tmp_path / "made").read_text() == "hello\n"
    finally:
        served.kill()
        served.wait()
        for stream in (served.stdin, served.stdout, served.stderr):
            stream.close()


async def test_a_turn_whose_client_does_not_come_back_with_an_answer_is_stopped() -> None:
    model = ScriptedModel([[Call("terminal", {"command": "touch made"})], [Say("Done")]])
    agent = Agent(model, workspace=".", policy=Policy((Rule(Decision.ASK),)))
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        sent: list[dict[str, Any]] = []
        server = McpAgentServer(
            lambda name: engine.session("mcp-1"),
            lambda body, droppable: sent.append(json.loads(body)),
            version="1",
            about="",
            answer_s=0.2,
        )
        put, lines = anyio.create_memory_object_stream[bytes](8)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, lines)
            call = {"name": "agent", "arguments": {"task": "make it"}, "_meta": STATELESS}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            await put.send(json.dumps(message).encode())
            session = await engine.session("mcp-1")
            await until(lambda: bool(sent))
            assert sent[0]["result"]["resultType"] == "input_required"
            await session.settled()
            assert await session.questions() == ()
            settled = [each.event for each in await session.events()][-1]
            assert isinstance(settled, TurnSettled)
            assert settled.outcome is TurnOutcome.STOPPED
            put.close()
        lines.close()
