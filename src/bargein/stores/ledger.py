"""Where each session's log ends, remembered by the writer so that a commit need not look it up.

Only a hint, which may be out of date: the statement that uses it repeats all of it as a condition,
and a commit that does not meet it looks again. Used in the writer's thread alone.
"""

import sqlite3

ENTRIES_MAX = 20_000

# If the last events were removed, the index may reach beyond those that are there.
LAST_EVENT = """SELECT max(indexed, coalesce((SELECT max(number) FROM events), 0)) FROM store
    WHERE one = 1"""


LOOK_UP = """SELECT s.number, coalesce(r.id, s.id), s.last
    FROM sessions s LEFT JOIN sessions r ON r.number = s.root WHERE s.id = ?"""

Entry = tuple[int, str, int]
"""The number of a session, the root that it is or is under, and the number of its last event."""

NOWHERE: Entry = (-1, "", -1)


class Ledger:
    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._next_event = 0

    def begin(self, connection: sqlite3.Connection) -> None:
        """At the beginning of a transaction: from here on nobody else can add an event. Without
        it the numbers are a hint as well, and one that was used by others is refused."""
        (last,) = connection.execute(LAST_EVENT).fetchone()
        self._next_event = last + 1

    def take_numbers(self, count: int) -> int:
        """The first of `count` numbers for events. If they are not used, nobody misses them."""
        first = self._next_event
        self._next_event += count
        return first

    def get(self, session: str) -> Entry:
        return self._entries.get(session, NOWHERE)

    def look_up(self, connection: sqlite3.Connection, session: str) -> Entry:
        row = connection.execute(LOOK_UP, (session,)).fetchone()
        return NOWHERE if row is None else (row[0], row[1], row[2])

    def forget(self, session: str) -> None:
        self._entries.pop(session, None)

    def put(self, session: str, entry: Entry) -> None:
        self._entries[session] = entry

    def trim(self) -> None:
        """Not while something is being written: what it has left is looked for by its entry."""
        while len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]
