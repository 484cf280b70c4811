"""Commits as SQL: many commits become one statement, which is one transaction.

A commit becomes rows. One INSERT puts the rows of all commits that come together into the view
`commit_rows`. The view keeps nothing: its triggers write each row to the tables. One statement
matters because Python's `sqlite3` releases the interpreter once for each statement: between two of
them the writer's thread would wait for a busy event loop (decision 77).

The file follows the order of writing: `CommitStep.rows` makes the rows, `write_rows` puts them into
the view, `STATEMENTS` defines what the triggers do.

What holds:

- Each row repeats as a condition what the commit expects: the root's epoch, the end of the log. If
  one condition fails, the whole statement fails and writes nothing. The writer then runs each
  commit alone, so that only the faulty one fails.
- `LogEnds` is a cache and may be out of date. A commit that fails because of it looks the end up
  and tries once more.

Everything here runs in the writer's thread.
"""

import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import chain

from bargein.contracts.size import size_of_event
from bargein.contracts.store import (
    LARGE_BYTES,
    Commit,
    DuplicateKey,
    OutOfOrder,
    StaleEpoch,
    StoreFailed,
    is_large,
)
from bargein.errors import BugError
from bargein.stores.encoding import LONG_BYTES, Long, cut_event, encode_event, encode_events
from bargein.stores.sqlite.large_sql import LongValue, ValueNumbers
from bargein.stores.sqlite.session_sql import head
from bargein.stores.sqlite.worker import JobStep
from bargein.stores.words import SEARCHED_CHARACTERS_MAX

MARK_EVERY = 64

Row = tuple[object, ...]
"""Numbers, str and bytearray, and 0 for a missing value. For anything else, even bytes, bool and
None, Python's `sqlite3` first looks for an adapter, which takes as long as writing the value."""

# The kinds of rows. `COLUMNS` names the other columns of each kind.
COMMIT, STATE, EVENT, TITLE, TEXT, KEY, REFERENCE = range(1, 8)


# --- a commit as rows


class CommitStep(JobStep[None]):
    """One commit, waiting to be written. The caller has encoded its events, unless the commit is a
    large one: that would hold up the caller's loop for milliseconds.

    `references` has the place of an event in the commit and the number of a long value in it."""

    __slots__ = ("bodies", "commit", "ends", "is_large", "references")

    def __init__(self, commit: Commit, ends: "LogEnds") -> None:
        self.session = commit.session
        self.value = None
        self.error = None
        self.commit = commit
        self.is_large = is_large(commit)
        self.bodies: tuple[bytes, ...] = ()
        self.references: list[tuple[int, int]] = []
        self.ends = ends

    def cut(self, numbers: ValueNumbers) -> list[LongValue]:
        """Encode the events of a large commit, without their long values: returns those, to be
        written in segments. From now on this commit refers to them."""
        values: list[tuple[int, LongValue]] = []

        def keep(place: int, value: Long) -> int:
            values.append((place, LongValue(numbers.take(), value)))
            return values[-1][1].number

        self.bodies = tuple(
            cut_event(event, partial(keep, place))
            if size_of_event(event) > LONG_BYTES
            else encode_event(event)
            for place, event in enumerate(self.commit.events)
        )
        self.references = [(place, value.number) for place, value in values]
        return [value for _, value in values]

    def rows(self, connection: sqlite3.Connection) -> list[Row]:
        """Make the rows of this commit. From now on `ends` counts them as written."""
        commit, ends = self.commit, self.ends
        if commit.events and not self.bodies:
            self.bodies = encode_events(commit.events)
        end = ends.get(commit.session)
        if end is NOWHERE:
            end = look_up(connection, commit.session)
        number, root, since = end
        if root != commit.root and end is not NOWHERE:
            raise BugError(f"session {commit.session!r} is under {root!r}, not {commit.root!r}")
        seq, last, at = commit.expected_seq, since, commit.at
        after = (commit.epoch, 1 if commit.unfinished else 0, bytearray(commit.state))
        rows: list[Row] = []
        if len(self.bodies) == 1:
            seq, last = seq + 1, ends.take_numbers(1)
            rows.append((COMMIT, number, last, seq, at, since, _blob(self.bodies[0]), *after))
        else:
            for event, body in enumerate(self.bodies, ends.take_numbers(len(self.bodies))):
                seq += 1
                rows.append(row(EVENT, number, event, seq, at, last, _blob(body)))
                last = event
            # The condition comes first. Otherwise a stale writer would collide with the events of
            # the new owner and get that error instead of one about its epoch.
            rows.insert(0, (STATE, number, last, seq, at, since, commit.expected_seq, *after))
        first = last - len(self.bodies) + 1
        rows.extend(row(REFERENCE, first + place, value) for place, value in self.references)
        ends.put(commit.session, (number, root, last))
        if commit.title is not None:
            rows.append(row(TITLE, number, commit.title))
        if commit.text:
            text = commit.text[:SEARCHED_CHARACTERS_MAX]
            rows.append(row(TEXT, number, last, seq, at, text))
            ends.has_new_texts = True
        for key in commit.keys:
            names = (key.sender, key.client_id, key.message, key.body_hash)
            rows.append(row(KEY, number, *names))
        return rows

    @property
    def has_large_rows(self) -> bool:
        """Whether its rows, once made, have large values."""
        large = len(self.commit.state) >= LARGE_BYTES or len(self.commit.text) >= LARGE_BYTES
        return large or any(len(body) >= LARGE_BYTES for body in self.bodies)

    def work(self, connection: sqlite3.Connection) -> None:
        """Write this commit alone, under the writer's savepoint. Raises the reason of a refusal."""
        try:
            rows = self.rows(connection)
            write_rows(connection, rows, large=self.has_large_rows)
        except (sqlite3.IntegrityError, BugError):
            self.ends.forget(self.commit.session)
            self._write_again(connection)

    def _write_again(self, connection: sqlite3.Connection) -> None:
        """Write with the end of the log as the file has it. Now a refusal is final."""
        commit = self.commit
        try:
            rows = self.rows(connection)
            write_rows(connection, rows, large=self.has_large_rows)
        except sqlite3.IntegrityError as error:
            self.ends.forget(commit.session)
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
                raise _why_refused(connection, commit) from error
            if not commit.keys:
                raise
            known = [(key.sender, key.client_id) for key in commit.keys]
            raise DuplicateKey(f"session {commit.session!r} already has one of {known}") from error

    def witness(self) -> "Witness":
        """Return a query that finds a row if this commit is in the file. The commit must have
        events, and its rows must have been made."""
        number, _, last = self.ends.get(self.commit.session)
        return ENDS_AT, (number, last, self.commit.epoch)


Witness = tuple[str, Row]
"""A query, with its values, that finds a row if a transaction is in the file."""

# No other writer can have moved a log to the same end: every claim draws a new epoch.
ENDS_AT = """SELECT 1 FROM sessions s LEFT JOIN sessions r ON r.number = s.root
    WHERE s.number = ? AND s.last = ? AND coalesce(r.epoch, s.epoch) = ?"""


def rows_of(steps: list[CommitStep], connection: sqlite3.Connection) -> list[Row]:
    """Make the rows of all these commits, in order."""
    return [row for step in steps for row in step.rows(connection)]


def row(kind: int, *values: object) -> Row:
    """Make a row of this kind. `values` are in the order of the kind's columns."""
    return (kind, *values, *(0,) * (WIDTH - 1 - len(values)))


def _blob(body: bytes) -> bytes | bytearray:
    """Return a bytearray, which `sqlite3` takes without looking for an adapter. A large body stays
    as it is: copying it would cost more than that saves."""
    return bytearray(body) if len(body) < LARGE_BYTES else body


def _why_refused(connection: sqlite3.Connection, commit: Commit) -> Exception:
    now = head(connection, commit.session)
    if now is None:
        return StaleEpoch(f"session {commit.session!r} does not exist any more")
    if now.epoch != commit.epoch:
        return StaleEpoch(f"session {now.root!r} is at epoch {now.epoch}, not {commit.epoch}")
    if now.seq == commit.expected_seq:
        return StoreFailed(
            f"session {commit.session!r}: another process removed the segments of a large event",
            retryable=True,
        )
    return OutOfOrder(f"session {commit.session!r} ends at {now.seq}, not {commit.expected_seq}")


# --- where logs end

ENDS_MAX = 20_000

LogEnd = tuple[int, str, int]
"""The number of a session, the id of its root (perhaps itself), and the number of its last
event."""

NOWHERE: LogEnd = (-1, "", -1)

LOOK_UP = """SELECT s.number, coalesce(r.id, s.id), s.last
    FROM sessions s LEFT JOIN sessions r ON r.number = s.root WHERE s.id = ?"""

# If the last events were removed, the search index may reach beyond those that are left.
LAST_EVENT = """SELECT max(indexed, coalesce((SELECT max(number) FROM events), 0)) FROM store
    WHERE one = 1"""


class LogEnds:
    """Where each session's log ends and which number the next event gets, so that a commit need
    not look them up. Only a hint: the triggers check both.

    `has_new_texts`: a commit has written a text since the writer last reset this flag.
    """

    def __init__(self) -> None:
        self._ends: dict[str, LogEnd] = {}
        self._next_event = 0
        self.has_new_texts = False

    def begin(self, connection: sqlite3.Connection) -> None:
        """Read the next number at the beginning of a transaction, during which nothing else can add
        an event."""
        (last,) = connection.execute(LAST_EVENT).fetchone()
        self._next_event = last + 1

    def take_numbers(self, count: int) -> int:
        """Reserve `count` numbers for events and return the first. Numbers may stay unused."""
        first = self._next_event
        self._next_event += count
        return first

    def get(self, session: str) -> LogEnd:
        return self._ends.get(session, NOWHERE)

    def put(self, session: str, end: LogEnd) -> None:
        self._ends[session] = end

    def forget(self, session: str) -> None:
        self._ends.pop(session, None)

    def trim(self) -> None:
        """Drop the oldest entries beyond `ENDS_MAX`. Not during a transaction: `witness` needs the
        entries of its commits."""
        while len(self._ends) > ENDS_MAX:
            del self._ends[next(iter(self._ends))]


def look_up(connection: sqlite3.Connection, session: str) -> LogEnd:
    found = connection.execute(LOOK_UP, (session,)).fetchone()
    return NOWHERE if found is None else (found[0], found[1], found[2])


# --- the view and its triggers

_EVENT = ("session", "event", "seq", "at", "previous", "body")
COLUMNS = {
    # The only event of a commit, and the session after it.
    COMMIT: (*_EVENT, "epoch", "unfinished", "state"),
    # The session after several events or none. `since_event` and `since_seq`: before them.
    STATE: (
        *("session", "event", "seq", "at", "since_event", "since_seq"),
        *("epoch", "unfinished", "state"),
    ),
    EVENT: _EVENT,
    TITLE: ("session", "title"),
    TEXT: ("session", "event", "seq", "at", "text"),
    KEY: ("session", "sender", "client_id", "message", "body_hash"),
    # A long value of an event.
    REFERENCE: ("event", "value"),
}
WIDTH = 1 + max(map(len, COLUMNS.values()))

INSERT_EVENT = "INSERT INTO events VALUES ({event}, {session}, {seq}, {previous}, {at}, {body})"
INSERT_MARK = f"""INSERT INTO marks SELECT {{session}}, {{seq}}, {{event}}
    WHERE {{seq}} % {MARK_EVERY} = 0"""
# The number of a session is never used again; the number of an event not while the event exists. A
# session under a root has the root's epoch.
_ADVANCE = """UPDATE sessions SET
        seq = {seq}, last = {event}, updated_at = {at}, unfinished = {unfinished}, state = {state}
    WHERE number = {session}
        AND coalesce((SELECT r.epoch FROM sessions r WHERE r.number = sessions.root), epoch)
            = {epoch}"""
ADVANCE_BY_ONE = f"{_ADVANCE} AND last = {{previous}} AND seq = {{seq}} - 1"
ADVANCE = f"{_ADVANCE} AND last = {{since_event}} AND seq = {{since_seq}}"
# Fails the statement if another owner has claimed the session or continued its log.
OR_REFUSE = "SELECT raise(ABORT, 'refused') WHERE changes() = 0"
RETITLE = "UPDATE sessions SET title = {title} WHERE number = {session}"
# The index has passed this number if another process has used it and removed its event.
REFUSE_IF_INDEXED = """SELECT raise(ABORT, 'refused') FROM store
    WHERE one = 1 AND indexed >= {event}"""
INSERT_TEXT = "INSERT INTO texts VALUES ({event}, {session}, {seq}, {at}, {text})"
INSERT_KEY = "INSERT INTO keys VALUES ({session}, {sender}, {client_id}, {message}, {body_hash})"
# Refuses if the segments are not there, or belong to another event.
ATTACH_VALUE = "UPDATE long_values SET event = {event} WHERE value = {value} AND event = 0"

STATEMENTS = {
    COMMIT: (ADVANCE_BY_ONE, OR_REFUSE, INSERT_EVENT, INSERT_MARK),
    STATE: (ADVANCE, OR_REFUSE),
    EVENT: (INSERT_EVENT, INSERT_MARK),
    TITLE: (RETITLE,),
    TEXT: (REFUSE_IF_INDEXED, INSERT_TEXT),
    KEY: (INSERT_KEY,),
    REFERENCE: (ATTACH_VALUE, OR_REFUSE),
}


def prepare(connection: sqlite3.Connection) -> None:
    """Make the view and its triggers. They belong to the connection and are not in the file."""
    columns = ", ".join(f"NULL AS c{number}" for number in range(WIDTH))
    connection.execute(f"CREATE TEMP VIEW commit_rows AS SELECT {columns}")
    for kind, statements in STATEMENTS.items():
        names = {name: f"new.c{number}" for number, name in enumerate(COLUMNS[kind], 1)}
        body = "; ".join(statement.format_map(names) for statement in statements)
        connection.execute(
            f"CREATE TEMP TRIGGER commit_rows_{kind} INSTEAD OF INSERT ON commit_rows "
            f"WHEN new.c0 = {kind} BEGIN {body}; END"
        )


# A statement is prepared once for each of these numbers of rows. Rows of kind 0 fill the rest.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ROWS_MAX = SIZES[-1]


def _insert(size: int) -> str:
    one = f"({', '.join('?' * WIDTH)})"
    return f"INSERT INTO commit_rows VALUES {', '.join([one] * size)}"


INSERT = {size: _insert(size) for size in SIZES}


def write_rows(connection: sqlite3.Connection, rows: Sequence[Row], *, large: bool = False) -> None:
    """Write all rows or none: as a transaction, or inside an open one. `large`: some rows have
    large values.

    Raises IntegrityError if a row's condition does not hold.
    """
    if len(rows) <= ROWS_MAX:
        _insert_all(connection, rows, large)
        return
    # Outside of a transaction a savepoint begins one, and its release commits it.
    connection.execute("SAVEPOINT commits")
    try:
        _insert_all(connection, rows, large)
        connection.execute("RELEASE commits")
    except Exception:
        # If the rollback fails too, its error reaches the writer, which connects anew.
        if connection.in_transaction:
            connection.execute("ROLLBACK TO commits")
            connection.execute("RELEASE commits")
        raise


def _insert_all(connection: sqlite3.Connection, rows: Sequence[Row], large: bool) -> None:
    for done in range(0, len(rows), ROWS_MAX):
        some = rows[done : done + ROWS_MAX]
        size = next(size for size in SIZES if size >= len(some))
        spare = [0] * (WIDTH * (size - len(some)))
        connection.execute(INSERT[size], [*chain.from_iterable(some), *spare])
        if large:
            # A statement keeps the values that it was given until it is given others. Rows of
            # kind 0 write nothing.
            connection.execute(INSERT[size], [0] * (WIDTH * size))
