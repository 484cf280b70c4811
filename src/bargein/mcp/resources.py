"""Two tools for the resources of a server: the first lists them, the second reads one of them.

They need the same approval as the server's own tools. A stop only ends the waiting, because reading
has no effect on the server.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import msgspec

from bargein.calls.text import one_line, shortened
from bargein.calls.words import refused
from bargein.contracts.model import Image, Text, ToolSchema
from bargein.contracts.tool import CallContext, CallResult, CallStatus, ForeignTool
from bargein.errors import ModelMisbehaved
from bargein.mcp.connection import McpConnection
from bargein.mcp.errors import McpError
from bargein.mcp.life import ServerLife
from bargein.mcp.listing import list_all, offered_name
from bargein.mcp.results import resource_content
from bargein.mcp.server import McpServer

LIST: Final = "list_resources"
READ: Final = "read_resource"
SHOWN_MAX: Final = 500
CONTENTS_MAX: Final = 20

_NOTHING: Final = {"type": "object", "properties": {}}
_URI: Final = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}


class ResourceTool:
    def __init__(
        self, server: McpServer, kind: str, name: str, life_of: Callable[[str], ServerLife]
    ) -> None:
        self._server = server
        self._kind = kind
        self._life_of = life_of
        does = "Lists the resources" if kind == LIST else "Reads one resource, by its uri,"
        schema = msgspec.json.encode(_NOTHING if kind == LIST else _URI)
        words = f"{does} of the MCP server {server.name}."
        self.schema = ToolSchema(name, words, msgspec.Raw(schema))
        self.grace_s = 0.0

    def title_of(self, arguments: Mapping[str, object]) -> str:
        shown = one_line(str(arguments.get("uri", "")), 80)
        return f"{self._server.name} {self._kind} {shown}".strip()

    async def run(self, arguments: Mapping[str, object], context: CallContext) -> CallResult:
        token = context.token
        parts: tuple[Text | Image, ...] | None = None
        timeout_s = self._server.tool_timeout_s
        try:
            with token.scope(), anyio.move_on_after(timeout_s):
                connection = await self._life_of(context.session_id).connected()
                parts = await self._ask(connection, arguments)
        except McpError as error:
            return refused(str(error))
        token.check()
        if parts is None:
            return refused(f"MCP server {self._server.name} did not answer in {timeout_s:g} s")
        return CallResult(CallStatus.FINISHED, parts, "finished")

    async def _ask(
        self, connection: McpConnection, arguments: Mapping[str, object]
    ) -> tuple[Text | Image, ...]:
        if self._kind == LIST:
            listed = await list_all(connection, "resources/list", "resources")
            lines = [_line(each) for each in listed[:SHOWN_MAX]]
            return (Text(shortened("\n".join(lines) or "There are no resources.")),)
        uri = arguments.get("uri")
        if not isinstance(uri, str) or not uri:
            raise ModelMisbehaved(
                f"{self.schema.name}: `uri` must be a text; list_resources has them"
            )
        answer = await connection.ask("resources/read", {"uri": uri})
        contents = answer.get("contents")
        listed = contents if isinstance(contents, list) else []
        found = [each for each in listed if isinstance(each, dict)]
        parts = [part for each in found[:CONTENTS_MAX] for part in resource_content(each)]
        return tuple(parts) or (Text("The resource is empty."),)


def _line(resource: Mapping[str, Any]) -> str:
    about = one_line(str(resource.get("description") or resource.get("title") or ""), 120)
    name = one_line(str(resource.get("name", "")))
    return "  ".join(filter(None, (str(resource.get("uri", "")), name, about)))


def resource_tools(
    server: McpServer, life_of: Callable[[str], ServerLife], taken: set[str]
) -> dict[str, ForeignTool]:
    """Both tools, unless the configuration or a tool of the server's own stands in the way."""
    tools: dict[str, ForeignTool] = {}
    for kind in (LIST, READ):
        name = offered_name(server.name, kind, set())
        if server.offers(kind) and name not in taken:
            tools[name] = ResourceTool(server, kind, name, life_of)
    return tools
