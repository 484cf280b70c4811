"""The index for searching, kept by FTS5, which not every SQLite has.

A commit writes its text and leaves the index alone. The writer catches up at leisure, in slices,
and each moves `store.indexed` in its own transaction. So at any moment, also after a crash:

- The texts of events up to `indexed` are in the index. Later ones are not: searching reads them,
  and to take one of them out of the index would spoil it.
- No event with a text is given a number up to `indexed`, though the events there may have been
  removed: the ledger knows better numbers, and the pen refuses one that is out of date.
- Of a text only the first `SEARCHED_CHARACTERS_MAX` characters are in the index.
- At 0 there is no telling what is in the index, and it is emptied before anything is put in: so a
  program without FTS5 leaves it when it removes a text that was indexed.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing

from bargein.stores.words import SEARCHED_CHARACTERS_MAX, add_words, index_of, indexed

# What a job may have to wait for: a millisecond or two.
SLICE_TEXTS = 16
SLICE_CHARACTERS = 5_000

WORDS = """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    text, content = '', detail = none, columnsize = 0, tokenize = 'ascii'
)"""

# Cut in Python: for SQLite's own functions a text ends at its first null character.
NOT_INDEXED = """SELECT event, text FROM texts
    WHERE event > (SELECT indexed FROM store WHERE one = 1) ORDER BY event LIMIT ?"""
TEXT_OF_EVENT = "SELECT text, event <= indexed FROM texts, store WHERE event = ? AND one = 1"
PUT_IN = "INSERT INTO words (rowid, text) VALUES (?, ?)"
TAKE_OUT = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"


def has_fts5(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone()
    return found is not None


class Gathered:
    """The words of the text that is to be indexed next, as far as they have been gathered. A long
    one is gathered piece by piece, and jobs may come in between."""

    def __init__(self) -> None:
        self._event = 0
        self._words: set[str] = set()
        self._reached = 0

    def gather(
        self, connection: sqlite3.Connection, *, busy: Callable[[], bool] = lambda: False
    ) -> bool:
        """Go on with it. False if it is not complete, because a job came. Writes nothing."""
        found = connection.execute(NOT_INDEXED, (1,)).fetchone()
        return found is None or self.add(*found, busy=busy)

    def add(self, event: int, text: str, *, busy: Callable[[], bool] = lambda: False) -> bool:
        text = text[:SEARCHED_CHARACTERS_MAX]
        if event != self._event:
            self._event, self._words, self._reached = event, set(), 0
        if self._reached < len(text):
            self._reached = add_words(self._words, text, self._reached, until=busy)
        return self._reached >= len(text)

    @property
    def words(self) -> str:
        return indexed(self._words)


def index_some(connection: sqlite3.Connection, gathered: Gathered | None = None) -> bool:
    """Put the next few texts into the index. False when it has them all."""
    gathered = gathered or Gathered()
    last = characters = 0
    # Closed also if it fails: an open cursor keeps a connection that was given up in its
    # transaction, and the file locked.
    with closing(connection.execute(NOT_INDEXED, (SLICE_TEXTS,))) as texts:
        for event, text in texts:
            characters += len(text)
            if last and characters > SLICE_CHARACTERS:
                break
            if not last:
                _empty_if_unknown(connection)
            gathered.add(event, text)
            connection.execute(PUT_IN, (event, gathered.words))
            last = event
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
        connection.execute(TAKE_OUT, (event, index_of(text[:SEARCHED_CHARACTERS_MAX])))
    elif indexed:
        connection.execute("UPDATE store SET indexed = 0")
    connection.execute("DELETE FROM texts WHERE event = ?", (event,))
