"""Tickets: how a page opens a WebSocket without its token in the handshake.

A page cannot set headers on a WebSocket. It can set the address and the subprotocols, which many
proxies log. So the page gets a ticket over HTTP with its token, and offers the ticket as a
subprotocol. A ticket opens one socket of one session, once, within `VALID_S`, at any node that
shares the tables. So a ticket found in a log later is useless. Programs that can set headers send
their token in `Authorization` and need no ticket.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from bargein.server.access import Principal
from bargein.server.gateway_tables import GatewayTables
from bargein.server.problems import Code, Problem

PROTOCOL = "bargein.v1"
TICKET_PROTOCOL = "bargein.ticket."
VALID_S = 15.0
# For each principal. A page uses its ticket at once, so more than a few mean a misuse.
WAITING_MAX = 64


class TicketBody(msgspec.Struct, frozen=True):
    """Whom a ticket was given to, and for which session."""

    principal: Principal
    session: str


_body = msgspec.json.Decoder(TicketBody)


class Tickets:
    """Gives and takes tickets. The tables keep them, by hash; only those that this node gave are
    counted here, oldest first."""

    def __init__(self, db: GatewayTables, now: Callable[[], float] = time.time) -> None:
        self._db = db
        self._now = now
        self._given: dict[bytes, tuple[str, float]] = {}

    async def give(self, principal: Principal, session: str) -> str:
        """Returns a new ticket. Drops the principal's oldest if it has `WAITING_MAX` unused."""
        now = self._now()
        ticket = secrets.token_urlsafe(32)
        digest = _hash(ticket)
        # Counted before the first await, because requests for tickets come at the same time.
        dropped = self._drop_expired(now) + self._drop_oldest_of(principal.name)
        self._given[digest] = principal.name, now + VALID_S
        for each in dropped:
            await self._db.take_ticket(each, now)
        body = msgspec.json.encode(TicketBody(principal, session))
        await self._db.keep_ticket(digest, body, now + VALID_S)
        return ticket

    async def take(self, ticket: str, session: str) -> Principal:
        """Returns the principal this ticket was given to, or raises `Problem`. It is used up either
        way, also if it was offered for the wrong session."""
        digest = _hash(ticket)
        self._given.pop(digest, None)
        body = await self._db.take_ticket(digest, self._now())
        found = _body.decode(body) if body is not None else None
        if found is None or found.session != session:
            raise Problem(
                Code.UNAUTHENTICATED,
                "the ticket was used, has expired or is for another session; ask for a new one",
            )
        return found.principal

    def _drop_expired(self, now: float) -> list[bytes]:
        # All are valid for equally long, so the oldest are at the beginning.
        dropped = list(takewhile(lambda digest: self._given[digest][1] <= now, self._given))
        for digest in dropped:
            del self._given[digest]
        return dropped

    def _drop_oldest_of(self, who: str) -> list[bytes]:
        mine = [digest for digest, (given_to, _) in self._given.items() if given_to == who]
        dropped = mine[: max(0, len(mine) - WAITING_MAX + 1)]
        for digest in dropped:
            del self._given[digest]
        return dropped


def ticket_in(subprotocols: Sequence[str]) -> str | None:
    """Returns the ticket among the subprotocols that a handshake offers, or None."""
    for each in subprotocols:
        if each.startswith(TICKET_PROTOCOL):
            return each.removeprefix(TICKET_PROTOCOL)
    return None


def _hash(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode("utf-8", "replace")).digest()
