"""Sends requests to other nodes over HTTP connections that stay open, a few for each node.

The row of a node in the database names its address; the cluster's secret goes with each request.
Every failure raises `RoadBlocked`: the other node may or may not have got the request, and the
caller takes another road.
"""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import aiohttp

from bargein.cluster.address import NodeAddress, parse_node_address
from bargein.contracts.mail import RoadBlocked

CONNECT_S = 1.0
KEEP_S = 60.0
CONNECTIONS_PER_NODE = 64
SILENT_S = 5.0
"""A node that watches for another sends something at least every `LIVES_S`, which is shorter."""
LENGTH_BYTES = 4
FRAME_BYTES_MAX = 64 * 1024 * 1024


class Peers:
    """`async with Peers(secret) as peers:`. Keeps `contracts.mail.Road`."""

    def __init__(self, secret: str) -> None:
        self._headers = {"authorization": f"Bearer {secret}"}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=CONNECTIONS_PER_NODE, keepalive_timeout=KEEP_S
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, address: str, key: str, body: bytes) -> bytes:
        """Asks the node and returns its answer. A cancel ends only the wait."""
        http, node = self._open(address)
        try:
            async with http.post(
                f"{node.url}/node/ask", data=body, params={"key": key}, ssl=_ssl(node)
            ) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RoadBlocked(f"{node.url} answers {response.status}")
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RoadBlocked(f"{node.url}: {str(error) or type(error).__name__}") from error

    async def watch(
        self, address: str, session: str, after: int | None
    ) -> AsyncGenerator[bytes, None]:
        """Yields what the node sends about a session, frame by frame, until it ends. Empty frames
        only show that it lives."""
        http, node = self._open(address)
        params = {"session": session}
        if after is not None:
            params["after"] = str(after)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        try:
            async with http.get(
                f"{node.url}/node/watch", params=params, ssl=_ssl(node), timeout=timeout
            ) as response:
                if response.status != 200:
                    raise RoadBlocked(f"{node.url} answers {response.status}")
                while True:
                    length = int.from_bytes(await response.content.readexactly(LENGTH_BYTES))
                    if length > FRAME_BYTES_MAX:
                        raise RoadBlocked(f"{node.url} sends a frame of {length} bytes")
                    yield await response.content.readexactly(length)
        except EOFError:
            return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RoadBlocked(f"{node.url}: {str(error) or type(error).__name__}") from error

    def _open(self, address: str) -> tuple[aiohttp.ClientSession, NodeAddress]:
        node = parse_node_address(address)
        if node is None or self._http is None or self._http.closed:
            raise RoadBlocked(f"there is no way to {address or 'a node without an address'}")
        return self._http, node


def _ssl(node: NodeAddress) -> aiohttp.Fingerprint | bool:
    return aiohttp.Fingerprint(node.fingerprint) if node.fingerprint is not None else True
