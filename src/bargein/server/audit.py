"""Who did what and when: an entry for everything that changes something, and for who was refused.

Entries are written in order, within a moment of the answer and not before it: what is in the
session's own log (the message, the stop, and by whom) is durable before it is acknowledged, and
this tells of it. No entry has the words of a message or a token in it.
"""

import sqlite3
import time

from bargein.server.access import Principal
from bargein.server.gateway_db import GatewayDb
from bargein.server.limits import Rate
from bargein.server.shapes import AuditEntry

REFUSALS_PER_S = 1.0
REFUSALS_BURST = 20
# However many addresses they come from.
ALL_REFUSALS_PER_S = 10.0
ALL_REFUSALS_BURST = 200
DETAIL_CHARACTERS_MAX = 500
NAME_CHARACTERS_MAX = 200
ENTRIES_MAX = 256
INSERT = (
    "INSERT INTO audit (at, principal, token, address, action, session, target, status, detail) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Audit:
    def __init__(self, db: GatewayDb) -> None:
        self._db = db
        self._entries: list[tuple[float | str | int, ...]] = []
        # Somebody who tries tokens must not fill the disk with the notes of it.
        self._refusals = Rate(REFUSALS_PER_S, REFUSALS_BURST)
        self._all_refusals = Rate(ALL_REFUSALS_PER_S, ALL_REFUSALS_BURST)

    def note(
        self,
        who: Principal,
        *,
        address: str,
        action: str,
        session: str,
        target: str,
        status: int,
        detail: str = "",
    ) -> None:
        # What was named is whatever somebody sent.
        named = (session[:NAME_CHARACTERS_MAX], target[:NAME_CHARACTERS_MAX])
        self._add(who.name, who.token, address, action, *named, status, detail)

    def refused(self, address: str, action: str, status: int, detail: str) -> None:
        if not self._refusals.take(address) and not self._all_refusals.take(""):
            self._add("", "", address, action, "", "", status, detail)

    def _add(self, *values: str | int) -> None:
        *others, detail = values
        self._entries.append((time.time(), *others, str(detail)[:DETAIL_CHARACTERS_MAX]))
        if len(self._entries) >= ENTRIES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand over what has gathered: called a few times a second, and at the end."""
        entries, self._entries = self._entries, []
        if entries:
            self._db.run(lambda connection: connection.executemany(INSERT, entries).rowcount)

    async def read(self, after: int, limit: int) -> list[AuditEntry]:
        self.flush()

        def select(connection: sqlite3.Connection) -> list[AuditEntry]:
            rows = connection.execute(
                "SELECT number, at, principal, token, address, action, session, target, status, "
                "detail FROM audit WHERE number > ? ORDER BY number LIMIT ?",
                (after, limit),
            ).fetchall()
            return [AuditEntry(*row) for row in rows]

        return await self._db.run(select)
