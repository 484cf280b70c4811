"""A real server on a real socket, in the loop of the test, over a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec

from bargein.cancel import TaskOwner
from bargein.contracts.output_type import OutputType
from bargein.contracts.store import Store
from bargein.mcp.overview import McpSource
from bargein.models import script as model_script
from bargein.models.retry import RetryPolicy
from bargein.models.script import Answer, Step
from bargein.models.scripted import ScriptedModel
from bargein.server.access import Access, add_token
from bargein.server.app import build_app
from bargein.server.gateway import Gateway, Settings
from bargein.server.gateway_db import GatewayDb
from bargein.server.gateway_tables import open_tables
from bargein.server.limits import GatewayLimits
from bargein.server.running import GatewayServer, listen
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.engine import SessionEngine
from bargein.session.hooks import Hooks
from bargein.session.limits import Limits
from bargein.session.permits import PermissionSettings
from bargein.stores.memory import MemoryStore
from bargein.tools import DEFAULT_POLICY, Policy, ToolRegistry

START_TOKEN = "the-token-of-this-start-which-is-long-enough"

# So long that nothing is given up because the machine was busy for a moment.
LIMITS = Limits(settle_s=10.0, call_grace_s=8.0, hook_s=20.0, store_s=10.0, gather_s=0.03)

# How long something is waited for that must come. Only a failure takes as long.
WITHIN_S = 30.0

Script = Sequence[Answer | Sequence[Step]]
Json = dict[str, Any]


@dataclass
class Stage:
    url: str
    http: aiohttp.ClientSession
    gateway: Gateway
    engine: SessionEngine
    model: ScriptedModel
    server: GatewayServer
    _people: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = START_TOKEN,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Json]:
        """Returns status and JSON of the answer."""
        given = dict(headers or {})
        if token is not None:
            given.setdefault("authorization", f"Bearer {token}")
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            given.setdefault("content-type", "application/json")
        async with self.http.request(
            method, self.url + path, data=data, headers=given, allow_redirects=False
        ) as response:
            content = await response.read()
            return response.status, msgspec.json.decode(content) if content else {}

    async def post(self, path: str, body: object = None, **more: Any) -> Json:
        """Returns the JSON of the answer, which must be a success."""
        status, answer = await self.ask("POST", path, body, **more)
        assert status < 300, answer
        return answer

    async def get(self, path: str, **more: Any) -> Json:
        status, answer = await self.ask("GET", path, **more)
        assert status == 200, answer
        return answer

    async def new_session(self, **more: Any) -> str:
        """Makes a session and returns its path."""
        made = await self.post("/v1/sessions", {}, **more)
        return f"/v1/sessions/{made['session']['id']}"

    @property
    def db(self) -> GatewayDb:
        """The gateway's file, for tests that look into it."""
        db = self.gateway.db
        assert isinstance(db, GatewayDb)
        return db

    async def person(self, name: str, **more: Any) -> str:
        """Makes a token for a principal."""
        _, text = await add_token(self.gateway.db, name, **more)
        return text

    @asynccontextmanager
    async def events(
        self, path: str, *, token: str = START_TOKEN, last_event_id: int | None = None
    ) -> AsyncIterator[EventReader]:
        headers = {"authorization": f"Bearer {token}"}
        if last_event_id is not None:
            headers["last-event-id"] = str(last_event_id)
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.http.get(self.url + path, headers=headers, timeout=timeout) as response:
            assert response.status == 200, await response.text()
            yield EventReader(response)


class EventReader:
    """Server-sent events as JSON objects, with the id of each if it has one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self.seen: list[Json] = []
        self.pings = 0

    async def next(self) -> Json:
        """The next event; `StopAsyncIteration` at the end of the stream."""
        event: Json = {}
        while True:
            text = await self._line()
            if text.startswith("id: "):
                event["id"] = int(text[4:])
            elif text.startswith("data: "):
                event |= msgspec.json.decode(text[6:], type=dict[str, Any])
            elif not text and event:
                self.seen.append(event)
                return event

    async def _line(self) -> str:
        line = await self._content.readline()
        if not line:
            raise StopAsyncIteration
        self.pings += line.startswith(b":")
        return line.decode().rstrip("\n")

    async def until_pinged(self, times: int) -> None:
        """On a stream that is quiet."""
        while self.pings < times:
            assert not (await self._line()).startswith("data: ")

    async def until(self, kind: str) -> Json:
        """Read on up to the event of this type; it must come in time."""
        with anyio.fail_after(WITHIN_S):
            while True:
                event = await self.next()
                if type_of(event) == kind:
                    return event

    async def rest(self) -> list[Json]:
        found = []
        try:
            while True:
                found.append(await self.next())
        except StopAsyncIteration:
            return found


def type_of(event: Json) -> str:
    found: str = event["event"]["type"] if "event" in event else event["type"]
    return found


@asynccontextmanager
async def serving(
    script: Script | model_script.Script,
    home: Path,
    *,
    store: Store | None = None,
    tools: Sequence[Callable[..., object]] = (),
    hooks: Hooks | None = None,
    engine_limits: Limits = LIMITS,
    limits: GatewayLimits | None = None,
    settings: Settings | None = None,
    start_token: str | None = START_TOKEN,
    output_type: OutputType[Any] | None = None,
    policy: Policy | None = None,
    permission: PermissionSettings | None = None,
    tables: str | None = None,
) -> AsyncIterator[Stage]:
    """`tables` is the address of the database that has the gateway's tables, if no file has."""
    model = ScriptedModel(script, policy=RetryPolicy(attempts_max=1))
    async with TaskOwner() as owner:
        registry = ToolRegistry(tools, policy=policy or DEFAULT_POLICY)
        agent = loop_agent(model, registry, LoopSettings(output_type=output_type))
        engine = SessionEngine(
            agent,
            store or MemoryStore(),
            hooks=hooks,
            limits=engine_limits,
            owner=owner,
            output_type=output_type,
            permission=permission,
            side_request=agent.side_request,
        )
        async with (
            engine,
            gateway_over(
                engine,
                home,
                limits=limits,
                settings=settings,
                start_token=start_token,
                tables=tables,
            ) as (gateway, server, url),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            yield Stage(url, http, gateway, engine, model, server)


@asynccontextmanager
async def gateway_over(
    engine: SessionEngine,
    home: Path,
    *,
    limits: GatewayLimits | None = None,
    settings: Settings | None = None,
    start_token: str | None = START_TOKEN,
    tables: str | None = None,
    mcp: McpSource | None = None,
) -> AsyncIterator[tuple[Gateway, GatewayServer, str]]:
    db = await open_tables(home, tables)
    listening = listen("127.0.0.1", 0)
    try:
        access = Access(db, start_token=start_token)
        gateway = Gateway(engine, db, access, limits=limits, settings=settings, mcp=mcp)
        server = GatewayServer(gateway, build_app(gateway))
        async with anyio.create_task_group() as group:
            ended = anyio.Event()

            async def run() -> None:
                try:
                    await server.run_until_left([listening])
                finally:
                    ended.set()

            group.start_soon(run)
            await server.listening.wait()
            try:
                yield gateway, server, f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                # Also after a failed test: a loop cannot be closed under a listening server.
                gateway.cut_streams()
                server.should_exit = True
                with anyio.move_on_after(WITHIN_S, shield=True):
                    await ended.wait()
    finally:
        listening.close()
        await db.aclose()
