"""The index for searching, kept by FTS5, which not every SQLite has.

A commit writes its text and leaves the index alone. The writer catches up at leisure, in slices,
and each moves `store.indexed` in its own transaction. So at any moment, also after a crash:

- The texts of events up to `indexed` are in the index. Later ones are not: searching reads them,
  and to take one of them out of the index would spoil it.
- No event with a text is given a number up to `indexed`, though the events there may have been
  removed: the ledger knows better numbers, and the pen refuses one that is out of date.
- At 0 there is no telling what is in the index, and it is emptied before anything is put in: so a
  program without FTS5 leaves it when it removes a text that was indexed.
"""

import sqlite3
from contextlib import closing

from bargein.stores.words import index_of

# What a job may have to wait for: half a millisecond. One text is taken however long it is.
SLICE_TEXTS = 16
SLICE_CHARACTERS = 5_000

WORDS = """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    text, content = '', detail = none, columnsize = 0, tokenize = 'ascii'
)"""

NOT_INDEXED = """SELECT event, text FROM texts
    WHERE event > (SELECT indexed FROM store WHERE one = 1) ORDER BY event LIMIT ?"""
TEXT_OF_EVENT = "SELECT text, event <= indexed FROM texts, store WHERE event = ? AND one = 1"
PUT_IN = "INSERT INTO words (rowid, text) VALUES (?, ?)"
TAKE_OUT = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"


def has_fts5(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone()
    return found is not None


def index_some(connection: sqlite3.Connection) -> bool:
    """Put the next few texts into the index. False when it has them all."""
    last = characters = 0
    # Closed also if it fails: an open cursor keeps a connection that was given up in its
    # transaction, and the file locked.
    with closing(connection.execute(NOT_INDEXED, (SLICE_TEXTS,))) as texts:
        for event, text in texts:
            if not last:
                _empty_if_unknown(connection)
            connection.execute(PUT_IN, (event, index_of(text)))
            last, characters = event, characters + len(text)
            if characters >= SLICE_CHARACTERS:
                break
    if last:
        connection.execute("UPDATE store SET indexed = ?", (last,))
    return last > 0


def _empty_if_unknown(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT 1 FROM store WHERE indexed = 0").fetchone():
        connection.execute("INSERT INTO words (words) VALUES ('delete-all')")


def remove_text(connection: sqlite3.Connection, event: int, *, full_text: bool) -> None:
    found = connection.execute(TEXT_OF_EVENT, (event,)).fetchone()
    if found is None:
        return
    text, indexed = found
    if indexed and full_text:
        connection.execute(TAKE_OUT, (event, index_of(text)))
    elif indexed:
        connection.execute("UPDATE store SET indexed = 0")
    connection.execute("DELETE FROM texts WHERE event = ?", (event,))
