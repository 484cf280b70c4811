"""Limits of a principal, counted across the nodes of a cluster.

Each node tells the others four times a second what principals use there, if it is much: requests
and bytes since the last time, turns that run, streams that are open. What was used elsewhere is
taken from the principal's buckets here, and counts as running or open here. So a principal can
exceed a limit by what it does within `TELL_S`, and by up to a tenth of the limit for each further
node, because less than that is not told. Bounds on memory and connections are each node's own.
"""

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.errors import BargeinError

if TYPE_CHECKING:
    from bargein.server.gateway import Gateway

_log = logging.getLogger("bargein.server")

TELL_S = 0.25
# What a node that is gone has told counts for this long.
COUNTS_S = 2.0
SHARE_TOLD = 0.1
NAMES_MAX = 100


class Use(msgspec.Struct, frozen=True):
    """Requests and bytes since the last time; turns and streams now. By principal."""

    requests: dict[str, int] = {}
    body_bytes: dict[str, int] = {}
    turns: dict[str, int] = {}
    streams: dict[str, int] = {}


_decode = msgspec.json.Decoder(Use).decode


class SharedUse:
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._others: dict[str, tuple[float, Use]] = {}
        if gateway.db.is_shared:
            gateway.rate.taken = Counter()
            gateway.flow.taken = Counter()

    def turns_elsewhere(self, owner: str) -> int:
        return sum(use.turns.get(owner, 0) for use in self._fresh())

    def streams_elsewhere(self, principal: str) -> int:
        return sum(use.streams.get(principal, 0) for use in self._fresh())

    def _fresh(self) -> list[Use]:
        if not self._others:
            return []
        since = time.monotonic() - COUNTS_S
        return [use for at, use in self._others.values() if at >= since]

    async def tell(self) -> None:
        """Tells the other nodes, until cancelled."""
        was_told = Use()
        while True:
            await anyio.sleep(TELL_S)
            use = self.take()
            if use == Use() and was_told == Use():
                continue
            try:
                await self._gateway.db.tell_use(msgspec.json.encode(use))
                was_told = use
            except BargeinError as error:
                _log.warning("other nodes cannot be told what is used here: %s", error)

    def take(self) -> Use:
        """Returns what is worth telling, and begins to count anew."""
        gateway, limits = self._gateway, self._gateway.limits
        turns: Counter[str] = Counter()
        for session in gateway.engine.in_memory:
            actor = gateway.engine.actor_in_memory(session)
            owned = gateway.access.owned(session)
            if owned is not None and actor is not None and actor.state.busy:
                turns[owned.owner] += 1
        streams = Counter(each.principal.name for each in gateway.streams)
        return Use(
            _most(_emptied(gateway.rate.taken), limits.requests_per_s * TELL_S),
            _most(_emptied(gateway.flow.taken), limits.body_bytes_per_s * TELL_S),
            _most(turns, limits.turns_max),
            _most(streams, limits.streams_max),
        )

    def hear(self, node: str, told: bytes) -> None:
        """Counts what principals use at another node."""
        try:
            use = _decode(told)
        except msgspec.MsgspecError as error:
            _log.warning("node %s tells what cannot be read: %s", node, error)
            return
        now = time.monotonic()
        for name in [each for each, (at, _) in self._others.items() if now - at > COUNTS_S]:
            del self._others[name]
        self._others[node] = now, use
        for who, count in use.requests.items():
            self._gateway.rate.charge(who, count)
        for who, count in use.body_bytes.items():
            self._gateway.flow.charge(who, count)


def _emptied(counter: Counter[str] | None) -> dict[str, int]:
    if not counter:
        return {}
    counted = dict(counter)
    counter.clear()
    return counted


def _most(counted: dict[str, int] | Counter[str], limit: float) -> dict[str, int]:
    """Returns the principals that use a notable share of the limit, the largest first."""
    found = [(who, count) for who, count in counted.items() if count >= limit * SHARE_TOLD]
    found.sort(key=lambda each: -each[1])
    return dict(found[:NAMES_MAX])
