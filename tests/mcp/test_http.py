"""Servers behind an address, of both eras."""

from __future__ import annotations

import time
from functools import partial

import anyio
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.contracts.tool import CallStatus
from bargein.mcp import McpServer
from tests.mcp.harness import house
from tests.mcp.http_server import http_server
from tests.mcp.test_stops import stopped
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(40)]

ERAS = pytest.mark.parametrize("stateless", [True, False], ids=["stateless", "handshake"])


@ERAS
async def test_calls_with_json_and_with_streams(stateless: bool) -> None:
    async with http_server(stateless) as server, house(server.configured()) as home:
        await home.prepare()
        assert text_of(await home.call("mcp__web__echo")) == "an answer"
        assert text_of(await home.call("mcp__web__stream")) == "streamed"
        assert home.desk().live == ["half (1 of 2)\n"]
        version = home.servers.status()[0].version
        assert version == ("2026-07-28" if stateless else "2025-11-25")
        assert all(each["MCP-Protocol-Version"] == version for each in server.headers[2:])


@ERAS
async def test_a_stop_closes_the_stream(stateless: bool) -> None:
    async with http_server(stateless) as server, house(server.configured()) as home:
        await home.prepare()
        result, took_s = await stopped(
            home, "mcp__web__hang", when=partial(until, lambda: "tools/call" in server.methods)
        )
        assert result.status is CallStatus.STOPPED
        assert took_s < 5
        assert result.stop is not None
        assert result.stop.told == "MCP server web told, may still be running"
        await until(lambda: server.closed == ["hang"])
        # The notice is for the older era; in the newer one the closed stream says it.
        notices = [message for method, message in server.seen if method.endswith("cancelled")]
        call = next(message for method, message in server.seen if method == "tools/call")
        told = [] if stateless else [{"requestId": call["id"]}]
        assert [each["params"] for each in notices] == told
        assert text_of(await home.call("mcp__web__echo")) == "an answer"


@ERAS
async def test_stops_disturb_no_other_call(stateless: bool) -> None:
    async with http_server(stateless) as server, house(server.configured()) as home:
        await home.prepare()
        results = []

        async def hang() -> None:
            results.append(await home.call("mcp__web__hang", session="other"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await until(lambda: "tools/call" in server.methods)
            for _ in range(20):
                result, _ = await stopped(home, "mcp__web__hang")
                assert result.status is CallStatus.STOPPED
            server.release.set()
        assert text_of(results[0]) == "released"


async def test_a_server_behind_an_address_is_never_restarted() -> None:
    """Its processes are not ours, and others have calls there."""
    async with http_server(False) as server, house(server.configured(on_stop="restart")) as home:
        await home.prepare()
        results = []

        async def hang() -> None:
            results.append(await home.call("mcp__web__hang", session="other"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await until(lambda: "tools/call" in server.methods)
            server.refuses_notices = True
            result, _ = await stopped(home, "mcp__web__hang")
            assert result.stop is not None
            told = "MCP server web told, does not respond, may still be running"
            assert result.stop.told == told
            server.release.set()
        assert text_of(results[0]) == "released"


async def test_headers_of_the_stateless_era() -> None:
    async with http_server(True) as server, house(server.configured()) as home:
        await home.prepare()
        await home.call("mcp__web__echo", {"where": "Zürich"})
        await home.call("mcp__web__echo", {"where": "here"})
        first, second = (
            headers
            for headers, method in zip(server.headers, server.methods, strict=True)
            if method == "tools/call"
        )
        assert first["Mcp-Method"] == "tools/call"
        assert first["Mcp-Name"] == "echo"
        assert first["Mcp-Param-Where"] == "=?base64?WsO8cmljaA==?="
        assert second["Mcp-Param-Where"] == "here"
        # A wrong annotation makes a tool unusable, and says so.
        assert "mcp__web__wrong" not in home.registry.names
        assert "wrong" in home.servers.status()[0].left_out[0]


async def test_a_question_on_the_stream_of_a_call_goes_to_its_session() -> None:
    async with http_server(False) as server, house(server.configured()) as home:
        await home.prepare()
        home.desk("asked").answer = lambda question: "yes"
        with CancelSource("hang") as source:
            async with anyio.create_task_group() as tasks:
                # Another session has a call under way.
                tasks.start_soon(partial(home.call, "mcp__web__hang", session="o", source=source))
                await until(lambda: "tools/call" in server.methods)
                result = await home.call("mcp__web__ask", session="asked")
                source.cancel(Cause.USER_STOP)
        assert text_of(result) == '{"action": "accept", "content": {"yes": true}}'
        assert home.desk("o").asked == []


async def test_a_lost_stream_is_resumed_and_the_call_not_sent_again() -> None:
    async with http_server(False) as server, house(server.configured()) as home:
        await home.prepare()
        assert text_of(await home.call("mcp__web__resume")) == "from the second stream"
        assert server.methods.count("tools/call") == 1
        assert len(server.resumed) == 1


@ERAS
async def test_a_lost_stream_leaves_the_outcome_unknown(stateless: bool) -> None:
    async with http_server(stateless) as server, house(server.configured()) as home:
        await home.prepare()
        result = await home.call("mcp__web__cut")
        assert result.status is CallStatus.UNKNOWN
        assert "the stream ended before the answer" in text_of(result)
        assert server.methods.count("tools/call") == 1


@ERAS
async def test_streams_that_are_too_much(stateless: bool) -> None:
    async with http_server(stateless) as server, house(server.configured()) as home:
        await home.prepare()
        assert (await home.call("mcp__web__huge")).status is CallStatus.UNKNOWN
        with CancelSource("flood") as source:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(home.call, "mcp__web__flood", source=source))
                await until(lambda: server.methods.count("tools/call") == 2)
                for _ in range(20):
                    assert text_of(await home.call("mcp__web__echo", session="o")) == "an answer"
                source.cancel(Cause.USER_STOP)
        assert (await home.call("mcp__web__html")).status is CallStatus.FAILED


async def test_a_session_that_the_server_forgot_begins_anew() -> None:
    async with http_server(False) as server, house(server.configured()) as home:
        await home.prepare()
        server.session = "session-2"
        result = await home.call("mcp__web__echo")
        assert result.status is CallStatus.FAILED
        assert "it has ended our session, and did not run this" in text_of(result)
        assert text_of(await home.call("mcp__web__echo")) == "an answer"
    assert server.ended_sessions == ["session-2"]


async def test_a_call_that_never_reached_the_server_did_not_happen() -> None:
    async with http_server(True) as server:
        made = server.configured()
        async with house(made) as home:
            await home.prepare()
            await server.stop()
            result = await home.call("mcp__web__echo")
            assert result.status is CallStatus.FAILED
            assert "cannot be reached" in text_of(result)


async def test_a_server_that_is_not_there() -> None:
    async with house(McpServer("gone", url="http://127.0.0.1:9/mcp")) as home:
        began = time.monotonic()
        await home.prepare()
        assert time.monotonic() - began < 5
        assert "cannot be reached" in home.servers.status()[0].error


async def test_redirects_are_not_followed() -> None:
    async with http_server(True, "/moved") as server, house(server.configured()) as home:
        await home.prepare()
        error = home.servers.status()[0].error
        assert "it redirects to https://elsewhere.example/mcp; give that address" in error


@pytest.mark.parametrize("token", ["", "wrong", "s3cret"])
async def test_bearer_tokens_come_from_a_variable(token: str) -> None:
    async with http_server(True, "/locked") as server:
        made = server.configured(bearer_token_env_var="MY_TOKEN")
        async with house(made, environment={"MY_TOKEN": token}) as home:
            await home.prepare()
            error = home.servers.status()[0].error
            wanted = {
                "": "MY_TOKEN is not set",
                "wrong": "refuses (HTTP 401) the token in MY_TOKEN",
                "s3cret": "let in",
            }
            assert wanted[token] in error
            assert not token or token not in error
