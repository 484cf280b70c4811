"""SQL about sessions, except commits (`commit_sql`) and searches (`search_sql`).

Each function does one operation of the store on a connection. Functions that write run inside the
writer's transaction, each under its own savepoint; if one raises, it is undone. Each fetches all
rows or closes its cursor: an open cursor would keep the connection at an old moment. A statement
reads no rows of other sessions: `tests/stores` checks the query plans.
"""

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing

from bargein.contracts.event import Recorded
from bargein.contracts.store import AcceptKey, SessionHead, StaleEpoch
from bargein.stores.encoding import SEQ_MAX, decode_events
from bargein.stores.sqlite.large_sql import LET_GO, LongValues
from bargein.stores.sqlite.search_sql import remove_text

SWEEP_ROWS = 200

EventRow = tuple[int, float, bytes]
"""Seq, time and body of an event."""

HEAD = """SELECT s.id, coalesce(r.id, s.id), coalesce(r.epoch, s.epoch), s.seq, s.state, s.title,
    s.created_at, s.updated_at, coalesce(r.owner, s.owner)
    FROM sessions s LEFT JOIN sessions r ON r.number = s.root"""

HEAD_BY_ID = f"{HEAD} WHERE s.id = ?"

ROOTS = f"""{HEAD} WHERE s.root IS NULL AND (s.updated_at, s.id) < (?, ?)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT ?"""

UNDER_ROOT = f"""{HEAD} WHERE s.root = (SELECT number FROM sessions WHERE id = ?)
    AND s.root IS NOT NULL AND (s.updated_at, s.id) < (?, ?)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT ?"""

# Follows the chain backwards, from the end of the page or the next mark after it.
EVENTS = """WITH RECURSIVE chain(number, previous, seq) AS (
        SELECT number, previous, seq FROM events WHERE number = coalesce(
            (SELECT event FROM marks
                WHERE session = (SELECT number FROM sessions WHERE id = :session) AND seq >= :until
                ORDER BY seq LIMIT 1),
            (SELECT last FROM sessions WHERE id = :session))
        UNION ALL
        SELECT e.number, e.previous, e.seq FROM chain c JOIN events e ON e.number = c.previous
            WHERE c.seq > :after + 1
    )
    SELECT e.seq, e.at, e.body FROM chain c JOIN events e ON e.number = c.number
    WHERE c.seq > :after AND c.seq <= :until ORDER BY c.seq"""

KEY = """SELECT k.sender, k.client_id, k.message, k.body_hash FROM keys k
    WHERE k.session = (SELECT number FROM sessions WHERE id = ?) AND sender = ? AND client_id = ?"""

DOOM_SESSIONS = """INSERT INTO doomed
    SELECT number, last FROM sessions WHERE number = ? OR root = ?"""
DELETE_SESSIONS = "DELETE FROM sessions WHERE number = ? OR root = ?"

UNFINISHED = """SELECT DISTINCT coalesce(r.id, s.id) AS root FROM sessions s
    LEFT JOIN sessions r ON r.number = s.root
    WHERE s.unfinished AND coalesce(r.id, s.id) > ? ORDER BY 1 LIMIT ?"""


# --- writing


def create(
    connection: sqlite3.Connection,
    session: str,
    root: str,
    at: float,
    epoch: int | None,
    owner: str,
) -> SessionHead | None:
    if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone():
        return None
    if root == session:
        number, given = None, _next_epoch(connection)
    else:
        number, given, owner = _check_epoch(connection, root, epoch), 0, ""
    connection.execute(
        """INSERT INTO sessions (id, root, epoch, seq, last, unfinished, created_at, updated_at,
        title, state, owner) VALUES (?, ?, ?, 0, 0, 0, ?, ?, '', x'', ?)""",
        (session, number, given, at, at, owner),
    )
    return head(connection, session)


def claim(connection: sqlite3.Connection, session: str, owner: str) -> SessionHead | None:
    """Take a root session from any owner: this process holds the directory's lock, so all other
    owners are dead."""
    found = connection.execute(
        "SELECT number FROM sessions WHERE id = ? AND root IS NULL", (session,)
    ).fetchone()
    if found is None:
        return None
    connection.execute(
        "UPDATE sessions SET epoch = ?, owner = ? WHERE number = ?",
        (_next_epoch(connection), owner, found[0]),
    )
    return head(connection, session)


def delete(connection: sqlite3.Connection, session: str, epoch: int | None) -> bool:
    """Remove the rows that all others depend on. `sweep` removes the rest later."""
    found = connection.execute(
        """SELECT s.number, coalesce(r.id, s.id) FROM sessions s
        LEFT JOIN sessions r ON r.number = s.root WHERE s.id = ?""",
        (session,),
    ).fetchone()
    if found is None:
        return False
    number, root = found
    if epoch is not None:
        _check_epoch(connection, root, epoch)
    connection.execute(DOOM_SESSIONS, (number, number))
    connection.execute(DELETE_SESSIONS, (number, number))
    return True


def sweep(connection: sqlite3.Connection, *, full_text: bool) -> bool:
    """Remove a few events of a deleted session. Returns False when nothing is left to remove."""
    found = connection.execute("SELECT number, last FROM doomed LIMIT 1").fetchone()
    if found is None:
        return False
    number, event = found
    for _ in range(SWEEP_ROWS):
        row = connection.execute(
            "SELECT previous FROM events WHERE number = ? AND session = ?", (event, number)
        ).fetchone()
        if row is None:
            connection.execute("DELETE FROM marks WHERE session = ?", (number,))
            connection.execute("DELETE FROM keys WHERE session = ?", (number,))
            connection.execute("DELETE FROM doomed WHERE number = ?", (number,))
            return True
        remove_text(connection, event, full_text=full_text)
        connection.execute(LET_GO, (event,))
        connection.execute("DELETE FROM events WHERE number = ?", (event,))
        (event,) = row
    connection.execute("UPDATE doomed SET last = ? WHERE number = ?", (event, number))
    return True


def _next_epoch(connection: sqlite3.Connection) -> int:
    connection.execute("UPDATE store SET epoch = epoch + 1")
    (epoch,) = connection.execute("SELECT epoch FROM store").fetchone()
    return int(epoch)


def _check_epoch(connection: sqlite3.Connection, root: str, epoch: int | None) -> int:
    """Return the number of a root session. Raises `StaleEpoch` unless `epoch` is its epoch."""
    found = connection.execute(
        "SELECT number, epoch FROM sessions WHERE id = ? AND root IS NULL", (root,)
    ).fetchone()
    if found is None:
        raise StaleEpoch(f"session {root!r} does not exist any more")
    if found[1] != epoch:
        raise StaleEpoch(f"session {root!r} is at epoch {found[1]}, not {epoch}")
    return int(found[0])


# --- reading


def head(connection: sqlite3.Connection, session: str) -> SessionHead | None:
    row = connection.execute(HEAD_BY_ID, (session,)).fetchone()
    return None if row is None else SessionHead(*row)


def events(
    connection: sqlite3.Connection,
    session: str,
    after: int,
    limit: int | None,
    bytes_max: int | None = None,
) -> list[Recorded]:
    after = max(after, 0)
    until = SEQ_MAX if limit is None else min(after + max(limit, 0), SEQ_MAX)
    given = {"session": session, "after": after, "until": until}
    values = LongValues(connection)
    with closing(connection.execute(EVENTS, given)) as rows:
        return decode_events(session, _until(rows, bytes_max, values), values.join)


def _until(
    rows: Iterable[EventRow], bytes_max: int | None, values: LongValues
) -> Iterator[EventRow]:
    """Yield rows until they have enough bytes, with the long values that were read meanwhile."""
    left = bytes_max if bytes_max is not None else sys.maxsize
    for row in rows:
        if left <= values.bytes_read:
            return
        left -= len(row[2])
        yield row


def find_key(
    connection: sqlite3.Connection, session: str, sender: str, client_id: str
) -> AcceptKey | None:
    row = connection.execute(KEY, (session, sender, client_id)).fetchone()
    return None if row is None else AcceptKey(*row)


def sessions(
    connection: sqlite3.Connection, limit: int, before: tuple[float, str] | None, under: str | None
) -> list[SessionHead]:
    place = before or (float("inf"), "")
    if under is None:
        rows = connection.execute(ROOTS, (*place, max(limit, 0))).fetchall()
    else:
        rows = connection.execute(UNDER_ROOT, (under, *place, max(limit, 0))).fetchall()
    return [SessionHead(*row) for row in rows]


def unfinished(connection: sqlite3.Connection, limit: int, after: str) -> list[str]:
    rows = connection.execute(UNFINISHED, (after, max(limit, 0))).fetchall()
    return [root for (root,) in rows]
