"""Several gateways on one database, each with an engine, a lease and a listener of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.lease import LeaseTimes
from tests.server.stage import Script, Stage, serving

QUICK = LeaseTimes(renew_s=0.4, fence_s=1.0, lasts_s=1.5)


@asynccontextmanager
async def node(
    address: str,
    home: Path,
    name: str,
    script: Script = (),
    *,
    lease: LeaseTimes | None = QUICK,
    tools: Sequence[Callable[..., object]] = (),
    **more: Any,
) -> AsyncIterator[Stage]:
    """One node. It leaves in order at the end."""
    home = home / name
    home.mkdir()
    store = await PostgresStore.open(address, owner=name, lease=lease)
    try:
        async with serving(
            list(script), home, store=store, tables=address, tools=tools, start_token=None, **more
        ) as stage:
            yield stage
    finally:
        await store.aclose()


@asynccontextmanager
async def nodes(
    address: str, home: Path, scripts: Sequence[Script], **more: Any
) -> AsyncIterator[list[Stage]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(node(address, home, f"node{number}", script, **more))
            for number, script in enumerate(scripts)
        ]
