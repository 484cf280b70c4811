"""A standby that answers lists and searches, so that the primary need not.

Its answers may be a moment old, but at most `BEHIND_S_MAX`. The row of this node's lease shows how
far it is behind, because the node renews that row all the time. The primary answers instead, and
the standby is not asked for a while, if it is further behind, if it does not answer within a bound,
or if this store is not a node.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import asyncpg

from bargein.contracts.store import StoreFailed
from bargein.stores.postgres.connection import Connection, ReadConnections, Work

T = TypeVar("T")

BEHIND_S_MAX = 10.0
ANSWER_S = 2.0
AGAIN_S = 10.0

RENEWED_UNTIL = "SELECT extract(epoch FROM lease_until)::float8 FROM bargein.nodes WHERE id = $1"


class Replica:
    """`lease` returns the name of this node and until when it renewed its lease last, by
    PostgreSQL's clock; 0 for no node."""

    def __init__(self, links: ReadConnections, lease: Callable[[], tuple[str, float]]) -> None:
        self._links = links
        self._lease = lease
        self._left_alone_until = 0.0

    async def try_(self, work: Work[T]) -> tuple[T] | None:
        """What `work` returns at the standby. Returns None if the primary is to be asked."""
        node, until = self._lease()
        if not until or time.monotonic() < self._left_alone_until:
            return None

        async def at_standby(connection: Connection) -> tuple[T] | None:
            known = await connection.fetchval(RENEWED_UNTIL, node)
            if known is None or until - known > BEHIND_S_MAX:
                return None
            return (await work(connection),)

        found: tuple[T] | None = None
        try:
            found = await self._links.run(at_standby, bound_s=ANSWER_S)
        except (StoreFailed, asyncpg.PostgresError):
            pass  # a standby may cancel a statement at any time; the primary answers
        if found is None:
            self._left_alone_until = time.monotonic() + AGAIN_S
        return found

    async def aclose(self) -> None:
        await self._links.aclose()
