"""An MCP server that wants a sign-in, with its authorization server, in this process."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from bargein.mcp import McpServer

STATELESS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@dataclass
class OAuthServer:
    """Grants whatever is asked for, to whoever proves the code challenge. `lasts_s` is how long a
    token lasts; `needs` are scopes that calls demand. It notes what it sees."""

    url: str = ""
    lasts_s: int = 3600
    more_metadata: dict[str, str] = field(default_factory=dict)
    more_granted: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ("use",)
    call_needs: tuple[str, ...] = ()
    pkce: bool = True
    refreshes: bool = True
    grants_only: str | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    """The scope of each valid token."""
    refresh_tokens: dict[str, str] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    calls: int = 0
    registered: int = 0
    asked: list[dict[str, str]] = field(default_factory=list)
    grants: list[str] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)

    def configured(self, **options: Any) -> McpServer:
        return McpServer("web", url=f"{self.url}/mcp", **options)

    async def post(self, request: web.Request) -> web.Response:
        scope = self.tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        message = await request.json()
        if scope is None:
            return self._refused(401, 'Bearer scope="{}"', self.needs)
        method = message["method"]
        if method == "tools/call" and not set(self.call_needs) <= set(scope.split()):
            says = 'Bearer error="insufficient_scope", scope="{}"'
            return self._refused(403, says, self.call_needs)
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": self._result(method)}
        return web.json_response(answer)

    def _refused(self, status: int, says: str, scopes: tuple[str, ...]) -> web.Response:
        metadata = f"{self.url}/.well-known/oauth-protected-resource/mcp"
        said = f'{says.format(" ".join(scopes))}, resource_metadata="{metadata}"'
        return web.Response(status=status, headers={"WWW-Authenticate": said})

    def _result(self, method: str) -> dict[str, Any]:
        if method == "server/discover":
            able = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return {**STATELESS, **able}
        if method == "tools/list":
            return {**STATELESS, "tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        self.calls += 1
        return {"resultType": "complete", "content": [{"type": "text", "text": "an answer"}]}

    async def resource(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"resource": f"{self.url}/mcp", "authorization_servers": [self.url]}
        )

    async def metadata(self, request: web.Request) -> web.Response:
        found = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "token_endpoint_auth_methods_supported": ["none"],
            "response_types_supported": ["code"],
        }
        if self.pkce:
            found["code_challenge_methods_supported"] = ["S256"]
        return web.json_response(found | self.more_metadata)

    async def register(self, request: web.Request) -> web.Response:
        self.registered += 1
        return web.json_response({**await request.json(), "client_id": "c1"}, status=201)

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        self.asked.append(asked)
        code = f"code-{len(self.asked)}"
        self.codes[code] = asked
        query = urlencode({"code": code, "state": asked["state"], "iss": self.url})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{query}"})

    async def token(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        self.grants.append(str(form["grant_type"]))
        if form["grant_type"] == "refresh_token":
            scope = self.refresh_tokens.pop(str(form["refresh_token"]), None)
            if scope is None or not self.refreshes:
                return web.json_response({"error": "invalid_grant"}, status=400)
        else:
            asked = self.codes.pop(str(form["code"]))
            digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
                return web.json_response({"error": "invalid_grant"}, status=400)
            scope = asked.get("scope", "")
        return web.json_response(self.granted(scope))

    def granted(self, scope: str) -> dict[str, Any]:
        number = len(self.grants)
        scope = scope if self.grants_only is None else self.grants_only
        self.tokens[f"access-{number}"] = scope
        self.refresh_tokens[f"refresh-{number}"] = scope
        return {
            "access_token": f"access-{number}",
            "refresh_token": f"refresh-{number}",
            "token_type": "Bearer",
            "expires_in": self.lasts_s,
            **self.more_granted,
        }

    async def revoke(self, request: web.Request) -> web.Response:
        self.revoked.append(str((await request.post())["token"]))
        return web.Response(status=200)


@asynccontextmanager
async def oauth_server(**options: Any) -> AsyncIterator[OAuthServer]:
    server = OAuthServer(**options)
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    app.router.add_get("/.well-known/oauth-protected-resource/mcp", server.resource)
    app.router.add_get("/.well-known/oauth-authorization-server", server.metadata)
    app.router.add_get("/authorize", server.authorize)
    for name in ("register", "token", "revoke"):
        app.router.add_post(f"/{name}", getattr(server, name))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
