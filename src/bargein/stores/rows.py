"""The statements: each function does one operation of a store on a connection.

Those that write run inside the writer's transaction, each under a savepoint of its own, and raise
to be undone. No statement looks at a row of a session that it is not about: `tests/stores` reads
the query plans.
"""

import sqlite3
from dataclasses import dataclass

import msgspec

from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    DuplicateKey,
    Found,
    OutOfOrder,
    SessionHead,
    StaleEpoch,
    StoreFailed,
)
from bargein.errors import BugError
from bargein.stores.bodies import SEQ_MAX, decode_event
from bargein.stores.words import excerpt, has_all, index_of, is_unspaced, words_of

SEQ_BITS = 32
SWEEP_ROWS = 200

HEAD = """SELECT s.id, coalesce(r.id, s.id), coalesce(r.epoch, s.epoch), s.seq, s.state, s.title,
    s.created_at, s.updated_at FROM sessions s LEFT JOIN sessions r ON r.number = s.root"""

HEAD_BY_ID = f"{HEAD} WHERE s.id = ?"

ROOTS = f"""{HEAD} WHERE s.root IS NULL AND (s.updated_at, s.id) < (?, ?)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT ?"""

UNDER_ROOT = f"""{HEAD} WHERE s.root = (SELECT number FROM sessions WHERE id = ?)
    AND s.root IS NOT NULL AND (s.updated_at, s.id) < (?, ?)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT ?"""

ADVANCE = """UPDATE sessions SET seq = ?, updated_at = ?, unfinished = ?,
    title = coalesce(?, title), state = ? WHERE id = ? AND seq = ?"""
ADVANCE_ROOT = f"{ADVANCE} AND epoch = ? AND root IS NULL RETURNING number"
ADVANCE_UNDER = f"""{ADVANCE} AND root = (SELECT number FROM sessions WHERE epoch = ? AND id = ?)
    RETURNING number"""

EVENTS = f"""SELECT e.place & {SEQ_MAX}, e.at, e.body FROM sessions s JOIN events e
    ON e.place > (s.number << {SEQ_BITS}) + ? AND e.place <= (s.number << {SEQ_BITS}) + {SEQ_MAX}
    WHERE s.id = ? ORDER BY e.place LIMIT ?"""

KEY = """SELECT k.sender, k.client_id, k.message, k.body_hash FROM keys k
    WHERE k.session = (SELECT number FROM sessions WHERE id = ?) AND sender = ? AND client_id = ?"""

UNFINISHED = """SELECT DISTINCT coalesce(r.id, s.id) AS root FROM sessions s
    LEFT JOIN sessions r ON r.number = s.root
    WHERE s.unfinished AND coalesce(r.id, s.id) > ? ORDER BY 1 LIMIT ?"""

TEXTS = f"""SELECT s.id, t.place & {SEQ_MAX}, t.text FROM texts t
    JOIN sessions s ON s.number = t.place >> {SEQ_BITS}"""
NEWEST = "ORDER BY t.at DESC, s.id DESC, t.place DESC"
TEXTS_BY_WORDS = f"""{TEXTS} WHERE t.place IN (SELECT rowid FROM words WHERE words MATCH ?)
    {NEWEST}"""
TEXTS_ALL = f"{TEXTS} {NEWEST}"


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
        """INSERT INTO sessions (id, root, epoch, seq, unfinished, created_at, updated_at, title,
        state) VALUES (?, ?, ?, 0, 0, ?, ?, '', x'')""",
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


@dataclass(frozen=True, slots=True)
class Write:
    """A commit with its events encoded."""

    commit: Commit
    bodies: list[bytes]
    full_text: bool

    def __call__(self, connection: sqlite3.Connection) -> None:
        commit = self.commit
        seq = commit.expected_seq + len(self.bodies)
        values = (
            seq,
            commit.at,
            commit.unfinished,
            commit.title,
            commit.state,
            commit.session,
            commit.expected_seq,
            commit.epoch,
        )
        if commit.root == commit.session:
            rows = connection.execute(ADVANCE_ROOT, values).fetchall()
        else:
            rows = connection.execute(ADVANCE_UNDER, (*values, commit.root)).fetchall()
        if not rows:
            raise _why_refused(connection, commit)
        base = rows[0][0] << SEQ_BITS
        if self.bodies:
            connection.executemany(
                "INSERT INTO events VALUES (?, ?, ?)",
                [
                    (place, commit.at, body)
                    for place, body in enumerate(self.bodies, base + commit.expected_seq + 1)
                ],
            )
        if commit.keys:
            self._insert_keys(connection, rows[0][0])
        if commit.text:
            self._insert_text(connection, base + seq)

    def _insert_keys(self, connection: sqlite3.Connection, number: int) -> None:
        for key in self.commit.keys:
            row = (number, key.sender, key.client_id, key.message, key.body_hash)
            try:
                connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise DuplicateKey(
                    f"session {self.commit.session!r} knows {row[1:3]} already"
                ) from error

    def _insert_text(self, connection: sqlite3.Connection, place: int) -> None:
        text = self.commit.text
        connection.execute("INSERT INTO texts VALUES (?, ?, ?)", (place, self.commit.at, text))
        if self.full_text:
            connection.execute(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", (place, index_of(text))
            )
        else:
            connection.execute("UPDATE store SET indexed = 0")


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
    those = "SELECT number FROM sessions WHERE number = ? OR root = ?"
    connection.execute(f"INSERT INTO doomed {those}", (number, number))
    connection.execute(f"DELETE FROM sessions WHERE number IN ({those})", (number, number))
    return True


def sweep(connection: sqlite3.Connection, *, full_text: bool) -> bool:
    """Remove a few rows of a deleted session. False when there is nothing left to remove."""
    found = connection.execute("SELECT number FROM doomed LIMIT 1").fetchone()
    if found is None:
        return False
    (number,) = found
    bounds = (number << SEQ_BITS, (number + 1) << SEQ_BITS, SWEEP_ROWS)
    texts = connection.execute(
        "SELECT place, text FROM texts WHERE place >= ? AND place < ? LIMIT ?", bounds
    ).fetchall()
    if full_text:
        connection.executemany(
            "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)",
            [(place, index_of(text)) for place, text in texts],
        )
    connection.executemany("DELETE FROM texts WHERE place = ?", [(place,) for place, _ in texts])
    gone = connection.execute(
        """DELETE FROM events WHERE place IN
        (SELECT place FROM events WHERE place >= ? AND place < ? LIMIT ?)""",
        bounds,
    ).rowcount
    if not texts and not gone:
        connection.execute("DELETE FROM keys WHERE session = ?", (number,))
        connection.execute("DELETE FROM doomed WHERE number = ?", (number,))
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


def _why_refused(connection: sqlite3.Connection, commit: Commit) -> Exception:
    now = head(connection, commit.session)
    if now is None:
        return StaleEpoch(f"session {commit.session!r} does not exist any more")
    if now.root != commit.root:
        return BugError(f"session {commit.session!r} is under {now.root!r}, not {commit.root!r}")
    if now.epoch != commit.epoch:
        return StaleEpoch(f"session {now.root!r} is at epoch {now.epoch}, not {commit.epoch}")
    return OutOfOrder(f"session {commit.session!r} ends at {now.seq}, not {commit.expected_seq}")


# --- reading


def head(connection: sqlite3.Connection, session: str) -> SessionHead | None:
    row = connection.execute(HEAD_BY_ID, (session,)).fetchone()
    return None if row is None else SessionHead(*row)


def events(
    connection: sqlite3.Connection, session: str, after: int, limit: int | None
) -> list[Recorded]:
    rows = connection.execute(EVENTS, (max(after, 0), session, _limit(limit)))
    found: list[Recorded] = []
    for seq, at, body in rows:
        try:
            found.append(Recorded(seq, at, decode_event(body)))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise StoreFailed(
                f"event {seq} of session {session!r} cannot be read ({error}): it is damaged, or a "
                "newer Bargein wrote it",
                retryable=False,
            ) from error
    return found


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
        rows = connection.execute(ROOTS, (*place, _limit(limit)))
    else:
        rows = connection.execute(UNDER_ROOT, (under, *place, _limit(limit)))
    return [SessionHead(*row) for row in rows]


def unfinished(connection: sqlite3.Connection, limit: int, after: str) -> list[str]:
    return [root for (root,) in connection.execute(UNFINISHED, (after, _limit(limit)))]


def search(
    connection: sqlite3.Connection, words: str, limit: int, *, full_text: bool
) -> list[Found]:
    """Without an index all texts are read. With one it finds what has all the characters of an
    unspaced word, in any order, so each text is looked at once more."""
    wanted = words_of(words)
    if not wanted or limit <= 0:
        return []
    if full_text:
        rows = connection.execute(TEXTS_BY_WORDS, (" ".join(map(_term, wanted)),))
    else:
        rows = connection.execute(TEXTS_ALL)
    found: list[Found] = []
    for session, seq, text in rows:
        if has_all(text, wanted):
            found.append(Found(session, seq, excerpt(text, wanted)))
            if len(found) == limit:
                break
    rows.close()
    return found


def _term(word: str) -> str:
    if is_unspaced(word):
        return " ".join(f'"{character}"' for character in word)
    return f'"{word}"*'


def _limit(limit: int | None) -> int:
    return -1 if limit is None else max(limit, 0)
