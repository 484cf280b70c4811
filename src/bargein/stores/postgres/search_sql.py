"""Searching: the texts of commits, the index of their words, and the query.

Words are split by us, as in every store, and kept as a `tsvector` with a GIN index. A commit writes
its text and leaves the index alone. Any node indexes texts at leisure, in slices. Until a text is
indexed a search reads it as it is, so both find the same at any moment.
"""

import asyncio
import time
from concurrent.futures import Executor

import asyncpg

from bargein.contracts.store import Found
from bargein.stores.postgres.connection import Connection
from bargein.stores.postgres.texts import as_it_was, kept
from bargein.stores.words import excerpt, has_all, index_of, is_unspaced, words_of

SEARCH_S = 0.5
PAGE = 100
SLICE_TEXTS = 16
# PostgreSQL refuses longer words; the query cuts its own in the same way.
WORD_CHARACTERS_MAX = 200

SEARCH = """SELECT s.id, t.seq, t.text, t.at FROM bargein.texts t
    JOIN bargein.sessions s ON s.number = t.session
    WHERE (t.words @@ $1::tsquery OR t.words IS NULL)
        AND ($2::text[] IS NULL OR coalesce(s.root, s.number) IN (
            SELECT number FROM bargein.sessions WHERE id = ANY($2) AND root IS NULL))
        AND (t.at, s.id, t.seq) < ($3, $4, $5)
    ORDER BY t.at DESC, s.id DESC, t.seq DESC LIMIT $6"""

NOT_INDEXED = """SELECT session, seq, text FROM bargein.texts WHERE words IS NULL
    ORDER BY session, seq LIMIT $1"""
INDEX = """UPDATE bargein.texts t SET words = array_to_tsvector(string_to_array(i.words, ' '))
    FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS i(session, seq, words)
    WHERE t.session = i.session AND t.seq = i.seq AND t.words IS NULL"""

Place = tuple[float, str, int]


async def search(
    connection: Connection,
    words: str,
    limit: int,
    roots: frozenset[str] | None,
    splitter: Executor,
) -> list[Found]:
    """The newest texts that have all the words, as many as were found within `SEARCH_S`.

    The index finds the characters of an unspaced word in any order, so each text is checked again.
    """
    wanted = words_of(words)
    if not wanted or limit <= 0:
        return []
    query = " & ".join(map(_term, wanted))
    below = None if roots is None else [kept(root) for root in roots]
    loop = asyncio.get_running_loop()
    until = time.monotonic() + SEARCH_S
    found: list[Found] = []
    place: Place | None = (float("inf"), "", 0)
    while place is not None and len(found) < limit:
        left_ms = int((until - time.monotonic()) * 1000)
        if left_ms <= 0:
            break
        try:
            async with connection.transaction(readonly=True):
                await connection.execute(f"SET LOCAL statement_timeout = {left_ms}")
                rows = await connection.fetch(SEARCH, query, below, *place, PAGE)
        except asyncpg.QueryCanceledError:
            break
        page = [(session, seq, text) for session, seq, text, _ in rows]
        found += await loop.run_in_executor(splitter, _having_all, page, wanted)
        place = (rows[-1][3], rows[-1][0], rows[-1][1]) if len(rows) == PAGE else None
    return found[:limit]


def _having_all(rows: list[tuple[str, int, str]], wanted: list[str]) -> list[Found]:
    """Splitting long texts takes a while: it runs in a thread."""
    texts = [(as_it_was(session), seq, as_it_was(text)) for session, seq, text in rows]
    return [
        Found(session, seq, excerpt(text, wanted))
        for session, seq, text in texts
        if has_all(text, wanted)
    ]


def _term(word: str) -> str:
    if is_unspaced(word):
        return " & ".join(f"'{character}'" for character in dict.fromkeys(word))
    return f"'{word[:WORD_CHARACTERS_MAX]}':*"


async def texts_to_index(connection: Connection) -> list[tuple[int, int, str]]:
    rows = await connection.fetch(NOT_INDEXED, SLICE_TEXTS)
    return [(session, seq, text) for session, seq, text in rows]


def words_to_index(text: str) -> str:
    """The words of a text, without those that PostgreSQL could not keep whole. Runs in a thread."""
    words = index_of(as_it_was(text)).split(" ")
    return " ".join({word[:WORD_CHARACTERS_MAX] for word in words if word})


async def put_in_index(connection: Connection, texts: list[tuple[int, int, str]]) -> None:
    """`texts` with their words instead of their text."""
    sessions, seqs, words = zip(*texts, strict=True)
    await connection.execute(INDEX, list(sessions), list(seqs), list(words))
