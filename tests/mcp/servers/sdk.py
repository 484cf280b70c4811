"""A server written with the official SDK: what it offers is what people write."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from pydantic import BaseModel

server = MCPServer("sdk", version="1.2.3", instructions="A server for tests.")

# One pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf"
    "c0000003010100c9fe92ef0000000049454e44ae426082"
)


class Name(BaseModel):
    name: str


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.resource("data://facts", mime_type="application/json")
def facts() -> str:
    """What is known."""
    return '{"known": true}'


@server.prompt()
def review(what: str, tone: str = "kind") -> str:
    """Review something."""
    return f"Please review {what} in a {tone} tone."


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("this tool always fails")


@server.tool()
def picture() -> Image:
    """Return a picture."""
    return Image(data=PNG, format="png")


@server.tool()
async def wait(seconds: float, note: str = "") -> str:
    """Wait, and write `note` when it begins and when it ends."""
    _note(note, "began")
    try:
        await anyio.sleep(seconds)
    except BaseException:
        _note(note, "stopped")
        raise
    _note(note, "ended")
    return "waited"


@server.tool()
async def wait_until_stopped(when: str) -> str:
    """Wait, and write the time at which it is stopped."""
    try:
        await anyio.sleep(60)
    finally:
        Path(when).write_text(repr(time.monotonic()))  # noqa: ASYNC240 - it is short
    return "waited"


@server.tool()
def wait_in_thread(seconds: float, note: str = "") -> str:
    """A sync tool: the SDK runs it in a thread, which cannot be stopped."""
    _note(note, "began")
    time.sleep(seconds)
    _note(note, "ended")
    return "waited"


@server.tool()
async def block(seconds: float, note: str = "") -> str:
    """An async tool that blocks its server."""
    _note(note, "began")
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it shows
    _note(note, "ended")
    return "blocked"


@server.tool()
async def steps(number: int, context: Context) -> str:
    """Report progress."""
    for step in range(number):
        await context.report_progress(step, number, f"step {step}")
    return f"{number} steps"


@server.tool()
async def grow(context: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(lambda: "grown", name="grown", description="It is new.")
    await context.notify_tools_changed()
    return "there is one more"


@server.tool()
async def greet(context: Context) -> str:
    """Ask the user for a name."""
    answer = await context.elicit("What is your name?", Name)
    if answer.action != "accept" or answer.data is None:
        return f"no name: {answer.action}"
    return f"hello {answer.data.name}"


def _note(path: str, word: str) -> None:
    if path:
        with Path(path).open("a") as file:
            file.write(f"{word}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
