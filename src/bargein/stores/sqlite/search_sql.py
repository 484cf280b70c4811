"""Search: the texts of commits, their FTS5 index, and the query.

Not every SQLite has FTS5. Without it a search reads all texts and finds the same.

A commit writes its text and does not touch the index (decision 35). The writer indexes texts at
leisure, in slices, and each slice advances `store.indexed` in the same transaction. So at any
moment, even after a crash:

- The index has the texts of events up to `indexed` and no later ones. A search reads the later
  texts directly. Removing a text from FTS5 that it does not have would corrupt the index.
- No event with a text gets a number up to `indexed`, even if the events there were removed:
  `commit_sql.LogEnds` starts beyond it, and a trigger refuses a stale number.
- The index has the first `SEARCHED_CHARACTERS_MAX` characters of a text.
- If `indexed` is 0, the content of the index is unknown, because a program without FTS5 removed an
  indexed text. The next slice empties the index first.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import msgspec

from bargein.contracts.store import Found
from bargein.stores.words import (
    SEARCHED_CHARACTERS_MAX,
    add_words,
    excerpt,
    has_all,
    index_of,
    indexed,
    is_unspaced,
    words_of,
)

# --- the query

# Without the texts themselves, which are read one by one: sorting would copy all of them.
TEXTS = """SELECT s.id, t.seq, t.event FROM texts t JOIN sessions s ON s.number = t.session
    WHERE (:roots IS NULL OR coalesce(s.root, s.number) IN (
        SELECT number FROM sessions WHERE id IN (SELECT value FROM json_each(:roots))))"""
NEWEST = "ORDER BY t.at DESC, s.id DESC, t.seq DESC"
# One statement, so that the index and `indexed` show the same moment.
TEXTS_BY_WORDS = f"""{TEXTS} AND t.event IN (
        SELECT rowid FROM words WHERE words MATCH :words
        UNION ALL
        SELECT event FROM texts WHERE event > (SELECT indexed FROM store WHERE one = 1)
    ) {NEWEST}"""
TEXTS_ALL = f"{TEXTS} {NEWEST}"
TEXT = "SELECT text FROM texts WHERE event = ?"

SEARCH_S = 0.5
STEPS_BETWEEN_LOOKS = 10_000


def search(
    connection: sqlite3.Connection,
    words: str,
    limit: int,
    roots: frozenset[str] | None,
    *,
    full_text: bool,
) -> list[Found]:
    """Return the newest texts with all the words, as many as it finds within `SEARCH_S`.

    The index finds the characters of an unspaced word in any order, so each text is checked again.
    """
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


# --- the index

# A job may have to wait for one slice: a millisecond or two.
SLICE_TEXTS = 16
SLICE_CHARACTERS = 5_000

WORDS = """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    text, content = '', detail = none, columnsize = 0, tokenize = 'ascii'
)"""

# Python cuts the text: for SQLite's own functions a text ends at its first null character.
NOT_INDEXED = """SELECT event, text FROM texts
    WHERE event > (SELECT indexed FROM store WHERE one = 1) ORDER BY event LIMIT ?"""
TEXT_OF_EVENT = "SELECT text, event <= indexed FROM texts, store WHERE event = ? AND one = 1"
PUT_IN = "INSERT INTO words (rowid, text) VALUES (?, ?)"
TAKE_OUT = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"


def has_fts5(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone()
    return found is not None


class Gathered:
    """The words gathered so far of the text to be indexed next. A long text is gathered piece by
    piece, and jobs may run between two pieces."""

    def __init__(self) -> None:
        self._event = 0
        self._words: set[str] = set()
        self._reached = 0

    def gather(
        self, connection: sqlite3.Connection, *, busy: Callable[[], bool] = lambda: False
    ) -> bool:
        """Continue to gather; write nothing. Returns False if a job came before the end."""
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
    """Put the next few texts into the index. Returns False if it already has all of them."""
    gathered = gathered or Gathered()
    last = characters = 0
    # Close the cursor even after an error: an open one would keep a dropped connection in its
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
    text, in_index = found
    if in_index and full_text:
        connection.execute(TAKE_OUT, (event, index_of(text[:SEARCHED_CHARACTERS_MAX])))
    elif in_index:
        connection.execute("UPDATE store SET indexed = 0")
    connection.execute("DELETE FROM texts WHERE event = ?", (event,))
