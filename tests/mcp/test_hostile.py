"""Servers that do what they must not: bounded, reported, and no other session notices."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.contracts.tool import CallResult, CallStatus
from bargein.mcp import McpServer, wire
from bargein.mcp.life import ServerState
from bargein.mcp.results import call_result
from bargein.mcp.servers import McpServers
from tests.mcp.harness import SERVERS, House, bad_server, house
from tests.process import zoo
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def echoes(home: House, server: str = "bad", session: str = "other") -> bool:
    result = await home.call(f"mcp__{server}__echo", {"text": "here"}, session=session)
    return text_of(result) == "here"


def oddities(home: House, server: str = "bad") -> str:
    return next(each.oddities for each in home.servers.status() if each.name == server)


async def test_junk_is_counted_and_passed_over() -> None:
    async with house(bad_server("noisy")) as home:
        await home.prepare()
        assert text_of(await home.call("mcp__bad__junk")) == "after the junk"
        assert "lines that are no messages" in oddities(home)


async def test_an_answer_of_100_mb_fails_its_call_at_once_and_no_other() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        result = await home.call("mcp__bad__huge")
        assert result.status is CallStatus.UNKNOWN
        assert "longer than 16 MiB" in text_of(result)
        assert "messages that were too large" in oddities(home)
        assert await echoes(home)


async def test_an_answer_of_five_million_values_holds_up_nobody() -> None:
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began = time.monotonic()
            await anyio.sleep(0.001)
            longest_s = max(longest_s, time.monotonic() - began)

    async with house(bad_server("plain")) as home, anyio.create_task_group() as tasks:
        await home.prepare()
        tasks.start_soon(watch)
        result = await home.call("mcp__bad__crowd")
        assert result.status is CallStatus.UNKNOWN
        assert "more than 100,000 values" in text_of(result)
        assert await echoes(home)
        tasks.cancel_scope.cancel()
    # Reading it takes three seconds; the rest is for a busy machine.
    assert longest_s < 1.5


@pytest.mark.parametrize(
    ("value", "too_much"),
    [
        ("x, [{\\" * 100_000, False),
        ([["\\", '"', '\\"', "a"]] * 15_000, False),
        ([1] * 99_000, False),
        ([1] * 101_000, True),
        ([[]] * 101_000, True),
        ({str(each): None for each in range(101_000)}, True),
        (["x"] * 101_000, True),
    ],
)
def test_values_are_counted_outside_of_texts(value: object, too_much: bool) -> None:
    data = json.dumps(value).encode()
    assert len(data) > 100_000
    assert wire.holds_too_much(data) is too_much


async def test_two_answers_and_answers_to_nobody() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        result = await home.call("mcp__bad__twice")
        assert text_of(result).startswith("answer to ")
        assert await echoes(home)


async def test_a_flood_of_progress_slows_no_other_server() -> None:
    async with house(bad_server("plain"), bad_server("plain", "calm")) as home:
        await home.prepare()
        with CancelSource("call") as source:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(home.call, "mcp__bad__flood", source=source))
                await until(lambda: home.desk().live)
                for _ in range(50):
                    assert await echoes(home, "calm")
                # ProgressNote is shown now and then, not each piece.
                shown = len(home.desk().live)
                began = time.monotonic()
                await anyio.sleep(0.5)
                more = len(home.desk().live) - shown
                assert more <= 2 + (time.monotonic() - began) / 0.1
                source.cancel(Cause.USER_STOP)
            live = len(home.desk().live)
            assert await echoes(home, "calm")
            # The flood goes on; nobody is shown it.
            assert len(home.desk().live) == live


@pytest.mark.parametrize("tool", ["flood", "flood_pings"])
async def test_a_flood_takes_a_part_of_the_time(tool: str) -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        with CancelSource("call") as source:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(home.call, f"mcp__bad__{tool}", source=source))
                await anyio.sleep(0.2)
                began, used = time.monotonic(), time.thread_time()
                await anyio.sleep(1)
                share = (time.thread_time() - used) / (time.monotonic() - began)
                source.cancel(Cause.USER_STOP)
    # A fifth at most; without a limit it was half of a busy core.
    assert share < 0.35


async def test_a_server_that_dies_in_a_call_leaves_its_outcome_unknown() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        other: list[CallResult] = []

        async def hang() -> None:
            other.append(await home.call("mcp__bad__hang", session="other"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await until(lambda: home.servers.life_of("bad").connection._open)  # type: ignore[union-attr]
            result = await home.call("mcp__bad__die")
        for each in (result, other[0]):
            assert each.status is CallStatus.UNKNOWN
            assert "exit 3" in text_of(each)
            assert "last words" in text_of(each)
        # It is started again when it is needed, and nothing is sent twice.
        assert text_of(await home.call("mcp__bad__count")) == "1"


async def test_tools_that_change_during_a_call() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        with CancelSource("call") as source:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(home.call, "mcp__bad__change", source=source))
                await until(lambda: "mcp__bad__changed" in home.registry.names)
                assert "mcp__bad__hang" not in home.registry.names
                refused = await home.call("mcp__bad__hang", session="other")
                assert refused.status is CallStatus.NOT_STARTED
                assert await echoes(home)
                source.cancel(Cause.USER_STOP)


@pytest.mark.parametrize("kind", ["plain", "code_32000", "silent_probe", "dies_of_probe"])
async def test_the_era_does_not_depend_on_one_error_code(kind: str) -> None:
    async with house(bad_server(kind)) as home:
        await home.prepare()
        assert await echoes(home)
        assert home.servers.status()[0].version == "2025-06-18"


async def test_the_stateless_era() -> None:
    async with house(bad_server("modern")) as home:
        await home.prepare()
        assert await echoes(home)
        assert home.servers.status()[0].version == "2026-07-28"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("dies", "cannot read the configuration"),
        ("wrong_version", "1999-01-01"),
        ("modern_no_version", "no version of MCP fits"),
    ],
)
async def test_a_server_that_cannot_be_used_says_why(kind: str, why: str) -> None:
    async with house(bad_server(kind), bad_server("plain", "good")) as home:
        await home.prepare()
        status = {each.name: each for each in home.servers.status()}
        assert status["bad"].state == ServerState.FAILED
        assert why in status["bad"].error
        assert await echoes(home, "good")


async def test_a_command_that_is_not_there() -> None:
    async with house(McpServer("missing", "no-such-program"), bad_server("plain")) as home:
        await home.prepare()
        status = home.servers.status()[0]
        assert status.state == ServerState.FAILED
        assert "cannot be started" in status.error
        assert await echoes(home)


async def test_a_silent_server_has_its_time_limit_and_is_waited_for_once() -> None:
    mark = zoo.new_mark()
    async with house(bad_server("silent", startup_timeout_s=0.5), mark=mark) as home:
        await home.prepare()
        status = home.servers.status()[0]
        assert "did not start within 0.5 s" in status.error
        assert zoo.alive(mark) == []
        # The next turn does not wait for it.
        began = time.monotonic()
        await home.prepare("second")
        assert time.monotonic() - began < 0.4


async def test_a_server_that_starts_slowly_is_waited_for_by_one_turn() -> None:
    told: list[str] = []
    async with house(bad_server("silent"), bad_server("plain", "good"), turn_waits_s=0.3) as home:
        home.servers.on_notice = told.append
        await home.prepare()
        assert await echoes(home, "good")
        began = time.monotonic()
        await home.prepare("second")
        assert time.monotonic() - began < 0.25
    assert told == ["MCP server bad is still starting; its tools come later"]


async def test_odd_tools_are_renamed_or_left_out() -> None:
    async with house(bad_server("odd_tools")) as home:
        await home.prepare()
        names = home.registry.names
        assert "mcp__bad__dots_and_spaces_and_more" in names
        assert all(len(name) <= 64 for name in names)
        assert len(set(names)) == len(names)
        assert len([name for name in names if "xxxx" in name]) == 2
        left_out = " ".join(home.servers.status()[0].left_out)
        assert "no_schema" in left_out
        assert "big" in left_out


async def test_pages_without_end() -> None:
    async with house(bad_server("endless_pages")) as home:
        await home.prepare()
        assert 1 < len(home.registry.names) <= 64


async def test_annotations_skip_no_approval() -> None:
    from bargein.tools import DEFAULT_POLICY

    async with house(bad_server("odd_tools"), policy=DEFAULT_POLICY) as home:
        await home.prepare()
        home.desk().answer = lambda question: "deny"
        result = await home.call("mcp__bad__read", {"a": 1})
        assert result.status is CallStatus.NOT_STARTED
        question = home.desk().asked[0]
        assert "an MCP server does it" in question.text
        assert question.grant is not None
        assert str(question.grant) == "mcp__bad__read"


async def test_a_server_gets_little_of_the_environment() -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", "OPENAI_API_KEY": "k", "FOO": "1"}
    async with house(bad_server("plain", env={"OWN": "2"}), environment=environment) as home:
        await home.prepare()
        seen = json.loads(text_of(await home.call("mcp__bad__environment")))
        assert seen["OWN"] == "2"
        assert seen["PATH"] == "/usr/bin:/bin"
        assert not {"OPENAI_API_KEY", "FOO"} & set(seen)


async def test_principals_do_not_share_a_process() -> None:
    async with house(bad_server("plain"), principal_of=lambda session: session[0]) as home:
        for session in ("a1", "a2", "b1"):
            await home.prepare(session)
        for session in ("a1", "a2", "b1"):
            await home.call("mcp__bad__echo", session=session)
        counts = [
            text_of(await home.call("mcp__bad__count", session=each)) for each in ("a1", "b1")
        ]
        assert counts == ["3", "2"]


async def test_what_a_server_says_of_itself_cannot_command_a_terminal() -> None:
    async with house(bad_server("ugly")) as home:
        await home.prepare()
        shown = home.servers.status()[0].server
        assert shown.startswith("<U+001B>[2J<U+202E>xxx")
        assert len(shown) < 300
        result = await home.call("mcp__bad__die")
        assert "<U+001B>]0;title" in text_of(result)
        assert "\x1b" not in text_of(result)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "resource_link", "uri": "x" * (1 << 20), "name": "\x1b[2J"},
        {"type": "resource", "resource": {"uri": "x" * (1 << 20), "text": "t"}},
        {"type": "resource", "resource": {"uri": "u", "mimeType": "x" * (1 << 20), "blob": ""}},
        {"type": "audio", "mimeType": "x" * (1 << 20)},
        {"type": "image", "mimeType": "x" * (1 << 20), "data": ""},
        {"type": "x" * (1 << 20)},
    ],
)
def test_every_part_of_a_result_is_bounded(block: dict[str, object]) -> None:
    text = text_of(call_result({"content": [block]}))
    assert len(text) < 5000
    assert "\x1b" not in text


async def test_all_processes_of_a_server_are_shown_without_their_arguments() -> None:
    argv = [sys.executable, "-I", "-S", str(SERVERS / "bad.py"), "plain", "s3cret"]
    wrapped = McpServer("bad", "sh", ["-c", '"$@"; exit 0', "wrapper", *argv])
    async with house(wrapped) as home:
        await home.prepare()
        shown = home.servers.status()[0].processes
        assert [each.split("(")[1][:-1] for each in shown] == ["sh", Path(sys.executable).name]
        assert "s3cret" not in str(shown)


def test_the_address_that_is_shown_has_no_key() -> None:
    server = McpServer("web", url="https://me:s3cret@example.com/mcp?key=s3cret")
    servers = McpServers([server], containment=None, folder="/", environment={})
    assert servers.status()[0].transport == "https://example.com/mcp"
