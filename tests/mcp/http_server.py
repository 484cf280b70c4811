"""A server over HTTP in this process, of either era, which notes what it sees and can misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from bargein.mcp import McpServer

HttpAnswer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

SCHEMA = {"type": "object", "properties": {"where": {"type": "string", "x-mcp-header": "Where"}}}
WRONG = {"type": "object", "properties": {"where": {"type": "number", "x-mcp-header": "Where"}}}


@dataclass
class HttpServer:
    stateless: bool
    url: str = ""
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """The calls whose stream the client closed."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    asked: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    session: str = "session-1"
    ended_sessions: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    refuses_notices: bool = False
    runner: web.AppRunner | None = None

    async def stop(self) -> None:
        self.release.set()
        assert self.runner is not None
        await self.runner.cleanup()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.seen]

    def configured(self, name: str = "web", **options: Any) -> McpServer:
        return McpServer(name, url=self.url, **options)

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        method = message.get("method", "")
        self.seen.append((method, message))
        self.headers.append(dict(request.headers))
        if not method:
            self.asked[message["id"]].set_result(message.get("result"))
            return web.Response(status=202)
        if "id" not in message:
            return web.Response(status=503 if self.refuses_notices else 202)
        has_session = request.headers.get("Mcp-Session-Id") == self.session
        needs_session = method not in ("initialize", "server/discover")
        if not self.stateless and needs_session and not has_session:
            return web.Response(status=404)
        answer: HttpAnswer = getattr(self, f"on_{method.replace('/', '_')}", self.on_unknown)
        return await answer(request, message)

    async def get(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        if last is None:
            return web.Response(status=405)
        self.resumed.append(last)
        stream = await self._stream(request)
        call_id = int(last.rpartition("-")[2])
        await _event(stream, self._text(call_id, "from the second stream"))
        return stream

    async def delete(self, request: web.Request) -> web.Response:
        self.ended_sessions.append(request.headers.get("Mcp-Session-Id", ""))
        return web.Response(status=200)

    async def on_unknown(self, request: web.Request, message: dict[str, Any]) -> web.Response:
        return web.json_response(status=404, data=_error(message, -32601, "no such method"))

    async def on_server_discover(
        self, request: web.Request, message: dict[str, Any]
    ) -> web.Response:
        if not self.stateless:
            return web.Response(status=400, text="Bad Request: no session")
        value = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        return web.json_response(self._result(message["id"], value))

    async def on_initialize(self, request: web.Request, message: dict[str, Any]) -> web.Response:
        value = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "web", "version": "1"},
        }
        headers = {"Mcp-Session-Id": self.session}
        return web.json_response(self._result(message["id"], value), headers=headers)

    async def on_tools_list(self, request: web.Request, message: dict[str, Any]) -> web.Response:
        names = ["echo", "stream", "hang", "ask", "cut", "resume", "html", "flood", "huge"]
        tools = [{"name": name, "inputSchema": SCHEMA} for name in names]
        tools.append({"name": "wrong", "inputSchema": WRONG})
        return web.json_response(self._result(message["id"], {"tools": tools}))

    async def on_tools_call(
        self, request: web.Request, message: dict[str, Any]
    ) -> web.StreamResponse:
        name, call_id = message["params"]["name"], message["id"]
        if name == "echo":
            return web.json_response(self._text(call_id, "an answer"))
        if name == "html":
            return web.Response(text="<html>proxy</html>", content_type="text/html")
        stream = await self._stream(request)
        try:
            await getattr(self, f"_call_{name}")(stream, call_id, message)
        except (ConnectionResetError, asyncio.CancelledError):
            self.closed.append(name)
            raise
        return stream

    async def _call_stream(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        await stream.write(b": a comment\n\n")
        token = message["params"]["_meta"]["progressToken"]
        note = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        await _event(stream, {"jsonrpc": "2.0", "method": "notifications/progress", "params": note})
        await _event(stream, self._text(call_id, "streamed"))

    async def _call_hang(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        # Written to again and again: only so does a server learn that nobody reads.
        while not self.release.is_set():
            await stream.write(b": waiting\n\n")
            try:
                await asyncio.wait_for(self.release.wait(), 0.02)
            except TimeoutError:
                pass
        await _event(stream, self._text(call_id, "released"))

    async def _call_ask(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        answered = self.asked["q1"] = asyncio.get_running_loop().create_future()
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
        params = {"message": "Really?", "requestedSchema": schema}
        await _event(
            stream,
            {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": params},
        )
        await _event(stream, self._text(call_id, json.dumps(await answered)))

    async def _call_cut(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        await stream.write(b": and no more\n\n")

    async def _call_resume(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        await stream.write(f"id: e-{call_id}\nretry: 10\ndata:\n\n".encode())

    async def _call_flood(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        while True:
            await stream.write(b'data: {"jsonrpc": "2.0", "method": "notifications/x"}\n\n' * 200)

    async def _call_huge(self, stream: web.StreamResponse, call_id: int, message: Any) -> None:
        for _ in range(40):
            await stream.write(b"data: " + b"x" * (1 << 20) + b"\n")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        return stream

    def _text(self, request_id: object, words: str) -> dict[str, Any]:
        return self._result(request_id, {"content": [{"type": "text", "text": words}]})

    def _result(self, request_id: object, value: dict[str, Any]) -> dict[str, Any]:
        kind = {"resultType": "complete"} if self.stateless else {}
        return {"jsonrpc": "2.0", "id": request_id, "result": {**kind, **value}}


def _error(message: dict[str, Any], code: int, words: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": words}}


async def _event(stream: web.StreamResponse, message: dict[str, Any]) -> None:
    await stream.write(b"data: " + json.dumps(message).encode() + b"\n\n")


@asynccontextmanager
async def http_server(stateless: bool, path: str = "/mcp") -> AsyncIterator[HttpServer]:
    server = HttpServer(stateless)
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    app.router.add_get("/mcp", server.get)
    app.router.add_delete("/mcp", server.delete)
    app.router.add_post("/moved", _moved)
    app.router.add_post("/locked", _locked)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    server.runner = runner
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}{path}"
    try:
        yield server
    finally:
        await server.stop()


async def _moved(request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"Location": "https://elsewhere.example/mcp"})


async def _locked(request: web.Request) -> web.Response:
    if request.headers.get("Authorization") == "Bearer s3cret":
        return web.Response(status=500, text="let in")
    return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
