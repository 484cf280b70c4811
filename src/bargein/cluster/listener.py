"""Listens for the other nodes of a cluster. It takes two requests.

`POST /node/ask?key=...` performs another node's request and returns the answer. A caller that goes
away ends only its own waiting. `GET /node/watch?session=...&after=...` sends frames about a session
until the session leaves this node; a frame is its length in four bytes and as many bytes. Both need
the secret of the cluster. On a network the listener speaks TLS; plain HTTP is for loopback only.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from aiohttp import web

from bargein.cluster.address import ListeningPlace, NodeAddress
from bargein.cluster.certificate import OwnCertificate
from bargein.cluster.peers import LENGTH_BYTES
from bargein.errors import BargeinError, UserError

Answer = Callable[[str, bytes], Awaitable[bytes]]
Watch = Callable[[str, int | None], AsyncGenerator[bytes, None]]

ASK_BYTES_MAX = 16 * 1024 * 1024
LIVES_S = 1.0
CLOSE_S = 1.0

_log = logging.getLogger("bargein.cluster")


@asynccontextmanager
async def listening(
    place: ListeningPlace,
    secret: str,
    answer: Answer,
    watch: Watch,
    *,
    certificate: OwnCertificate | None,
) -> AsyncIterator[NodeAddress]:
    """Listens while the block runs; without a certificate, in plain HTTP. Yields the address for
    the other nodes."""
    app = web.Application(client_max_size=ASK_BYTES_MAX)
    handlers = _Handlers(secret, answer, watch)
    app.router.add_post("/node/ask", handlers.ask)
    app.router.add_get("/node/watch", handlers.watch)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_S)
    await runner.setup()
    try:
        context = certificate.context if certificate is not None else None
        site = web.TCPSite(runner, place.host, place.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            raise UserError(
                f"cannot listen for other nodes on {place.host}, port {place.port}: "
                f"{error.strerror or error}; set cluster.address to HOST:PORT"
            ) from error
        port = runner.addresses[0][1]
        scheme = "http" if certificate is None else "https"
        yield NodeAddress(
            f"{scheme}://{place.shown_host}:{port}",
            certificate.fingerprint if certificate is not None else None,
        )
    finally:
        await runner.cleanup()


class _Handlers:
    def __init__(self, secret: str, answer: Answer, watch: Watch) -> None:
        self._shown = f"Bearer {secret}".encode()
        self._answer = answer
        self._watch = watch

    def _check(self, request: web.Request) -> None:
        shown = request.headers.get("authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(shown, self._shown):
            raise web.HTTPUnauthorized

    async def ask(self, request: web.Request) -> web.Response:
        self._check(request)
        key = request.query.get("key", "")
        if not key:
            raise web.HTTPBadRequest
        return web.Response(body=await self._answer(key, await request.read()))

    async def watch(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        after = request.query.get("after")
        if after is not None and not after.isdecimal():
            raise web.HTTPBadRequest
        response = web.StreamResponse()
        await response.prepare(request)
        frames: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        session = request.query.get("session", "")
        place = int(after) if after is not None else None
        reading = asyncio.create_task(self._read(session, place, frames))
        try:
            while True:
                try:
                    async with asyncio.timeout(LIVES_S):
                        frame = await frames.get()
                except TimeoutError:
                    frame = b""
                if frame is None:
                    return response
                await response.write(len(frame).to_bytes(LENGTH_BYTES) + frame)
        except ConnectionError:
            return response
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, session: str, after: int | None, frames: asyncio.Queue[bytes | None]
    ) -> None:
        try:
            async with aclosing(self._watch(session, after)) as found:
                async for frame in found:
                    await frames.put(frame)
        except BargeinError as error:
            _log.info("session %s cannot be shown to another node: %s", session, error)
        await frames.put(None)
