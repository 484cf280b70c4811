"""Tickets: how a page opens a WebSocket without its token in the handshake.

A page cannot set headers on a WebSocket. It can set the address and the subprotocols, which many
proxies log. So the page gets a ticket over HTTP with its token, and offers the ticket as a
subprotocol. A ticket opens one socket of one session, once, within `VALID_S`, so a ticket found in
a log later is useless. Programs that can set headers send their token in `Authorization` and need
no ticket.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bargein.server.access import Principal
from bargein.server.problems import Code, Problem

PROTOCOL = "bargein.v1"
TICKET_PROTOCOL = "bargein.ticket."
VALID_S = 15.0
# For each principal. A page uses its ticket at once, so more than a few mean a misuse.
WAITING_MAX = 64


@dataclass(frozen=True, slots=True)
class _Ticket:
    principal: Principal
    session: str
    expires_at: float


class Tickets:
    """The tickets that were given out and not used yet, by hash, oldest first."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting: dict[bytes, _Ticket] = {}

    def give(self, principal: Principal, session: str) -> str:
        """Returns a new ticket. Drops the principal's oldest if it has `WAITING_MAX` unused."""
        self._drop_expired()
        mine = [key for key, each in self._waiting.items() if each.principal.name == principal.name]
        for key in mine[: max(0, len(mine) - WAITING_MAX + 1)]:
            del self._waiting[key]
        ticket = secrets.token_urlsafe(32)
        self._waiting[_hash(ticket)] = _Ticket(principal, session, self._now() + VALID_S)
        return ticket

    def take(self, ticket: str, session: str) -> Principal:
        """Returns the principal this ticket was given to, or raises `Problem`. It is used up either
        way, also if it was offered for the wrong session."""
        self._drop_expired()
        found = self._waiting.pop(_hash(ticket), None)
        if found is None or found.session != session:
            raise Problem(
                Code.UNAUTHENTICATED,
                "the ticket was used, has expired or is for another session; ask for a new one",
            )
        return found.principal

    def _drop_expired(self) -> None:
        now = self._now()
        # All are valid for equally long, so the oldest are at the beginning.
        while self._waiting:
            oldest = next(iter(self._waiting))
            if self._waiting[oldest].expires_at > now:
                return
            del self._waiting[oldest]


def ticket_in(subprotocols: Sequence[str]) -> str | None:
    """Returns the ticket among the subprotocols that a handshake offers, or None."""
    for each in subprotocols:
        if each.startswith(TICKET_PROTOCOL):
            return each.removeprefix(TICKET_PROTOCOL)
    return None


def _hash(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode("utf-8", "replace")).digest()
