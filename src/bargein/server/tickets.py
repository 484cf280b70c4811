"""Tickets: how a page opens a WebSocket without its token in the handshake.

A page sets no headers on a WebSocket, and what it can put there (the address, the subprotocols)
stands in the logs of many proxies. So the page asks for a ticket over HTTP, by its token, and
offers the ticket as a subprotocol. A ticket opens one socket of one session, once, within
`VALID_S`: whoever reads it in a log later can do nothing with it. Programs that can set headers
show their token in `Authorization` and need no ticket.
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
# Of one principal. A page uses each at once; more are only there if somebody collects them.
WAITING_MAX = 64


@dataclass(frozen=True, slots=True)
class _Ticket:
    principal: Principal
    session: str
    expires_at: float


class Tickets:
    """Those that were given out and not used yet, by their hashes, the oldest first."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting: dict[bytes, _Ticket] = {}

    def give(self, principal: Principal, session: str) -> str:
        """A new ticket. The oldest of this principal makes way if too many wait."""
        self._drop_expired()
        mine = [key for key, each in self._waiting.items() if each.principal.name == principal.name]
        for key in mine[: max(0, len(mine) - WAITING_MAX + 1)]:
            del self._waiting[key]
        ticket = secrets.token_urlsafe(32)
        self._waiting[_hash(ticket)] = _Ticket(principal, session, self._now() + VALID_S)
        return ticket

    def take(self, ticket: str, session: str) -> Principal:
        """Who was given this ticket for this session. It is used up, also by a wrong session."""
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
    """The ticket among what a WebSocket's handshake offers, if there is one."""
    for each in subprotocols:
        if each.startswith(TICKET_PROTOCOL):
            return each.removeprefix(TICKET_PROTOCOL)
    return None


def _hash(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode("utf-8", "replace")).digest()
