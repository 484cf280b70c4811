"""The statements: each function does one operation of a store on a connection.

Those that write run inside the writer's transaction, each under a savepoint of its own, and raise
to be undone. Each fetches its rows whole or closes its cursor: one that an error left open would
keep the connection at an old moment for everybody who shares it. No statement looks at a row of a
session that it is not about: `tests/stores` reads the query plans.
"""

import sqlite3
import sys
import time
from contextlib import closing

import msgspec

from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    Found,
    SessionHead,
    StaleEpoch,
)
from bargein.stores.bodies import SEQ_MAX, decode_events
from bargein.stores.index import remove_text
from bargein.stores.words import (
    SEARCHED_CHARACTERS_MAX,
    excerpt,
    has_all,
    is_unspaced,
    words_of,
)

SWEEP_ROWS = 200

HEAD = """SELECT s.id, coalesce(r.id, s.id), coalesce(r.epoch, s.epoch), s.seq, s.state, s.title,
    s.created_at, s.updated_at FROM sessions s LEFT JOIN sessions r ON r.number = s.root"""

HEAD_BY_ID = f"{HEAD} WHERE s.id = ?"

ROOTS = f"""{HEAD} WHERE s.root IS NULL AND (s.updated_at, s.id) < (?, ?)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT ?"""

UNDER_ROOT = f"""{HEAD} WHERE s.root = (SELECT number FROM sessions WHERE id = ?)
    AND s.root IS NOT NULL AND (s.updated_at, s.id) < (?, ?)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT ?"""

# From the end of what is wanted, or the next mark after it, back to its beginning.
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

# The texts themselves are read one by one: sorted with the rest, all of them would be copied.
TEXTS = """SELECT s.id, t.seq, t.event FROM texts t JOIN sessions s ON s.number = t.session
    WHERE (:roots IS NULL OR coalesce(s.root, s.number) IN (
        SELECT number FROM sessions WHERE id IN (SELECT value FROM json_each(:roots))))"""
NEWEST = "ORDER BY t.at DESC, s.id DESC, t.seq DESC"
# One statement, so that the index and how far it reaches are of the same moment.
TEXTS_BY_WORDS = f"""{TEXTS} AND t.event IN (
        SELECT rowid FROM words WHERE words MATCH :words
        UNION ALL
        SELECT event FROM texts WHERE event > (SELECT indexed FROM store WHERE one = 1)
    ) {NEWEST}"""
TEXTS_ALL = f"{TEXTS} {NEWEST}"
TEXT = "SELECT text FROM texts WHERE event = ?"

SEARCH_S = 0.5
STEPS_BETWEEN_LOOKS = 10_000


# --- writing


def create(
    connection: sqlite3.Connection, session: str, root: str, at: float, epoch: int | None
) -> SessionHead | None:
    if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone():
        return None
    if root == session:
        number, given = None, _next_epoch(connection)
    else:
        number, given = _check_owner(connection, root, epoch), 0
    connection.execute(
        """INSERT INTO sessions (id, root, epoch, seq, last, unfinished, created_at, updated_at,
        title, state) VALUES (?, ?, ?, 0, 0, 0, ?, ?, '', x'')""",
        (session, number, given, at, at),
    )
    return head(connection, session)


def claim(connection: sqlite3.Connection, session: str) -> SessionHead | None:
    found = connection.execute(
        "SELECT number FROM sessions WHERE id = ? AND root IS NULL", (session,)
    ).fetchone()
    if found is None:
        return None
    connection.execute(
        "UPDATE sessions SET epoch = ? WHERE number = ?", (_next_epoch(connection), found[0])
    )
    return head(connection, session)


def delete(connection: sqlite3.Connection, session: str, epoch: int | None) -> bool:
    """Take the rows away that everything else hangs on; the rest is for `sweep`."""
    found = connection.execute(
        """SELECT s.number, coalesce(r.id, s.id) FROM sessions s
        LEFT JOIN sessions r ON r.number = s.root WHERE s.id = ?""",
        (session,),
    ).fetchone()
    if found is None:
        return False
    number, root = found
    if epoch is not None:
        _check_owner(connection, root, epoch)
    connection.execute(DOOM_SESSIONS, (number, number))
    connection.execute(DELETE_SESSIONS, (number, number))
    return True


def sweep(connection: sqlite3.Connection, *, full_text: bool) -> bool:
    """Remove a few events of a deleted session. False when there is nothing left to remove."""
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
        connection.execute("DELETE FROM events WHERE number = ?", (event,))
        (event,) = row
    connection.execute("UPDATE doomed SET last = ? WHERE number = ?", (event, number))
    return True


def _next_epoch(connection: sqlite3.Connection) -> int:
    connection.execute("UPDATE store SET epoch = epoch + 1")
    (epoch,) = connection.execute("SELECT epoch FROM store").fetchone()
    return int(epoch)


def _check_owner(connection: sqlite3.Connection, root: str, epoch: int | None) -> int:
    """The number of a root session, if `epoch` is its own."""
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
    left = bytes_max if bytes_max is not None else sys.maxsize
    found: list[tuple[int, float, bytes]] = []
    with closing(connection.execute(EVENTS, given)) as rows:
        for row in rows:
            if left <= 0:
                break
            left -= len(row[2])
            found.append(row)
    return decode_events(session, found)


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


def search(
    connection: sqlite3.Connection,
    words: str,
    limit: int,
    roots: frozenset[str] | None,
    *,
    full_text: bool,
) -> list[Found]:
    """Without an index all texts are read, and with one those it does not reach. It finds what has
    all the characters of an unspaced word, in any order, so each text is looked at once more. After
    `SEARCH_S` it is told what was found until then."""
    wanted = words_of(words)
    if not wanted or limit <= 0:
        return []
    below = msgspec.json.encode(sorted(roots)).decode() if roots is not None else None
    given = {"words": " ".join(map(_term, wanted)), "roots": below}
    statement = TEXTS_BY_WORDS if full_text else TEXTS_ALL
    until = time.monotonic() + SEARCH_S
    found: list[Found] = []
    connection.set_progress_handler(lambda: time.monotonic() > until, STEPS_BETWEEN_LOOKS)
    try:
        with closing(connection.execute(statement, given)) as rows:
            for session, seq, event in rows:
                ((text,),) = connection.execute(TEXT, (event,)).fetchall()
                text = text[:SEARCHED_CHARACTERS_MAX]
                if has_all(text, wanted):
                    found.append(Found(session, seq, excerpt(text, wanted)))
                if len(found) == limit or time.monotonic() > until:
                    break
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
    finally:
        connection.set_progress_handler(None, 0)
    return found


def _term(word: str) -> str:
    if is_unspaced(word):
        return " ".join(f'"{character}"' for character in word)
    return f'"{word}"*'
