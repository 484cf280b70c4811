"""Makes this process a node of a cluster: it listens for the others and can reach them.

    async with open_node(engine, watch=watch, perform=perform) as peers:
        ...

Inside the block, requests about sessions of other nodes go to them over HTTP, and by letter if HTTP
does not work. A program that uses `Engine` alone may leave out `perform`: then other nodes can stop
its sessions, and other requests are refused.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from bargein.cluster.address import is_loopback, place_from
from bargein.cluster.certificate import make_certificate
from bargein.cluster.listener import Watch, listening
from bargein.cluster.peers import Peers
from bargein.contracts.store import ClusterStore
from bargein.session.elsewhere import Perform
from bargein.session.engine import SessionEngine


@asynccontextmanager
async def open_node(
    engine: SessionEngine, *, watch: Watch, perform: Perform | None = None, address: str = ""
) -> AsyncIterator[Peers | None]:
    """Yields None for a store that no other node shares. `address` is where other nodes reach this
    one: HOST, HOST:PORT, or "" for the address by which this machine reaches the database."""
    store, elsewhere = engine.store, engine.elsewhere
    if elsewhere is None or not isinstance(store, ClusterStore):
        yield None
        return
    secret = await store.cluster_secret()
    place = place_from(address, store.server_host)
    certificate = None if is_loopback(place.host) else make_certificate()
    async with (
        Peers(secret) as peers,
        listening(place, secret, elsewhere.answer, watch, certificate=certificate) as here,
    ):
        elsewhere.road, elsewhere.perform = peers, perform
        await store.announce(str(here))
        try:
            yield peers
        finally:
            # Letters still arrive until the engine is closed.
            elsewhere.road = None
            with anyio.CancelScope(shield=True):
                await store.announce("")
