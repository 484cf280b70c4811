"""MCP servers under an engine: `Agent(mcp=[...])`, approvals, receipts, sub-agents."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from bargein import Agent, Engine, McpServer, Session
from bargein.contracts.model import ToolMessage
from bargein.contracts.receipt import ReceiptStatus, StepKind
from bargein.contracts.tool import CallStatus, OpenQuestion, QuestionKind
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.tools import Policy
from tests.mcp.harness import bad_server, sdk_server
from tests.process import zoo
from tests.session.world import CONFIG, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(40)]


def marked(server: McpServer, mark: str) -> McpServer:
    from dataclasses import replace

    return replace(server, env=zoo.environment(mark))


def told(model: ScriptedModel) -> str:
    """What the model was given as the result of its last call."""
    message = model.requests[-1].messages[-1]
    assert isinstance(message, ToolMessage)
    return "".join(getattr(part, "text", "") for part in message.results[0].content)


async def asked(session: Session) -> OpenQuestion:
    while not (found := await session.questions()):
        await anyio.lowlevel.checkpoint()
    return found[0]


async def test_a_call_from_the_first_turn_on() -> None:
    model = ScriptedModel([[Call("mcp__bad__echo", {"text": "42"})], [Say("Done")]])
    agent = Agent(model, mcp=[bad_server("modern")], policy=Policy())
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        assert [each.state for each in engine.mcp_status()] == ["not started"]
        session = await engine.session("alice")
        sent = await session.send("say it")
        assert (await sent.result()).text == "Done"
        assert told(model) == "42"
        offered = {each.name for each in model.requests[0].tools}
        assert "mcp__bad__echo" in offered
        assert [each.state for each in engine.mcp_status()] == ["ready"]


async def test_a_stop_of_the_turn_has_a_receipt_that_says_what_is_known() -> None:
    mark = zoo.new_mark()
    model = ScriptedModel([[Call("mcp__bad__hang", {})], [Say("Done")]])
    agent = Agent(model, mcp=[marked(bad_server("plain"), mark)], policy=Policy())
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        await session.send("go")
        await until(lambda: _has_a_call(engine))
        receipt = await session.interrupt()
        assert receipt.status is ReceiptStatus.STOPPED
        (step,) = [step for step in receipt.steps if step.kind is StepKind.TOOL]
        assert step.status is CallStatus.STOPPED
        assert "MCP server bad told, may still be running" in step.summary
        assert step.detail is not None
        assert step.detail.told == "MCP server bad told, may still be running"
        # The server is left alone.
        assert zoo.alive(mark)
    assert zoo.alive(mark) == []


def _has_a_call(engine: Engine) -> bool:
    connection = engine._mcp[0].life_of("bad").connection
    return connection is not None and any(each.label for each in connection._open.values())


async def test_calls_of_servers_are_asked_about() -> None:
    model = ScriptedModel([[Call("mcp__sdk__add", {"a": 1, "b": 2})], [Say("Done")]])
    agent = Agent(model, mcp=[sdk_server()])
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        sent = await session.send("add them")
        question = await asked(session)
        assert question.question.kind is QuestionKind.APPROVAL
        assert "a: 1" in question.question.detail
        await session.answer(question.id, "deny")
        await sent.result()
        assert "The user did not allow this call" in told(model)


async def test_a_server_asks_the_user() -> None:
    model = ScriptedModel([[Call("mcp__bad__ask", {})], [Say("Done")]])
    agent = Agent(model, mcp=[bad_server("modern")], policy=Policy())
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        sent = await session.send("ask me")
        question = await asked(session)
        assert "The MCP server bad asks: What is your name?" in question.question.text
        await session.answer(question.id, "Ann")
        await sent.result()
        assert told(model) == '[{"q": {"action": "accept", "content": {"name": "Ann"}}}, "opaque"]'


async def test_a_stop_while_a_server_asks_ends_the_question() -> None:
    model = ScriptedModel([[Call("mcp__bad__ask", {})], [Say("Done")]])
    agent = Agent(model, mcp=[bad_server("plain")], policy=Policy())
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        await session.send("ask me")
        await asked(session)
        receipt = await session.interrupt()
        (step,) = [step for step in receipt.steps if step.kind is StepKind.TOOL]
        assert step.status is CallStatus.STOPPED
        assert await session.questions() == ()
        assert [each.state for each in engine.mcp_status()] == ["ready"]


async def test_a_dead_server_holds_up_no_turn(tmp_path: Path) -> None:
    model = ScriptedModel([[Say("One")], [Say("Two")]])
    servers = [bad_server("dies"), McpServer("gone", url="http://127.0.0.1:9/mcp")]
    agent, told = Agent(model, mcp=servers), list[str]()
    async with Engine(agent, store="memory", config=CONFIG, on_notice=told.append) as engine:
        session = await engine.session("alice")
        assert (await (await session.send("hello")).result()).text == "One"
        assert {each.state for each in engine.mcp_status()} == {"failed"}
        assert (await (await session.send("again")).result()).text == "Two"
    # The user is told, once.
    assert sorted(told) == [
        "MCP server bad cannot be used; /mcp says why",
        "MCP server gone cannot be used; /mcp says why",
    ]


async def test_a_stop_while_servers_start_kills_them() -> None:
    mark = zoo.new_mark()
    model = ScriptedModel([[Say("One")]])
    agent = Agent(model, mcp=[marked(bad_server("silent"), mark)])
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        await session.send("hello")
        await until(lambda: bool(zoo.alive(mark)))
        receipt = await session.interrupt()
        assert receipt.status is ReceiptStatus.STOPPED
        await until(lambda: zoo.alive(mark) == [])


async def test_sub_agents_use_their_parents_servers() -> None:
    model = ScriptedModel(
        [
            [Call("delegate", {"tasks": [{"task": "add", "tools": ["mcp__sdk__add"]}]})],
            [Call("mcp__sdk__add", {"a": 3, "b": 4})],
            [Say("It is 7")],
            [Say("Done")],
        ]
    )
    agent = Agent(model, mcp=[sdk_server()], policy=Policy(), sub_agents={})
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        await (await session.send("have it added")).result()
        assert [each.name for each in model.requests[1].tools] == ["mcp__sdk__add"]
        assert "It is 7" in told(model)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a b", "command": "x"}, "name"),
        ({"name": "a__b", "command": "x"}, "name"),
        ({"name": "a"}, "a command or a url"),
        ({"name": "a", "command": "x", "url": "http://x"}, "a command or a url"),
        ({"name": "a", "url": "ftp://x"}, "https://"),
        ({"name": "a", "command": "x", "headers": {"A": "b"}}, "takes none"),
        ({"name": "a", "command": "x", "tool_timeout_s": 0}, "tool_timeout_s"),
        ({"name": "a", "command": "x", "on_stop": "kill"}, "on_stop"),
        ({"name": "a", "url": "http://x", "headers": {"A": "b\nc"}}, "header"),
    ],
)
def test_wrong_settings_fail_where_they_are_written(wrong: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        McpServer(**wrong)  # type: ignore[arg-type]


def test_wrong_servers_of_an_agent() -> None:
    with pytest.raises((TypeError, ValueError), match="mcp"):
        Agent(mcp=["uvx mcp-server-time"])  # type: ignore[list-item]
    with pytest.raises((TypeError, ValueError), match="two servers"):
        Agent(mcp=[McpServer("a", "x"), McpServer("a", "y")])
