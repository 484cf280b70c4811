"""The gateway inside an app of your own: one ASGI app, mounted at its root.

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Engine(agent) as engine, open_gateway(engine, directory) as gateway:
            app.mount("/", gateway)
            yield

`examples/gateway_in_app.py` is the whole program.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from bargein.runtime.engine import Engine
from bargein.server.access import Access
from bargein.server.app import build_app, running
from bargein.server.gateway import Gateway, Settings
from bargein.server.gateway_tables import open_tables
from bargein.server.limits import GatewayLimits

__all__ = ["open_gateway"]


@asynccontextmanager
async def open_gateway(
    engine: Engine[Any],
    directory: str | Path,
    *,
    operator_token: str | None = None,
    settings: Settings | None = None,
    limits: GatewayLimits | None = None,
) -> AsyncIterator[ASGIApp]:
    """Opens the gateway over an open engine, and yields its app: the API under /v1, the page at /.

    Mount it last and at "/", because the page and its links begin there. `directory` holds the
    gateway's own file: bearer tokens, owners of sessions, the audit log. If the engine's
    sessions are in PostgreSQL, so are these. `bargein token add` makes
    tokens for it; `operator_token` lets its bearer in as the operator. `Settings(names=...)` names
    the hosts by which people reach your app, besides addresses and localhost. Leaving the block
    ends all streams; the engine stops the turns when it is closed.
    """
    db = await open_tables(Path(directory), getattr(engine.core.store, "opened_with", None))
    try:
        access = Access(db, start_token=operator_token)
        gateway = Gateway(engine.core, db, access, limits=limits, settings=settings, mcp=engine)
        async with running(gateway):
            try:
                yield build_app(gateway)
            finally:
                gateway.cut_streams()
    finally:
        await db.aclose()
