"""The MCP servers of an engine, described for people: the same data for `/mcp`, API and page."""

from typing import Protocol

import msgspec


class ServerStatus(msgspec.Struct, frozen=True):
    """One server as people are shown it, for one principal. `state` is `not started`, `starting`,
    `ready` or `failed`; `version` is the protocol's, `server` the server's name and version as it
    gives them. `error` is the last one. `oddities` counts what it sent and should not have."""

    name: str
    state: str
    transport: str
    principal: str = ""
    version: str = ""
    server: str = ""
    tools: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    error: str = ""
    processes: tuple[str, ...] = ()
    oddities: str = ""


class ListedPrompt(msgspec.Struct, frozen=True):
    """`offered_as` is what a person writes after the slash."""

    name: str
    offered_as: str
    about: str = ""
    arguments: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()

    def usage(self) -> str:
        shown = (each if each in self.needed else f"[{each}]" for each in self.arguments)
        return " ".join((f"/{self.offered_as}", *shown))


class McpOverview(msgspec.Struct, frozen=True):
    """The servers, and the prompts of those that are running."""

    servers: tuple[ServerStatus, ...] = ()
    prompts: tuple[ListedPrompt, ...] = ()


class McpSource(Protocol):
    """The engine, as surfaces see it. A `principal` of None means all principals."""

    async def mcp_overview(self, principal: str | None = None) -> McpOverview: ...

    async def mcp_prompt(self, name: str, words: str = "", principal: str = "") -> str: ...
