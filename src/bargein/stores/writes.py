"""Commits, as rows: many in one statement, or one alone.

Each row repeats as a condition what the ledger remembers, so that nothing is written on top of what
somebody else has written since. If one is refused, none is written, and each is asked for itself:
which finds out who is to blame.
"""

import sqlite3
from typing import Protocol

from bargein.contracts.store import Commit, DuplicateKey, OutOfOrder, StaleEpoch
from bargein.errors import BugError
from bargein.stores import pen
from bargein.stores.jobs import Step
from bargein.stores.ledger import NOWHERE, Ledger
from bargein.stores.pen import Row, row
from bargein.stores.rows import head
from bargein.stores.words import SEARCHED_CHARACTERS_MAX

# Whether a session's log ends where a commit has put its end. Nobody else can have: whoever claims
# the session gets an epoch that was never given before.
ENDS_AT = """SELECT 1 FROM sessions s LEFT JOIN sessions r ON r.number = s.root
    WHERE s.number = ? AND s.last = ? AND coalesce(r.epoch, s.epoch) = ?"""

Witness = tuple[str, Row]
"""A statement, with its values, that finds a row if a transaction has happened."""


LARGE_BYTES = 64 * 1024


def _blob(body: bytes) -> bytes | bytearray:
    """The module `sqlite3` takes a bytearray without looking for an adapter, which is faster. A
    large body is not copied for that."""
    return bytearray(body) if len(body) < LARGE_BYTES else body


class Desk(Protocol):
    """Where commits are written: what is remembered there, and who has texts indexed."""

    ledger: Ledger

    def tidy_soon(self) -> None: ...


class Write(Step[None]):
    """A commit, and its events encoded. Its text is left to be indexed at leisure."""

    __slots__ = ("bodies", "commit", "desk")

    def __init__(self, commit: Commit, desk: Desk) -> None:
        self.session = commit.session
        self.value = None
        self.error = None
        self.commit = commit
        self.bodies: tuple[bytes, ...] = ()
        self.desk = desk

    def work(self, connection: sqlite3.Connection) -> None:
        """Alone, under a savepoint: raises to be undone, and says why."""
        try:
            pen.write(connection, self.rows(connection))
        except (sqlite3.IntegrityError, BugError):
            # What was remembered may be out of date.
            self.desk.ledger.forget(self.commit.session)
            self._put_again(connection)

    def _put_again(self, connection: sqlite3.Connection) -> None:
        commit = self.commit
        try:
            pen.write(connection, self.rows(connection))
        except sqlite3.IntegrityError as error:
            self.desk.ledger.forget(commit.session)
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
                raise _why_refused(connection, commit) from error
            if not commit.keys:
                raise
            known = [(key.sender, key.client_id) for key in commit.keys]
            raise DuplicateKey(f"session {commit.session!r} knows one of {known}") from error

    def rows(self, connection: sqlite3.Connection) -> list[Row]:
        """What it writes. The ledger remembers it from now on."""
        commit, ledger = self.commit, self.desk.ledger
        entry = ledger.get(commit.session)
        if entry is NOWHERE:
            entry = ledger.look_up(connection, commit.session)
        number, root, since = entry
        if root != commit.root and entry is not NOWHERE:
            raise BugError(f"session {commit.session!r} is under {root!r}, not {commit.root!r}")
        seq, last, at = commit.expected_seq, since, commit.at
        after = (commit.epoch, 1 if commit.unfinished else 0, bytearray(commit.state))
        rows: list[Row] = []
        if len(self.bodies) == 1:
            seq, last = seq + 1, ledger.take_numbers(1)
            rows.append((pen.COMMIT, number, last, seq, at, since, _blob(self.bodies[0]), *after))
        else:
            for event, body in enumerate(self.bodies, ledger.take_numbers(len(self.bodies))):
                seq += 1
                rows.append(row(pen.EVENT, number, event, seq, at, last, _blob(body)))
                last = event
            # First, so that whoever writes out of turn is refused for that: another's events may be
            # in the place of these.
            state = (pen.STATE, number, last, seq, at, since, commit.expected_seq, *after)
            rows.insert(0, state)
        ledger.put(commit.session, (number, root, last))
        if commit.title is not None:
            rows.append(row(pen.TITLE, number, commit.title))
        if commit.text:
            text = commit.text[:SEARCHED_CHARACTERS_MAX]
            rows.append(row(pen.TEXT, number, last, seq, at, text))
            self.desk.tidy_soon()
        for key in commit.keys:
            names = (key.sender, key.client_id, key.message, key.body_hash)
            rows.append(row(pen.KEY, number, *names))
        return rows

    def witness(self) -> Witness:
        """What finds a row if this, which was put and has events, is in the file."""
        number, _, last = self.desk.ledger.get(self.commit.session)
        return ENDS_AT, (number, last, self.commit.epoch)


def rows_of(writes: list[Write], connection: sqlite3.Connection) -> list[Row]:
    """What all of them write. The ledger remembers it from now on."""
    return [row for write in writes for row in write.rows(connection)]


def _why_refused(connection: sqlite3.Connection, commit: Commit) -> Exception:
    now = head(connection, commit.session)
    if now is None:
        return StaleEpoch(f"session {commit.session!r} does not exist any more")
    if now.epoch != commit.epoch:
        return StaleEpoch(f"session {now.root!r} is at epoch {now.epoch}, not {commit.epoch}")
    return OutOfOrder(f"session {commit.session!r} ends at {now.seq}, not {commit.expected_seq}")
