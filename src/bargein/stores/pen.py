"""What commits write, many of them in one statement.

Rows are put into the view `pen`, which keeps nothing: its triggers write what is in a row to the
tables. So all commits that come together are one statement, which is a transaction of its own, and
SQLite's module lets go of the interpreter once for all of it. Between two statements it would take
it back, and if the loop computes meanwhile, that is when the loop has nothing left to do: writing
and computing would take turns.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain

MARK_EVERY = 64

Row = tuple[object, ...]
"""Numbers, str and bytearray. All else, also bytes, bool and None, SQLite's module tries to adapt
first, which takes as long as to write it; so what is not there is 0."""


# What a row is. Its other columns mean what `COLUMNS` says of the kind.
COMMIT, STATE, EVENT, TITLE, TEXT, KEY = range(1, 7)

_EVENT = ("session", "event", "seq", "at", "previous", "body")
COLUMNS = {
    # The only event of a commit, and the session after it.
    COMMIT: (*_EVENT, "epoch", "unfinished", "state"),
    # The session after several events, or none, and each of those. `since`: before them.
    STATE: (
        *("session", "event", "seq", "at", "since_event", "since_seq"),
        *("epoch", "unfinished", "state"),
    ),
    EVENT: _EVENT,
    TITLE: ("session", "title"),
    TEXT: ("session", "event", "seq", "at", "text"),
    KEY: ("session", "sender", "client_id", "message", "body_hash"),
}
WIDTH = 1 + max(map(len, COLUMNS.values()))

INSERT_EVENT = "INSERT INTO events VALUES ({event}, {session}, {seq}, {previous}, {at}, {body})"
INSERT_MARK = f"""INSERT INTO marks SELECT {{session}}, {{seq}}, {{event}}
    WHERE {{seq}} % {MARK_EVERY} = 0"""
# The number of a session is never given again, that of an event not while it is there. A session
# under another has the epoch of that one.
_ADVANCE = """UPDATE sessions SET
        seq = {seq}, last = {event}, updated_at = {at}, unfinished = {unfinished}, state = {state}
    WHERE number = {session}
        AND coalesce((SELECT r.epoch FROM sessions r WHERE r.number = sessions.root), epoch)
            = {epoch}"""
ADVANCE_BY_ONE = f"{_ADVANCE} AND last = {{previous}} AND seq = {{seq}} - 1"
ADVANCE = f"{_ADVANCE} AND last = {{since_event}} AND seq = {{since_seq}}"
# Whoever has claimed the session since, or has gone on with its log, is not written over.
OR_REFUSE = "SELECT raise(ABORT, 'refused') WHERE changes() = 0"
RETITLE = "UPDATE sessions SET title = {title} WHERE number = {session}"
# The index has passed it, if another process has used the number and removed its event.
REFUSE_IF_INDEXED = """SELECT raise(ABORT, 'refused') FROM store
    WHERE one = 1 AND indexed >= {event}"""
INSERT_TEXT = "INSERT INTO texts VALUES ({event}, {session}, {seq}, {at}, {text})"
INSERT_KEY = "INSERT INTO keys VALUES ({session}, {sender}, {client_id}, {message}, {body_hash})"

STATEMENTS = {
    COMMIT: (ADVANCE_BY_ONE, OR_REFUSE, INSERT_EVENT, INSERT_MARK),
    STATE: (ADVANCE, OR_REFUSE),
    EVENT: (INSERT_EVENT, INSERT_MARK),
    TITLE: (RETITLE,),
    TEXT: (REFUSE_IF_INDEXED, INSERT_TEXT),
    KEY: (INSERT_KEY,),
}

# For so many rows a statement is prepared, once; a few more than there are may be of no kind.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ROWS_MAX = SIZES[-1]


def _put(size: int) -> str:
    row = f"({', '.join('?' * WIDTH)})"
    return f"INSERT INTO pen VALUES {', '.join([row] * size)}"


PUT = {size: _put(size) for size in SIZES}


def row(kind: int, *values: object) -> Row:
    """Values in the order of the kind's columns."""
    return (kind, *values, *(0,) * (WIDTH - 1 - len(values)))


def prepare(connection: sqlite3.Connection) -> None:
    """Make the view and its triggers: of the connection, the file knows nothing of them."""
    columns = ", ".join(f"NULL AS c{number}" for number in range(WIDTH))
    connection.execute(f"CREATE TEMP VIEW pen AS SELECT {columns}")
    for kind, statements in STATEMENTS.items():
        names = {name: f"new.c{number}" for number, name in enumerate(COLUMNS[kind], 1)}
        doing = "; ".join(statement.format_map(names) for statement in statements)
        connection.execute(
            f"CREATE TEMP TRIGGER pen_{kind} INSTEAD OF INSERT ON pen "
            f"WHEN new.c0 = {kind} BEGIN {doing}; END"
        )


def write(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """As a transaction, or as a part of the one that was begun. All of them, or none and an error:
    an IntegrityError if what was expected does not hold."""
    if len(rows) <= ROWS_MAX:
        _write_on(connection, rows)
        return
    # If no transaction was begun this begins one, and its release is the commit.
    connection.execute("SAVEPOINT pen")
    try:
        _write_on(connection, rows)
        connection.execute("RELEASE pen")
    except Exception:
        # If this fails too, that is what the writer must know: it makes the connection anew.
        if connection.in_transaction:
            connection.execute("ROLLBACK TO pen")
            connection.execute("RELEASE pen")
        raise


def _write_on(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    for done in range(0, len(rows), ROWS_MAX):
        some = rows[done : done + ROWS_MAX]
        size = next(size for size in SIZES if size >= len(some))
        spare = [0] * (WIDTH * (size - len(some)))
        connection.execute(PUT[size], [*chain.from_iterable(some), *spare])
