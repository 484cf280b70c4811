"""Whether the index for searching has in it what it says."""

from __future__ import annotations

import sqlite3
from collections import Counter

from bargein.stores.sqlite import SqliteStore
from bargein.stores.words import words_of


def indexed_words(connection: sqlite3.Connection) -> Counter[tuple[str, int]]:
    connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    connection.execute(
        "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab(main, words, instance)"
    )
    return Counter(connection.execute("SELECT term, doc FROM vocabulary").fetchall())


def words_of_texts(connection: sqlite3.Connection) -> Counter[tuple[str, int]]:
    texts = connection.execute("SELECT text, event FROM texts, store WHERE event <= indexed")
    return Counter((word, event) for text, event in texts for word in set(words_of(text)))


async def check_index(store: SqliteStore) -> None:
    """It has the words of the texts that it reaches, each once, and none of any other."""
    in_index = await store._writer.run(indexed_words)
    assert in_index == await store._writer.run(words_of_texts)
