"""The `web_fetch` tool returns a page of the public web as text.

`web_client` bounds and confines the request. A separate process parses the HTML, so that no page
can block the program. A stop closes the connection at once.
"""

import socket
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from bargein.calls.text import CONTENT_CHARS_MAX
from bargein.calls.words import text_result
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.net.public_address import read_networks
from bargein.process import CaptureLimits
from bargein.tools.context import ToolContext
from bargein.tools.declaration import Tool, tool
from bargein.tools.tool_environment import ToolEnvironment, child_argv, wait_and_sweep
from bargein.tools.web_text import decode

if TYPE_CHECKING:
    from bargein.tools.web_client import Fetched, Lookup

_SHOWN_CHARS_MAX = CONTENT_CHARS_MAX - 1_000
_TEXT_BYTES_MAX = 2 << 20
_TEXT_TYPES = ("json", "xml", "javascript", "yaml", "toml", "csv", "x-sh", "sql", "graphql")


def web_fetch_tool(
    tool_environment: ToolEnvironment, lookup: "Lookup" = socket.getaddrinfo
) -> Tool[..., Any]:
    settings = tool_environment.settings
    allowed = read_networks(settings.web_networks_allowed)

    @tool(
        effect=Effect.NONE,
        timeout_s=settings.web_timeout_s,
        subject="url",
        title=lambda arguments: f"fetch {arguments['url']}",
        example={"url": "https://example.org/"},
    )
    async def web_fetch(
        url: str, context: ToolContext, start: Annotated[int, msgspec.Meta(ge=0)] = 0
    ) -> CallResult:
        """Fetch a page of the public web and get its text, with headings and links kept.

        Args:
            url: Its address, with https:// or http://.
            start: The character to begin with, to read on in a long page.
        """
        from bargein.tools.web_client import WebClient

        client = WebClient(bytes_max=settings.web_bytes_max, allowed=allowed, lookup=lookup)
        page = await client.fetch(url, context.token)
        text = await _text(page, tool_environment, context)
        return _result(page, text, start)

    return web_fetch


async def _text(page: "Fetched", tool_environment: ToolEnvironment, context: ToolContext) -> str:
    kind = page.media_type
    if kind in ("text/html", "application/xhtml+xml") or (not kind and _looks_like_html(page)):
        return await _html(page, tool_environment, context)
    is_text = kind.startswith("text/") or any(word in kind for word in _TEXT_TYPES)
    if (not kind or is_text) and b"\0" not in page.content[:1024]:
        return decode(page.content, page.charset or "utf-8")
    return f"(No text: {len(page.content)} bytes of {kind or 'an unknown type'}.)"


def _looks_like_html(page: "Fetched") -> bool:
    return page.content.lstrip()[:1] == b"<"


async def _html(page: "Fetched", tool_environment: ToolEnvironment, context: ToolContext) -> str:
    process = await tool_environment.start(
        child_argv("web_text"),
        context,
        environment={},
        with_input=True,
        output=CaptureLimits(head_bytes=_TEXT_BYTES_MAX, tail_bytes=0),
    )
    head = msgspec.json.encode({"charset": page.charset, "url": page.url})
    exited, _ = await wait_and_sweep(process, context, feed=head + b"\n" + page.content)
    if exited.code != 0:
        return f"(The page could not be read as HTML: {exited}.)"
    return process.output.head.decode("utf-8", "replace")


def _result(page: "Fetched", text: str, start: int) -> CallResult:
    shown = text[start : start + _SHOWN_CHARS_MAX]
    notes = []
    if start + len(shown) < len(text):
        notes.append(f"{len(text)} characters in all; start={start + len(shown)} reads on")
    if page.truncated:
        notes.append(f"the page is longer: only its first {len(page.content)} bytes were read")
    if not shown.strip():
        shown = "(no text)" if start == 0 else f"(the text has only {len(text)} characters)"
    line = f"{page.url} ({page.status} {page.reason})".replace(" )", ")")
    end = f"\n[{'; '.join(notes)}]" if notes else ""
    status = CallStatus.FINISHED if page.status < 400 else CallStatus.FAILED
    return text_result(status, f"{line}\n\n{shown}{end}", f"{page.status} {page.url}")
