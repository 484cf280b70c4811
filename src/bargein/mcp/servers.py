"""`McpServers`: the configured servers of an engine, and the tools they offer.

A server's process is shared by the sessions of one principal and by nobody else; workspace and
configuration are the engine's. Nothing is started before a turn needs it.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import anyio
import msgspec

from bargein.cancel import Token
from bargein.contracts.tool import ForeignTool
from bargein.errors import UserError
from bargein.mcp.connection import McpConnection
from bargein.mcp.environment import minimal
from bargein.mcp.errors import McpError, ServerDown
from bargein.mcp.foreign_tool import McpTool
from bargein.mcp.life import ServerLife, ServerState
from bargein.mcp.listing import ListedTools
from bargein.mcp.overview import ListedPrompt, McpOverview, ServerStatus
from bargein.mcp.prompts import PREFIX, get_prompt, list_prompts
from bargein.mcp.resources import resource_tools
from bargein.mcp.server import McpServer
from bargein.mcp.transport import Receiver, Transport
from bargein.process import Containment, SandboxView, Service

if TYPE_CHECKING:
    from bargein.mcp.oauth.authorizer import Authorizer

TURN_WAITS_S: Final = 10.0
"""How long a turn waits for servers that start; they join it later if they take longer."""
PROMPTS_WAIT_S: Final = 5.0
"""How long a list of prompts is waited for, by somebody who looks."""

ClosedIn = tuple[Containment, SandboxView, Mapping[str, str]]
"""A containment, what a server in it may touch, and variables that it gets there."""

_log = logging.getLogger("bargein.mcp")


class McpServers:
    """`async with McpServers(...) as servers:` the `ForeignTools` of an engine.

    `containment` holds the servers' processes and `folder` is where they start, unless they say
    otherwise. `environment` is the program's own: servers get little of it. `principal_of` says
    whom a session belongs to. `proxy_for` names the proxy for an address. `why_not` is asked at
    each start, and says why a server must not be started; empty if it may. `authorizer_of` signs
    in to servers over HTTP that have no other token. `closed_in` makes the sandbox that a server,
    by its name, starts in; None for none.
    """

    def __init__(
        self,
        servers: Iterable[McpServer],
        *,
        containment: Containment | None,
        folder: str | Path,
        environment: Mapping[str, str],
        client_version: str = "0",
        principal_of: Callable[[str], str] = lambda session_id: "",
        proxy_for: Callable[[str], str | None] = lambda url: None,
        why_not: Callable[[McpServer], str] = lambda server: "",
        authorizer_of: "Callable[[McpServer], Authorizer | None]" = lambda server: None,
        closed_in: Callable[[str], Awaitable[ClosedIn]] | None = None,
        turn_waits_s: float = TURN_WAITS_S,
    ) -> None:
        self._closed_in = closed_in
        self._turn_waits_s = turn_waits_s
        self._authorizer_of = authorizer_of
        self._servers: dict[str, McpServer] = {}
        for server in servers:
            if server.name in self._servers:
                raise UserError(f"there are two MCP servers named {server.name}; rename one")
            self._servers[server.name] = server
        self._containment = containment
        self._folder = str(folder)
        self._environment = environment
        self._client_version = client_version
        self._principal_of = principal_of
        self._proxy_for = proxy_for
        self._why_not = why_not
        self.on_notice: Callable[[str], object] | None = None
        """Called once when a turn goes on without a server. It does not get the reason, because
        the words of one principal's server are not for others."""
        self._lives: dict[tuple[str, str], ServerLife] = {}
        self._tools: dict[str, dict[str, ForeignTool]] = {name: {} for name in self._servers}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every server. Bounded: all at the same time."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for life in self._lives.values():
                    tasks.start_soon(life.aclose)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    # Tools

    def tools(self) -> Mapping[str, ForeignTool]:
        return {name: tool for tools in self._tools.values() for name, tool in tools.items()}

    async def prepare(self, session_id: str, token: Token) -> None:
        """Start the servers that are not there yet, side by side, and wait a while for them.

        A stop of the turn ends a start that nobody else waits for. A turn does not wait for a
        server that failed before, or for which another turn has waited in vain. A server that
        failed is tried again after a pause.
        """
        waiting: list[ServerLife] = []
        for name in self._servers:
            life = self.life_of(name, self._principal_of(session_id))
            if life.state is not ServerState.READY and life.may_start:
                waiting.append(life)
        if not waiting:
            return
        with token.scope():
            async with anyio.create_task_group() as tasks:
                for life in waiting:
                    tasks.start_soon(self._wait_for, life)

    async def _wait_for(self, life: ServerLife) -> None:
        name, is_news = life.server.name, not life.waited_for_before
        try:
            await life.connected(keep_after_s=self._turn_waits_s if is_news else 0.0)
            return
        except TimeoutError:
            told = f"MCP server {name} is still starting; its tools come later"
        except McpError as error:
            _log.warning("%s", error)
            told = f"MCP server {name} cannot be used; /mcp says why"
        if is_news and self.on_notice is not None:
            self.on_notice(told)

    # Lives

    def life_of(self, name: str, principal: str = "") -> ServerLife:
        """Return the life of a server for a principal. Raises `UserError` for an unknown name."""
        server = self._servers.get(name)
        if server is None:
            names = ", ".join(self._servers) or "none"
            raise UserError(f"there is no MCP server named {name!r}; there are: {names}")
        key = (name, principal)
        if key not in self._lives:
            self._lives[key] = ServerLife(
                server,
                self._open_transport,
                client_version=self._client_version,
                on_tools=lambda listed: self._know(server, listed),
            )
        return self._lives[key]

    def life_of_session(self, name: str, session_id: str) -> ServerLife:
        return self.life_of(name, self._principal_of(session_id))

    def _know(self, server: McpServer, listed: ListedTools) -> None:
        life_of_session = partial(self.life_of_session, server.name)

        tools: dict[str, ForeignTool] = {
            tool.offered_as: McpTool(server, tool, life_of_session) for tool in listed.tools
        }
        if listed.has_resources:
            tools |= resource_tools(server, life_of_session, set(tools))
        self._tools[server.name] = tools

    def _open_transport(self, server: McpServer, token: Token, receiver: Receiver) -> Transport:
        why_not = self._why_not(server)
        if why_not:
            raise ServerDown(server.name, why_not)
        if server.url:
            return self._over_http(server, receiver)
        from bargein.mcp.stdio import StdioTransport

        containment = self._containment
        if containment is None:
            raise ServerDown(server.name, "it is a program, and none can be started here")
        argv = [server.command, *server.args]
        folder = str(Path(self._folder, server.cwd or "."))
        environment = minimal(self._environment, server.env)

        async def start() -> Service:
            if self._closed_in is None:
                return await containment.start_service(
                    argv, cwd=folder, env=environment, token=token
                )
            try:
                sandbox, view, more = await self._closed_in(server.name)
            except UserError as error:
                raise ServerDown(server.name, str(error)) from error
            return await sandbox.start_service(
                argv, cwd=folder, env={**environment, **more}, token=token, view=view
            )

        return StdioTransport(server.name, start, receiver)

    def _over_http(self, server: McpServer, receiver: Receiver) -> Transport:
        from bargein.mcp.http import HttpTransport

        headers = dict(server.headers)
        variable = server.bearer_token_env_var
        if variable:
            secret = self._environment.get(variable, "").strip()
            if not secret:
                raise ServerDown(server.name, f"the variable {variable} is not set; set it")
            headers["Authorization"] = f"Bearer {secret}"
        key = (
            f"the token in {variable}; set another" if variable else "the headers that it is given"
        )
        has_token = any(each.lower() == "authorization" for each in headers)
        return HttpTransport(
            server.name,
            server.url,
            lambda: headers,
            receiver,
            proxy=self._proxy_for(server.url),
            authorizer=None if has_token else self._authorizer_of(server),
            key=key,
        )

    # For people

    async def overview(self, principal: str | None = None) -> McpOverview:
        """Describe the servers that a principal uses, or all if it is None, for people."""
        return McpOverview(self.status(principal), await self.prompts(principal))

    async def prompts(self, principal: str | None = None) -> tuple[ListedPrompt, ...]:
        """Return the prompts of the running servers, without servers that do not answer."""
        found: dict[str, ListedPrompt] = {}

        async def ask(life: ServerLife, connection: McpConnection) -> None:
            try:
                with anyio.move_on_after(PROMPTS_WAIT_S):
                    for each in await list_prompts(life.server.name, connection):
                        found[each.offered_as] = each
            except McpError as error:
                _log.warning("its prompts could not be listed: %s", error)

        async with anyio.create_task_group() as tasks:
            for (_, whose), life in self._lives.items():
                is_ready = life.state is ServerState.READY and principal in (None, whose)
                if is_ready and life.connection is not None:
                    tasks.start_soon(ask, life, life.connection)
        return tuple(found[name] for name in sorted(found))

    async def prompt(self, name: str, words: str, principal: str = "") -> str:
        """The text of a prompt, by the name that a person wrote, such as `mcp__git__review`. Starts
        its server if it must. Raises `UserError` and `McpError`."""
        server = name.removeprefix(PREFIX).partition("__")[0]
        life = self.life_of(server, principal)
        connection = await life.connected()
        with anyio.move_on_after(life.server.tool_timeout_s):
            known = await list_prompts(server, connection)
            prompt = next((each for each in known if each.offered_as == name), None)
            if prompt is None:
                names = ", ".join(f"/{each.offered_as}" for each in known) or "none"
                raise UserError(f"{server} has no prompt /{name}; it has {names}")
            return await get_prompt(connection, prompt, words)
        raise ServerDown(server, f"it did not answer in {life.server.tool_timeout_s:g} s")

    def status(self, principal: str | None = None) -> tuple[ServerStatus, ...]:
        """Return the state of each server for a principal, or for all if it is None. A server that
        was not needed yet is listed once."""
        lives = [
            (life, whose) for (_, whose), life in self._lives.items() if principal in (None, whose)
        ]
        begun = {life.server.name for life, _ in lives}
        idle = [
            ServerStatus(name, ServerState.IDLE, _transport(server))
            for name, server in self._servers.items()
            if name not in begun
        ]
        return (*(_status(life, whose) for life, whose in lives), *idle)


def _transport(server: McpServer) -> str:
    if server.is_process:
        return "stdio"
    # The rest of an address may hold a key.
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _status(life: ServerLife, principal: str) -> ServerStatus:
    connection = life.connection
    status = ServerStatus(
        name=life.server.name,
        state=life.state,
        transport=_transport(life.server),
        principal=principal,
        tools=tuple(tool.offered_as for tool in life.tools.tools),
        left_out=life.tools.left_out,
        error=str(life.error) if life.error is not None else "",
    )
    if connection is None:
        return status
    facts = connection.facts
    return msgspec.structs.replace(
        status,
        version=facts.version,
        server=" ".join(filter(None, (facts.name, facts.server_version))),
        processes=connection.transport.processes,
        oddities=connection.oddities.words(),
    )
