"""The model server of InterruptBench: plays its script, judges transcripts, sees who goes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from bench.interruptbench.connection import Request, ServerTalk
from bench.interruptbench.script import (
    Call,
    Message,
    Script,
    Step,
    find_script,
    mark,
    transcript_problems,
    words_of,
)
from bench.interruptbench.stage import Stage

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator[tuple[Stage, aiohttp.ClientSession]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.interruptbench.server"]
    server = ServerTalk(command, environment, folder / "log")
    await server.start()
    try:
        await server.until(lambda: server.port or None, 40, "the server")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:
            yield Stage(server, folder, 1), client
    finally:
        await server.end()


def body(script: str, *, stream: bool = True) -> dict[str, object]:
    return {"stream": stream, "messages": [{"role": "user", "content": f"Do {mark(script)}"}]}


async def test_a_script_is_streamed_part_by_part(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as (stage, client):
        await stage.learn(Script("a", (Step(parts=3, pace_s=0.05),)))
        async with client.post("/v1/chat/completions", json=body("a")) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data: {")]
        parts = [msgspec.json.decode(line[6:])["choices"][0] for line in lines]
        said = [part["delta"].get("content") for part in parts]
        assert said == ["word0 ", "word1 ", "done-a", None]
        assert parts[-1]["finish_reason"] == "stop"
        request = await over(stage, "a")
        assert request.finished_at is not None
        assert request.first_part_at is not None
        # Each part is due so long after the beginning, not after the part before.
        assert request.at <= request.first_part_at <= request.finished_at
        assert request.finished_at - request.at >= 0.1


async def test_calls_are_made_also_without_a_stream_and_then_the_next_step_answers(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path) as (stage, client):
        calls = (Call("look", {"at": "x"}), Call("look", {"at": "y"}))
        await stage.learn(Script("a", (Step(calls=calls), Step())))
        asked = body("a", stream=False)
        async with client.post("/v1/chat/completions", json=asked) as answer:
            message = (await answer.json())["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["look", "look"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "LATE-x"}
            for call in message["tool_calls"]
        ]
        asked["messages"] = [*body("a")["messages"], message, *results]  # type: ignore[misc]
        async with client.post("/v1/chat/completions", json=asked) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == "done-a"
        second = await stage.request("a", step=1)
        assert [each.step for each in stage.server.of("a")] == [0, 1]
        assert second.words == ["@@a@@", "LATE-x"]


@pytest.mark.parametrize("silence", ["before_headers_s", "after_headers_s"])
async def test_it_sees_when_a_client_goes_though_nothing_is_said(
    tmp_path: Path, silence: str
) -> None:
    async with open_stage(tmp_path) as (stage, client):
        await stage.learn(Script("a", (msgspec.convert({silence: 30}, Step),)))
        asking = asyncio.ensure_future(_read(client, body("a")))
        request = await stage.request("a")
        left_at = time.monotonic()
        asking.cancel()
        await stage.server.until(lambda: request.gone_at, 25, "the end of the connection")
        assert request.gone_at is not None
        assert left_at <= request.gone_at < left_at + 25  # it would have been silent for 30
        assert request.finished_at is None


async def _read(client: aiohttp.ClientSession, asked: dict[str, object]) -> None:
    async with client.post("/v1/chat/completions", json=asked) as answer:
        await answer.read()


async def test_a_strict_script_refuses_a_call_without_result(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as (stage, client):
        await stage.learn(Script("a", (Step(),), strict=True))
        call = {"id": "c1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
        broken = [{"role": "assistant", "tool_calls": [call]}, *body("a")["messages"]]  # type: ignore[misc]
        async with client.post("/v1/chat/completions", json={"messages": broken}) as answer:
            assert answer.status == 400
            assert "has no result" in (await answer.json())["error"]["message"]
        assert (await over(stage, "a")).problems == ["call 'c1' has no result"]


async def over(stage: Stage, script: str) -> Request:
    request = await stage.request(script)
    await stage.server.until(lambda: request.over_at, 30, "the end of the answer")
    return request


def calling(*ids: str) -> Message:
    return Message("assistant", tool_calls=[{"id": each} for each in ids])


def result(call: str, text: str = "") -> Message:
    return Message("tool", text, tool_call_id=call)


USER = Message("user", "hello")


@pytest.mark.parametrize(
    ("messages", "problems"),
    [
        ([USER, calling("a", "b"), result("b"), result("a"), USER], 0),
        ([USER, calling("a", "b"), result("a"), USER], 1),
        ([USER, calling("a"), USER, result("a")], 2),
        ([USER, calling("a"), result("a"), result("a")], 1),
        ([USER, calling("a", "a"), result("a"), result("a")], 1),
        ([USER, calling("a")], 1),
    ],
)
async def test_each_call_needs_exactly_one_result_right_behind_it(
    messages: list[Message], problems: int
) -> None:
    assert len(transcript_problems(messages)) == problems


async def test_the_last_marked_message_of_the_user_chooses_the_script() -> None:
    first = Message("user", [{"type": "text", "text": f"once {mark('one')}"}])
    second = Message("user", f"and {mark('two')}")
    reminder = Message("user", "[a reminder that a system adds]")
    assert find_script([first, calling("a"), result("a", "LATE-x")]) == ("one", 1)
    assert find_script([first, calling("a"), result("a"), second, reminder]) == ("two", 0)
    assert find_script([USER]) == ("", 0)
    assert words_of([first, result("a", "LATE-x")]) == ["@@one@@", "LATE-x"]
