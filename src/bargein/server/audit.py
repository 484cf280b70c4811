"""The audit log: who did what and when. Every change has an entry, and so has every refusal.

Entries are written in order, a moment after the answer. A change itself (the message, the stop, and
by whom) is durable in the session's log before it is acknowledged; the entry only records it. No
entry contains the words of a message, or a token.
"""

import time

import msgspec

from bargein.server.access import Principal
from bargein.server.gateway_tables import AuditValues, GatewayTables
from bargein.server.limits import Rate
from bargein.server.shapes import AuditEntry

REFUSALS_PER_S = 1.0
REFUSALS_BURST = 20
# For all addresses together.
ALL_REFUSALS_PER_S = 10.0
ALL_REFUSALS_BURST = 200
DETAIL_CHARACTERS_MAX = 500
NAME_CHARACTERS_MAX = 200
ENTRIES_MAX = 256


class Audit:
    def __init__(self, db: GatewayTables) -> None:
        self._db = db
        self._entries: list[AuditValues] = []
        # Somebody who guesses tokens must not fill the disk with entries.
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
        # The client chose these names, so they may be of any length.
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
        """Starts writing the entries gathered so far. Called a few times a second."""
        entries, self._entries = self._entries, []
        if entries:
            self._db.add_entries(entries)

    async def read(self, after: int, limit: int) -> list[AuditEntry]:
        self.flush()
        found = await self._db.entries(after, limit)
        return [_entry(number, values) for number, values in found]


def _entry(number: int, values: AuditValues) -> AuditEntry:
    named = dict(zip(AuditEntry.__struct_fields__, (number, *values), strict=True))
    return msgspec.convert(named, AuditEntry)
