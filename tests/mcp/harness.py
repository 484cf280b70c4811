"""Servers for tests, and calls to them through the same registry and pipeline as in an engine."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bargein.calls.pipeline import invoke
from bargein.cancel import CancelSource, TaskOwner
from bargein.contracts.model import ToolCall
from bargein.contracts.tool import CallContext, CallResult
from bargein.mcp import McpServer
from bargein.mcp.oauth.authorizer import Authorizer
from bargein.mcp.servers import TURN_WAITS_S, McpServers
from bargein.process import Containment, open_containment
from bargein.tools import Policy, ToolRegistry
from tests.process import zoo
from tests.tools.desk import Desk

SERVERS = Path(__file__).with_name("servers")


def sdk_server(name: str = "sdk", **options: Any) -> McpServer:
    """A server written with the official SDK."""
    return McpServer(name, sys.executable, [str(SERVERS / "sdk.py")], **options)


def bad_server(kind: str, name: str = "bad", **options: Any) -> McpServer:
    """A server that does what servers must not do; standard library alone."""
    return McpServer(name, sys.executable, ["-I", "-S", str(SERVERS / "bad.py"), kind], **options)


@dataclass
class House:
    """Servers, their registry, and a desk for each session."""

    servers: McpServers
    registry: ToolRegistry
    containment: Containment
    desks: dict[str, Desk] = field(default_factory=dict)

    def desk(self, session: str = "s1") -> Desk:
        if session not in self.desks:
            self.desks[session] = Desk(session_id=session)
        return self.desks[session]

    async def prepare(self, session: str = "s1") -> None:
        await self.registry.prepare(session, self.desk(session).turn.token)

    def context(self, session: str = "s1", source: CancelSource | None = None) -> CallContext:
        desk = self.desk(session)
        return desk.context(source.token if source is not None else None)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        session: str = "s1",
        source: CancelSource | None = None,
    ) -> CallResult:
        text = msgspec.json.encode(dict(arguments or {})).decode()
        call = ToolCall("c1", tool, text)
        return await invoke(self.registry, call, self.context(session, source))


@asynccontextmanager
async def house(
    *servers: McpServer,
    folder: str | Path = "/",
    environment: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    mark: str = "",
    principal_of: Callable[[str], str] = lambda session: "",
    why_not: Callable[[McpServer], str] = lambda server: "",
    authorizer_of: Callable[[McpServer], Authorizer | None] = lambda server: None,
    turn_waits_s: float = TURN_WAITS_S,
) -> AsyncIterator[House]:
    """`mark` is one by which every process of the servers can be found."""
    around = dict(os.environ if environment is None else environment)
    if mark:
        marked = zoo.environment(mark)
        servers = tuple(_with_environment(each, marked) for each in servers)
    async with TaskOwner(), await open_containment() as containment:
        made = McpServers(
            servers,
            containment=containment,
            folder=folder,
            environment=around,
            client_version="0.1",
            principal_of=principal_of,
            why_not=why_not,
            authorizer_of=authorizer_of,
            turn_waits_s=turn_waits_s,
        )
        async with made:
            registry = ToolRegistry(policy=policy or Policy(), foreign=made)
            yield House(made, registry, containment)


def _with_environment(server: McpServer, marked: Mapping[str, str]) -> McpServer:
    from dataclasses import replace

    wanted = {name: value for name, value in marked.items() if name.startswith(zoo.MARK)}
    return replace(server, env={**server.env, **wanted})
