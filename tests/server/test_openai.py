"""The OpenAI-compatible side, through the official client, sync and async."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from bargein.contracts.event import MessageAccepted, TurnSettled
from bargein.contracts.model import AssistantMessage, Image, Text, ToolMessage, UserMessage
from bargein.models.script import Call, Count, Fail, Say, Step, Wait
from tests.server.stage import START_TOKEN, WITHIN_S, Script, Stage, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def look() -> str:
    """Look around."""
    return "nothing"


@asynccontextmanager
async def asking(script: Script, home: Path) -> AsyncIterator[tuple[Stage, AsyncOpenAI]]:
    async with (
        serving(script, home, tools=[look]) as stage,
        AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=START_TOKEN, max_retries=0) as client,
    ):
        yield stage, client


async def in_thread(stage: Stage, work: Any) -> Any:
    """The sync client, as a program of its own would use it."""

    def run() -> Any:
        with OpenAI(base_url=f"{stage.url}/v1", api_key=START_TOKEN, max_retries=0) as client:
            return work(client)

    return await anyio.to_thread.run_sync(run)


async def until_nothing_runs(stage: Stage) -> None:
    await until(lambda: all(state.turn is None for state in stage.gateway.now().sessions))


async def until_nothing_is_kept(stage: Stage) -> None:
    with anyio.fail_after(WITHIN_S):
        while await stage.engine.store.sessions():
            await anyio.lowlevel.checkpoint()
    assert not stage.gateway.access.owned_by("operator")


def waiting(stage: Stage) -> int:
    return sum(len(state.waiting) for state in stage.gateway.now().sessions)


# Chat completions


async def test_a_completion_has_text_and_usage_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with asking([[Say("Hi "), Say("you"), Count(7, 2)]], tmp_path) as (stage, client):
        answer = await client.chat.completions.create(model="bargein", messages=HELLO)
        assert answer.choices[0].message.content == "Hi you"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2)
        await until_nothing_is_kept(stage)


async def test_a_stream_comes_as_it_is_said_around_the_tools(tmp_path: Path) -> None:
    script: Script = [[Say("Let me see."), Call("look", {})], HOLD]
    async with asking(script, tmp_path) as (stage, client):
        stream = await client.chat.completions.create(
            model="bargein", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        said: list[str] = []
        usage = None
        async for chunk in stream:
            said += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
            if "".join(said).endswith("One "):
                # It has come while the answer is not over.
                stage.model.gate("hold").open()
        assert "".join(said) == "Let me see.\n\nOne two"
        assert usage is not None
        assert usage.total_tokens > 0


async def test_the_sync_client_streams_too(tmp_path: Path) -> None:
    def ask(client: OpenAI) -> str:
        stream = client.chat.completions.create(model="bargein", messages=HELLO, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in stream)

    async with asking([[Say("Hi")]], tmp_path) as (stage, _):
        assert await in_thread(stage, ask) == "Hi"


async def test_the_whole_conversation_reaches_the_model(tmp_path: Path) -> None:
    picture = base64.b64encode(b"png").decode()
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
        {"role": "assistant", "content": "Nothing."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And here?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
            ],
        },
    ]
    async with asking([[Say("A cat.")]], tmp_path) as (stage, client):
        await client.chat.completions.create(model="bargein", messages=messages)
        request = stage.model.requests[0]
        assert "Be brief." in request.system
        kinds = [type(each) for each in request.messages]
        assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage, UserMessage]
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        assert last.content == (Text("And here?"), Image("image/png", b"png"))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_stops_the_turn(tmp_path: Path, stream: bool) -> None:
    async with asking([HOLD], tmp_path) as (stage, client):
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answer: Any = await client.chat.completions.create(
                    model="bargein", messages=HELLO, stream=stream
                )
                async for _ in answer:
                    pass

            group.start_soon(ask)
            await stage.model.gate("hold").reached()
            group.cancel_scope.cancel()
        await until_nothing_runs(stage)
        assert stage.model.plays[0].outcome == "cancelled"
        await until_nothing_is_kept(stage)


async def test_one_that_goes_away_while_its_message_waits_takes_it_back(tmp_path: Path) -> None:
    async with asking([HOLD, [Say("never")]], tmp_path) as (stage, client):
        session = await stage.new_session()
        name = session.rpartition("/")[2]
        await stage.post(f"{session}/messages", {"text": "first"})
        await stage.model.gate("hold").reached()
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                await client.chat.completions.create(
                    model="bargein", messages=HELLO, metadata={"session": name}
                )

            group.start_soon(ask)
            await until(lambda: waiting(stage) == 1)
            group.cancel_scope.cancel()
        await until(lambda: waiting(stage) == 0)
        stage.model.gate("hold").open()
        await until_nothing_runs(stage)
        assert len(stage.model.plays) == 1


async def test_a_named_session_goes_on_with_its_own_history(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")]], tmp_path) as (stage, client):
        session = await stage.new_session()
        name = session.rpartition("/")[2]
        for words in ("one", "two"):
            await client.chat.completions.create(
                model="bargein",
                messages=[{"role": "user", "content": words}],
                metadata={"session": name},
            )
        texts = [
            part.text
            for message in stage.model.requests[1].messages
            if not isinstance(message, ToolMessage)
            for part in message.content
            if isinstance(part, Text)
        ]
        assert texts == ["one", "a", "two"]


async def test_the_same_key_is_answered_once(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")]], tmp_path) as (stage, client):
        headers = {"Idempotency-Key": "k1"}
        for _ in range(2):
            answer = await client.chat.completions.create(
                model="bargein", messages=HELLO, extra_headers=headers
            )
            assert answer.choices[0].message.content == "a"
        assert len(stage.model.plays) == 1
        with pytest.raises(openai.ConflictError):
            await client.chat.completions.create(
                model="bargein",
                messages=[{"role": "user", "content": "Other"}],
                extra_headers=headers,
            )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message"),
        ({"messages": HELLO, "n": 2}, "n is 2"),
        ({"messages": HELLO, "tools": [{}]}, "tools"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}, *HELLO]}, "'c'"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "c", "function": {"name": "f", "arguments": "{}"}},
                        ],
                    },
                    *HELLO,
                ]
            },
            "'c'",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
                    }
                ]
            },
            "data:image",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_in_words(
    tmp_path: Path, body: dict[str, Any], words: str
) -> None:
    async with asking([[Say("a")]], tmp_path) as (stage, _):
        status, answer = await stage.ask("POST", "/v1/chat/completions", body)
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert words in answer["error"]["message"]
        assert not stage.model.plays


async def test_errors_are_those_of_the_official_client(tmp_path: Path) -> None:
    async with asking([[Fail()]], tmp_path) as (stage, client):
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await client.chat.completions.create(model="gpt-9", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        # The client tries again by itself after a 5xx, unless it is told not to.
        with pytest.raises(openai.InternalServerError):
            await client.with_options(max_retries=3).chat.completions.create(
                model="bargein", messages=HELLO
            )
        assert len(stage.model.plays) == 1


async def test_models_are_listed(tmp_path: Path) -> None:
    async with asking([], tmp_path) as (_, client):
        assert [model.id async for model in client.models.list()] == ["bargein"]


# Responses


async def test_a_response_and_one_that_goes_on_from_it(tmp_path: Path) -> None:
    async with asking([[Say("a")], [Say("b")]], tmp_path) as (stage, client):
        first = await client.responses.create(
            model="bargein", input="one", instructions="Be brief."
        )
        assert (first.status, first.output_text) == ("completed", "a")
        second = await client.responses.create(
            model="bargein", input="two", previous_response_id=first.id
        )
        assert (second.output_text, second.previous_response_id) == ("b", first.id)
        assert len(stage.model.requests[1].messages) == 3
        again = await client.responses.retrieve(first.id)
        assert (again.output_text, again.status) == ("a", "completed")


async def test_a_response_in_the_background_is_cancelled_by_its_id(tmp_path: Path) -> None:
    async with asking([HOLD], tmp_path) as (stage, client):
        begun = await client.responses.create(model="bargein", input="x", background=True)
        assert begun.status in ("queued", "in_progress")
        await stage.model.gate("hold").reached()
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        cancelled = await client.responses.cancel(begun.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "One ")
        assert stage.model.plays[0].outcome == "cancelled"
        assert (await client.responses.cancel(begun.id)).status == "cancelled"


async def test_a_background_response_goes_on_without_its_client(tmp_path: Path) -> None:
    async with asking([HOLD], tmp_path) as (stage, client):
        async with anyio.create_task_group() as group:
            found: list[str] = []

            async def ask() -> None:
                stream = await client.responses.create(
                    model="bargein", input="x", background=True, stream=True
                )
                async for event in stream:
                    if event.type == "response.created":
                        found.append(event.response.id)  # noqa: PERF401 - seen as it comes

            group.start_soon(ask)
            await stage.model.gate("hold").reached()
            await until(lambda: found)
            group.cancel_scope.cancel()
        stage.model.gate("hold").open()
        await until_nothing_runs(stage)
        done = await client.responses.retrieve(found[0])
        assert (done.status, done.output_text) == ("completed", "One two")


async def test_a_response_streams_its_events_in_order(tmp_path: Path) -> None:
    def ask(client: OpenAI) -> tuple[list[str], str]:
        kinds: list[str] = []
        with client.responses.stream(model="bargein", input="x") as stream:
            kinds += [event.type for event in stream]
            return kinds, stream.get_final_response().output_text

    async with asking([[Say("a"), Say("b")]], tmp_path) as (stage, _):
        kinds, text = await in_thread(stage, ask)
        assert text == "ab"
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert kinds.index("response.output_item.added") < kinds.index("response.output_text.delta")


async def test_another_persons_response_does_not_exist(tmp_path: Path) -> None:
    async with asking([HOLD], tmp_path) as (stage, client):
        begun = await client.responses.create(model="bargein", input="x", background=True)
        await stage.model.gate("hold").reached()
        other = client.with_options(api_key=await stage.person("mallory"))
        for attempt in (other.responses.retrieve, other.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await attempt(begun.id)
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"


async def test_every_message_of_the_facade_has_its_principal(tmp_path: Path) -> None:
    async with asking([[Say("a")]], tmp_path) as (stage, client):
        alice = client.with_options(api_key=await stage.person("alice"))
        made = await alice.responses.create(model="bargein", input="x")
        session = made.id.removeprefix("resp_").rpartition(".")[0]
        events = [each.event for each in await stage.engine.store.events(session)]
        senders = [e.message.sender for e in events if isinstance(e, MessageAccepted)]
        assert senders == ["alice"]
        assert sum(isinstance(e, TurnSettled) for e in events) == 1
