"""`bargein mcp login` and `logout`: signs in to a server over HTTP in a browser, and forgets it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from bargein import __version__
from bargein.errors import UserError
from bargein.mcp.eras import stateless_era
from bargein.mcp.errors import McpError
from bargein.mcp.oauth.discovery import check_address
from bargein.mcp.oauth.loopback import loopback_browser
from bargein.mcp.server import McpServer
from bargein.mcp.wire import request
from bargein.net.resolver import ThreadResolver
from bargein.runtime.config import Config
from bargein.runtime.mcp_tokens import authorizers

PROBE_S = 15.0


async def login(server: McpServer, config: Config, opens_browser: bool) -> int:
    check_address(server.name, server.url, server.url)
    typed = sys.stdin.fileno() if sys.stdin.isatty() else None
    async with (
        _http() as http,
        loopback_browser(_say, opens_browser=opens_browser, typed=typed) as browser,
    ):
        if typed is not None:
            _say("If the browser is on another machine, paste the address it ends at here.")
        make = authorizers(config, redirect=browser.redirect, visit=browser.visit)
        authorizer = make(server)
        assert authorizer is not None
        await authorizer.sign_in(http, await _challenge(http, server, config))
    print(f"signed in to {server.name}; try it with  bargein mcp test {server.name}")
    return 0


async def logout(server: McpServer, config: Config) -> int:
    authorizer = authorizers(config)(server)
    assert authorizer is not None
    async with _http() as http:
        told = await authorizer.sign_out(http)
    if told is None:
        raise UserError(f"you are not signed in to {server.name}")
    more = (
        ""
        if told
        else "; the server could not revoke the token, which stays valid until it expires"
    )
    print(f"signed out of {server.name}{more}")
    return 0


async def _challenge(http: aiohttp.ClientSession, server: McpServer, config: Config) -> str:
    """What the server says to a request without a token."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **server.headers,
    }
    body = request(1, "server/discover", stateless_era(__version__).params())
    try:
        async with http.post(
            server.url,
            data=body,
            headers=headers,
            allow_redirects=False,
            proxy=config.models.proxy_for(server.url),
            timeout=aiohttp.ClientTimeout(total=PROBE_S),
        ) as answer:
            return answer.headers.get("WWW-Authenticate", "")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        is_silent = isinstance(error, TimeoutError)
        said = str(error) or type(error).__name__
        why = f"it did not answer in {PROBE_S:g} s" if is_silent else said
        raise McpError(server.name, f"{server.url} cannot be reached: {why}") from error


@asynccontextmanager
async def _http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(resolver=ThreadResolver(), use_dns_cache=False)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:
        yield http


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
