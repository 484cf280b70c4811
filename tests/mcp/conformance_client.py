"""Our client as the official conformance suite drives it: one process a scenario.

The suite starts a server, this program with the server's address, and looks at what it was sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from bargein.contracts.model import Text
from bargein.contracts.tool import CallResult, Question
from bargein.mcp import McpServer
from bargein.mcp.listing import list_all
from bargein.mcp.oauth.authorizer import Authorizer
from bargein.runtime.mcp_tokens import TokenFile
from tests.mcp.harness import House, house

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The address that the suite expects of a client with a metadata document."""
REDIRECT = "http://127.0.0.1:9/callback"


async def visit(url: str) -> str:
    """The suite's authorization server needs no user: it sends the browser back at once."""
    async with aiohttp.ClientSession() as http, http.get(url, allow_redirects=False) as answer:
        return answer.headers["Location"]


async def main(url: str) -> None:
    server = McpServer(
        "peer",
        url=url,
        oauth_client_id=CONTEXT.get("client_id", ""),
        oauth_client_metadata_url=DOCUMENT,
    )
    secret = CONTEXT.get("client_secret", "")
    tokens = TokenFile(Path(tempfile.mkdtemp()))

    def authorizer_of(server: McpServer) -> Authorizer:
        return Authorizer(server, tokens, secret=secret, redirect=REDIRECT, visit=visit)

    async with house(server, authorizer_of=authorizer_of) as home:
        home.desk().answer = _answer
        await home.prepare()
        status = home.servers.status()[0]
        if status.error:
            raise SystemExit(status.error)
        if "toolCalls" in CONTEXT:
            for each in CONTEXT["toolCalls"]:
                await _call(home, each["name"], each["arguments"])
            return
        for name in home.registry.names:
            await _call(home, name.removeprefix("mcp__peer__"), _arguments(home, name))
        await _read_all(home)


def _answer(question: Question) -> str:
    """Empty where there is a default; else whatever fits."""
    return question.choices[0] if question.choices and "means" not in question.detail else ""


def _arguments(home: House, name: str) -> dict[str, Any]:
    schema = next(each for each in home.registry.schemas() if each.name == name)
    properties = json.loads(bytes(schema.parameters)).get("properties", {})
    if name.endswith("json_schema_echo"):
        # Gives back the schema of the tool beside it, as we offer it to a model.
        named = "mcp__peer__json_schema_2020_12_tool"
        other = next(each for each in home.registry.schemas() if each.name == named)
        return {"schema": json.loads(bytes(other.parameters))}
    examples = {"number": 5, "integer": 5, "string": "text", "boolean": True}
    return {key: examples.get(each.get("type"), "text") for key, each in properties.items()}


async def _call(home: House, tool: str, arguments: dict[str, Any]) -> None:
    result: CallResult = await home.call(f"mcp__peer__{tool}", arguments)
    words = "".join(part.text for part in result.content if isinstance(part, Text))
    sys.stdout.write(f"{tool} {result.status} {words}\n")


async def _read_all(home: House) -> None:
    """What else a client may ask for."""
    connection = home.servers.life_of("peer").connection
    if connection is None:
        return
    if connection.facts.can("resources"):
        for each in await list_all(connection, "resources/list", "resources"):
            await connection.ask("resources/read", {"uri": each["uri"]})
    if connection.facts.can("prompts"):
        for each in await list_all(connection, "prompts/list", "prompts"):
            await connection.ask("prompts/get", {"name": each["name"]})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
