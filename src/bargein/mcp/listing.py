"""Lists the tools of a server for the model. Tools beyond the bounds are left out and named.

A tool's name is `mcp__SERVER__TOOL`. Models take at most 64 letters, digits, `_` and `-`. So other
characters become `_`, and a name that is too long or not unique ends in a hash of the whole name.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from bargein.calls.text import one_line, shortened
from bargein.mcp.connection import McpConnection
from bargein.mcp.header_values import BadAnnotation, param_headers
from bargein.mcp.server import McpServer

TOOLS_MAX: Final = 256
PAGES_MAX: Final = 64
SCHEMA_BYTES_MAX: Final = 64 << 10
DESCRIPTION_CHARS_MAX: Final = 4000
NAME_CHARS_MAX: Final = 64

_log = logging.getLogger("bargein.mcp")


class ListedTool(msgspec.Struct, frozen=True):
    """`name` is the server's own name for it, `offered_as` the one for the model. `headers` are the
    arguments that go into headers, by their path."""

    name: str
    offered_as: str
    description: str
    schema: bytes
    title: str = ""
    headers: Mapping[tuple[str, ...], str] = msgspec.field(default_factory=dict)


class ListedTools(msgspec.Struct, frozen=True):
    tools: tuple[ListedTool, ...] = ()
    left_out: tuple[str, ...] = ()
    """A sentence about each tool that cannot be offered."""
    has_resources: bool = False


async def list_all(connection: McpConnection, method: str, key: str) -> list[dict[str, Any]]:
    """All pages of a list. Raises `McpError`."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await connection.ask(method, {"cursor": cursor} if cursor else None)
        listed = page.get(key)
        if isinstance(listed, list):
            found.extend(each for each in listed if isinstance(each, dict))
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or len(found) > TOOLS_MAX:
            break
    return found


async def list_tools(server: McpServer, connection: McpConnection) -> ListedTools:
    has_resources = connection.facts.can("resources")
    if not connection.facts.can("tools"):
        return ListedTools(has_resources=has_resources)
    found = offered(server, await list_all(connection, "tools/list", "tools"))
    return msgspec.structs.replace(found, has_resources=has_resources)


def offered(server: McpServer, listed: Iterable[Mapping[str, Any]]) -> ListedTools:
    tools: list[ListedTool] = []
    left_out: list[str] = []
    taken: set[str] = set()
    for each in listed:
        name = each.get("name")
        if not isinstance(name, str) or not name or not server.offers(name):
            continue
        why = _why_not(server, each)
        if not why and len(tools) >= TOOLS_MAX:
            why = f"there are more than {TOOLS_MAX} tools"
        if why:
            left_out.append(f"{one_line(name)}: {why}")
            _log.warning("MCP server %s: a tool is left out: %s", server.name, left_out[-1])
            continue
        tool = _listed(server, name, each, taken)
        taken.add(tool.offered_as)
        tools.append(tool)
    return ListedTools(tuple(tools), tuple(left_out))


def _listed(server: McpServer, name: str, each: Mapping[str, Any], taken: set[str]) -> ListedTool:
    schema = each["inputSchema"]
    headers = param_headers(schema) if not server.is_process else {}
    description = shortened(str(each.get("description") or name), DESCRIPTION_CHARS_MAX)
    return ListedTool(
        name=name,
        offered_as=offered_name(server.name, name, taken),
        description=description,
        schema=msgspec.json.encode(schema),
        title=one_line(str(each.get("title") or "")),
        headers=headers,
    )


def _why_not(server: McpServer, each: Mapping[str, Any]) -> str:
    schema = each.get("inputSchema")
    if not isinstance(schema, dict):
        return "it has no schema of its arguments"
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES_MAX:
        return f"the schema of its arguments is longer than {SCHEMA_BYTES_MAX} bytes"
    if not server.is_process:
        try:
            param_headers(schema)
        except BadAnnotation as error:
            return str(error)
    return ""


def offered_name(server: str, tool: str, taken: set[str]) -> str:
    plain = f"mcp__{server}__{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"
    if len(plain) <= NAME_CHARS_MAX and plain not in taken:
        return plain
    mark = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: NAME_CHARS_MAX - 9]}_{mark}"
