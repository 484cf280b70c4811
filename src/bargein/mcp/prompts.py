"""The prompts of servers. A person who names a prompt sends its text as a message."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bargein.calls.text import one_line, shortened
from bargein.contracts.model import Text
from bargein.errors import UserError
from bargein.mcp.connection import McpConnection
from bargein.mcp.listing import list_all, offered_name
from bargein.mcp.overview import ListedPrompt
from bargein.mcp.results import content_of

PREFIX: Final = "mcp__"
MESSAGES_MAX: Final = 50


async def list_prompts(server: str, connection: McpConnection) -> tuple[ListedPrompt, ...]:
    """Raises `McpError`."""
    if not connection.facts.can("prompts"):
        return ()
    listed = await list_all(connection, "prompts/list", "prompts")
    return tuple(_listed(server, each) for each in listed if isinstance(each.get("name"), str))


def _listed(server: str, prompt: Mapping[str, Any]) -> ListedPrompt:
    given = prompt.get("arguments")
    arguments = [
        each
        for each in (given if isinstance(given, list) else ())
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    return ListedPrompt(
        prompt["name"],
        offered_name(server, prompt["name"], set()),
        one_line(str(prompt.get("description") or "")),
        tuple(each["name"] for each in arguments),
        tuple(each["name"] for each in arguments if each.get("required")),
    )


def read_words(prompt: ListedPrompt, words: str) -> dict[str, str]:
    """The arguments that a person wrote: `name=value`, or values in order. Raises `UserError`."""
    try:
        pieces = shlex.split(words)
    except ValueError as error:
        raise UserError(f"{prompt.usage()}: {error}") from None
    given: dict[str, str] = {}
    left = list(prompt.arguments)
    for piece in pieces:
        name, equals, value = piece.partition("=")
        if equals and name in prompt.arguments:
            given[name] = value
            left = [each for each in left if each != name]
        elif left:
            given[left.pop(0)] = piece
        else:
            raise UserError(f"{piece!r} is one argument too many: {prompt.usage()}")
    missing = [each for each in prompt.needed if each not in given]
    if missing:
        raise UserError(f"{', '.join(missing)} is missing: {prompt.usage()}")
    return given


async def get_prompt(connection: McpConnection, prompt: ListedPrompt, words: str) -> str:
    """The prompt's text. Raises `UserError` and `McpError`."""
    params: dict[str, Any] = {"name": prompt.name, "arguments": read_words(prompt, words)}
    answer = await connection.ask("prompts/get", params)
    messages = answer.get("messages")
    parts = [_words(each) for each in _objects(messages)[:MESSAGES_MAX]]
    text = "\n\n".join(part for part in parts if part)
    if not text:
        raise UserError(f"/{prompt.offered_as}: the server gave no text")
    return shortened(text)


def _words(message: Mapping[str, Any]) -> str:
    blocks = message.get("content")
    listed = _objects(blocks if isinstance(blocks, list) else [blocks])
    text = "\n".join(
        part.text for each in listed for part in content_of(each) if isinstance(part, Text)
    )
    return f"[the assistant would say:]\n{text}" if message.get("role") == "assistant" else text


def _objects(values: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
