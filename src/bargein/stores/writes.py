"""Commits, as rows: many in a few statements, or one alone.

Each statement repeats as a condition what the ledger remembers, so that nothing is written on top
of what somebody else has written since. `put` writes all commits that it is given or says that it
could not: then whoever began the transaction undoes it, and asks each for itself, which finds out
who is to blame.
"""

import sqlite3
from typing import Protocol

from bargein.contracts.store import Commit, DuplicateKey, OutOfOrder, StaleEpoch
from bargein.errors import BugError
from bargein.stores.jobs import Step
from bargein.stores.ledger import NOWHERE, Entry, Ledger
from bargein.stores.rows import head
from bargein.stores.statements import ForEach, Row

MARK_EVERY = 64

ADVANCE = """UPDATE sessions SET seq = {0}, last = {1}, updated_at = {2}, unfinished = {3},
    state = {4} {source} WHERE number = {5} AND id = {6} AND seq = {7} AND last = {8}"""
ADVANCE_ROOT = ForEach(10, ADVANCE + " AND epoch = {9} AND root IS NULL")
ADVANCE_UNDER = ForEach(
    11,
    ADVANCE
    + """ AND root = (SELECT r.number FROM sessions r
        WHERE r.epoch = {9} AND r.id = {10})""",
)
INSERT_EVENT = ForEach(6, "INSERT INTO events {rows}")
INSERT_MARK = ForEach(3, "INSERT INTO marks {rows}")
INSERT_KEY = ForEach(5, "INSERT INTO keys {rows}")
INSERT_TEXT = ForEach(5, "INSERT INTO texts {rows}")
RETITLE = ForEach(2, "UPDATE sessions SET title = {0} {source} WHERE number = {1}")

# Whether a session's log ends where a commit has put its end. Nobody else can have: whoever claims
# the session gets an epoch that was never given before.
ENDS_AT = """SELECT 1 FROM sessions s LEFT JOIN sessions r ON r.number = s.root
    WHERE s.number = ? AND s.last = ? AND coalesce(r.epoch, s.epoch) = ?"""

Witness = tuple[str, Row]
"""A statement, with its values, that finds a row if a transaction has happened."""


class Desk(Protocol):
    """Where commits are written: what is remembered there, and who has texts indexed."""

    ledger: Ledger

    def tidy_soon(self) -> None: ...


class Write(Step[None]):
    """A commit with its events encoded. Its text is left to be indexed at leisure."""

    __slots__ = ("bodies", "commit", "desk")

    def __init__(self, commit: Commit, bodies: tuple[bytes, ...], desk: Desk) -> None:
        self.session = commit.session
        self.value = None
        self.error = None
        self.commit = commit
        self.bodies = bodies
        self.desk = desk

    def work(self, connection: sqlite3.Connection) -> None:
        """Alone, under a savepoint: raises to be undone, and says why."""
        commit = self.commit
        try:
            if put(connection, [self], self.desk.ledger):
                return
            # What was remembered may be out of date.
            self.desk.ledger.forget(commit.session)
            if not put(connection, [self], self.desk.ledger):
                raise _why_refused(connection, commit)
        except sqlite3.IntegrityError as error:
            if not commit.keys:
                raise
            known = [(key.sender, key.client_id) for key in commit.keys]
            raise DuplicateKey(f"session {commit.session!r} knows one of {known}") from error

    def witness(self) -> Witness:
        """What finds a row if this, which was put and has events, is in the file."""
        number, _, last = self.desk.ledger.get(self.commit.session)
        return ENDS_AT, (number, last, self.commit.epoch)


class _Rows:
    """By statement; each in the order of the commits."""

    def __init__(self) -> None:
        self.roots: list[Row] = []
        self.others: list[Row] = []
        self.events: list[Row] = []
        self.marks: list[Row] = []
        self.keys: list[Row] = []
        self.titles: list[Row] = []
        self.texts: list[Row] = []

    def add(self, commit: Commit, bodies: tuple[bytes, ...], entry: Entry, first: int) -> Entry:
        """Where the session's log ends afterwards."""
        number, seq_before, last_before = entry
        seq, last = seq_before, last_before
        for event, body in enumerate(bodies, first):
            seq += 1
            self.events.append((event, number, seq, last, commit.at, body))
            if seq % MARK_EVERY == 0:
                self.marks.append((number, seq, event))
            last = event
        advance = (
            seq,
            last,
            commit.at,
            commit.unfinished,
            commit.state,
            number,
            commit.session,
            seq_before,
            last_before,
            commit.epoch,
        )
        if commit.root == commit.session:
            self.roots.append(advance)
        else:
            self.others.append((*advance, commit.root))
        for key in commit.keys:
            self.keys.append((number, key.sender, key.client_id, key.message, key.body_hash))
        if commit.title is not None:
            self.titles.append((commit.title, number))
        if commit.text:
            self.texts.append((last, number, seq, commit.at, commit.text))
        return number, seq, last


def put(connection: sqlite3.Connection, writes: list[Write], ledger: Ledger) -> bool:
    """Write them all. False, or an IntegrityError, if one could not be; then some may have been."""
    rows = _Rows()
    for write in writes:
        commit, bodies = write.commit, write.bodies
        entry = ledger.get(commit.session)
        if entry is NOWHERE:
            entry = ledger.look_up(connection, commit.session)
        if entry[1] != commit.expected_seq:
            return False
        first = ledger.take_numbers(len(bodies))
        ledger.put(commit.session, rows.add(commit, bodies, entry, first))
    for advance, those in ((ADVANCE_ROOT, rows.roots), (ADVANCE_UNDER, rows.others)):
        if advance.run(connection, those) != len(those):
            return False
    for statement, those in (
        (INSERT_EVENT, rows.events),
        (INSERT_MARK, rows.marks),
        (INSERT_KEY, rows.keys),
        (RETITLE, rows.titles),
        (INSERT_TEXT, rows.texts),
    ):
        statement.run(connection, those)
    if rows.texts:
        writes[0].desk.tidy_soon()
    return True


def _why_refused(connection: sqlite3.Connection, commit: Commit) -> Exception:
    now = head(connection, commit.session)
    if now is None:
        return StaleEpoch(f"session {commit.session!r} does not exist any more")
    if now.root != commit.root:
        return BugError(f"session {commit.session!r} is under {now.root!r}, not {commit.root!r}")
    if now.epoch != commit.epoch:
        return StaleEpoch(f"session {now.root!r} is at epoch {now.epoch}, not {commit.epoch}")
    return OutOfOrder(f"session {commit.session!r} ends at {now.seq}, not {commit.expected_seq}")
