"""The API through real proxies: answers stream, idle streams stay open, and the server notices a
client that goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from bargein.models.script import Say, Step, Wait
from bargein.server.gateway import Settings
from bargein.server.limits import GatewayLimits
from tests.server.proxies import NAME, PING_S, PROXIES, TIMEOUT_S, Proxy
from tests.server.stage import START_TOKEN, Script, Stage, serving
from tests.server.test_openai import until_nothing_runs

pytestmark = [pytest.mark.anyio, pytest.mark.needs("nginx", "caddy")]

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
SOON_S = 15.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def behind(
    kind: str, script: Script, home: Path, ping_s: float = PING_S
) -> AsyncIterator[tuple[Stage, Proxy, AsyncOpenAI]]:
    limits = GatewayLimits(ping_s=ping_s)
    async with serving(script, home, limits=limits, settings=Settings(names=(NAME,))) as stage:
        with PROXIES[kind](stage.url, home) as proxy:
            http = DefaultAsyncHttpxClient(verify=proxy.tls) if proxy.tls is not None else None
            async with AsyncOpenAI(
                base_url=f"{proxy.url}/v1", api_key=START_TOKEN, max_retries=0, http_client=http
            ) as client:
                yield stage, proxy, client


async def pieces(client: AsyncOpenAI, api: str) -> AsyncIterator[str]:
    if api == "chat":
        chunks = await client.chat.completions.create(model="bargein", messages=HELLO, stream=True)
        async for chunk in chunks:
            for choice in chunk.choices:
                yield choice.delta.content or ""
    else:
        events = await client.responses.create(model="bargein", input="Hello", stream=True)
        async for event in events:
            if event.type == "response.output_text.delta":
                yield event.delta


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("kind", PROXIES)
async def test_pieces_come_as_they_are_said_and_an_idle_stream_lives(
    tmp_path: Path, kind: str, api: str
) -> None:
    async with behind(kind, [HOLD], tmp_path) as (stage, _, client):
        said = ""
        with anyio.fail_after(SOON_S):
            async for piece in pieces(client, api):
                said += piece
                if said == "One ":
                    # It has come while the answer is not over.
                    if (kind, api) == ("nginx by default", "chat"):
                        # Nothing is said for longer than the proxy waits.
                        await anyio.sleep(TIMEOUT_S * 1.2)
                    stage.model.gate("hold").open()
        assert said == "One two."
        assert stage.model.plays[0].outcome == "ended"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", PROXIES)
async def test_a_client_that_goes_away_stops_the_turn(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    async with behind(kind, [HOLD], tmp_path) as (stage, _, client):
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
        with anyio.fail_after(SOON_S):
            await until_nothing_runs(stage)
        assert stage.model.plays[0].outcome == "cancelled"


async def test_a_request_without_a_stream_is_ended_by_the_proxy_and_stops_its_turn(
    tmp_path: Path,
) -> None:
    """Nothing can be said before the answer: not even its status is known. Hence the time-out in
    deploy/nginx.conf, and the advice to stream or to ask in the background."""
    async with behind("nginx by default", [HOLD], tmp_path) as (stage, _, client):
        with anyio.fail_after(SOON_S), pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="bargein", messages=HELLO)
        assert caught.value.status_code == 504
        await until_nothing_runs(stage)
        assert stage.model.plays[0].outcome == "cancelled"


async def test_without_comments_the_proxy_would_end_an_idle_stream(tmp_path: Path) -> None:
    async with behind("nginx by default", [HOLD], tmp_path, ping_s=1000) as (stage, _, client):
        with anyio.fail_after(SOON_S), pytest.raises(openai.APIConnectionError):
            async for _ in pieces(client, "chat"):
                pass
        await until_nothing_runs(stage)


@pytest.mark.parametrize("kind", ["deploy/nginx.conf", "deploy/Caddyfile"])
async def test_sockets_events_and_names_pass_what_is_shipped(tmp_path: Path, kind: str) -> None:
    async with behind(kind, [[Say("Hi")]], tmp_path) as (stage, proxy, _):
        session = await stage.new_session()
        headers = {"authorization": f"Bearer {START_TOKEN}", "host": NAME}
        ssl = proxy.tls if proxy.tls is not None else True
        if kind == "deploy/Caddyfile":
            headers.pop("host")  # here Caddy is told an address in place of the name
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl)) as http:
            url = f"{proxy.url}{session}"
            async with http.ws_connect(f"{url}/socket?after=0", headers=headers) as socket:
                body = {"text": "Hello"}
                await socket.send_json({"id": "1", "do": "send_message", "body": body})
                seen: list[object] = []
                with anyio.fail_after(SOON_S):
                    while "turn_settled" not in str(seen):
                        seen.append(await socket.receive_json())
            async with http.get(f"{url}/events?after=0", headers=headers) as response:
                with anyio.fail_after(SOON_S):
                    async for line in response.content:
                        if b"turn_settled" in line:
                            break
