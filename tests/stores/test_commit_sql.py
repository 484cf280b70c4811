"""Rows of every kind, in one statement: each is written where it belongs, or none is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from bargein.stores.sqlite import commit_sql as sql
from bargein.stores.sqlite.schema import migrate

OTHERS = range(3, 900)
COUNTS = [
    1,
    2,
    5,
    33,
    128,
    129,
    sql.ROWS_MAX,
    sql.ROWS_MAX + 1,
    3 * sql.ROWS_MAX - 1,
]


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        sql.prepare(connection)
        connection.executemany(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, 0, 0, 0, 0.0, 0.0, '', x'', '')",
            [
                (1, "root", None, 7),
                (2, "child", 1, 0),
                *((n, f"s{n}", None, 7) for n in range(3, 900)),
            ],
        )
        yield connection


def commit(session: int, *, seq: int = 1, event: int = 0, epoch: int = 7) -> sql.Row:
    event = event or session
    previous = 0 if seq == 1 else event - 1
    body = f"event {event}".encode()
    return sql.row(sql.COMMIT, session, event, seq, 5.0, previous, body, epoch, True, b"state")


def ask(connection: sqlite3.Connection, sql: str) -> list[tuple[object, ...]]:
    return connection.execute(sql).fetchall()


@pytest.mark.parametrize("count", COUNTS)
def test_every_row_is_written_once(connection: sqlite3.Connection, count: int) -> None:
    sessions = range(3, 3 + count)
    sql.write_rows(connection, [commit(number) for number in sessions])
    assert not connection.in_transaction
    events = ask(connection, "SELECT number, session, seq, previous, at, body FROM events")
    assert events == [(n, n, 1, 0, 5.0, f"event {n}".encode()) for n in sessions]
    advanced = ask(
        connection,
        "SELECT number, last, updated_at, unfinished, state FROM sessions WHERE seq = 1",
    )
    assert advanced == [(n, n, 5.0, 1, b"state") for n in sessions]


@pytest.mark.parametrize("count", COUNTS)
def test_if_one_is_refused_none_is_written(connection: sqlite3.Connection, count: int) -> None:
    rows = [commit(number) for number in range(3, 3 + count)]
    for wrong in {0, count // 2, count - 1}:
        some = [*rows[:wrong], commit(3 + wrong, epoch=8), *rows[wrong + 1 :]]
        with pytest.raises(sqlite3.IntegrityError) as caught:
            sql.write_rows(connection, some)
        assert caught.value.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER
        assert not connection.in_transaction
        assert ask(connection, "SELECT count(*) FROM events") == [(0,)]
        assert ask(connection, "SELECT count(*) FROM sessions WHERE seq > 0") == [(0,)]


@pytest.mark.parametrize(
    "wrong",
    [
        commit(1, epoch=6),
        commit(1, seq=2, event=5),
        commit(1, seq=2, event=1),
        commit(4_000),
        commit(2, epoch=0),
        sql.row(sql.STATE, 1, 0, 0, 5.0, 0, 0, 6, True, b""),
        sql.row(sql.STATE, 1, 9, 3, 5.0, 0, 1, 7, True, b""),
        sql.row(sql.STATE, 1, 9, 3, 5.0, 8, 0, 7, True, b""),
    ],
    ids=[
        *("claimed since", "gone on since", "another seq", "deleted", "not by its root"),
        *("state: claimed since", "state: another seq", "state: another event"),
    ],
)
def test_what_was_expected_is_a_condition(connection: sqlite3.Connection, wrong: sql.Row) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="refused"):
        sql.write_rows(connection, [wrong])


def test_one_under_another_has_the_epoch_of_that_one(connection: sqlite3.Connection) -> None:
    sql.write_rows(connection, [commit(2, epoch=7)])
    assert ask(connection, "SELECT seq, epoch FROM sessions WHERE number = 2") == [(1, 0)]


def test_commits_of_one_session_follow_one_another(connection: sqlite3.Connection) -> None:
    sql.write_rows(connection, [commit(1, seq=seq, event=seq) for seq in range(1, 200)])
    assert ask(connection, "SELECT seq, last FROM sessions WHERE number = 1") == [(199, 199)]
    assert ask(connection, "SELECT seq, event FROM marks") == [(64, 64), (128, 128), (192, 192)]


def test_all_kinds_in_one(connection: sqlite3.Connection) -> None:
    before = sql.row(sql.EVENT, 1, 8, 1, 5.0, 0, b"before")
    end = sql.row(sql.EVENT, 1, 9, 2, 5.0, 8, b"end")
    after = sql.row(sql.STATE, 1, 9, 2, 5.0, 0, 0, 7, False, b"after")
    only_state = sql.row(sql.STATE, 3, 0, 0, 6.0, 0, 0, 7, True, b"changed")
    sql.write_rows(
        connection,
        [
            before,
            end,
            after,
            sql.row(sql.TITLE, 1, "a title"),
            sql.row(sql.TEXT, 1, 9, 2, 5.0, "said"),
            sql.row(sql.KEY, 1, "ann", "c1", "m1", b"hash"),
            only_state,
        ],
    )
    assert ask(connection, "SELECT number, seq, previous, body FROM events") == [
        (8, 1, 0, b"before"),
        (9, 2, 8, b"end"),
    ]
    assert ask(connection, "SELECT seq, last, title, state FROM sessions WHERE number = 1") == [
        (2, 9, "a title", b"after")
    ]
    assert ask(connection, "SELECT * FROM texts") == [(9, 1, 2, 5.0, "said")]
    assert ask(connection, "SELECT * FROM keys") == [(1, "ann", "c1", "m1", b"hash")]
    assert ask(
        connection, "SELECT seq, last, unfinished, state FROM sessions WHERE number = 3"
    ) == [(0, 0, 1, b"changed")]


@pytest.mark.parametrize("count", COUNTS)
def test_a_refused_row_leaves_a_transaction_as_it_was(
    connection: sqlite3.Connection, count: int
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    sql.write_rows(connection, [commit(3)])
    with pytest.raises(sqlite3.IntegrityError):
        sql.write_rows(connection, [*map(commit, range(4, 4 + count)), commit(899, epoch=8)])
    connection.execute("COMMIT")
    assert ask(connection, "SELECT number FROM sessions WHERE seq = 1") == [(3,)]


def test_a_row_of_another_width_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.ProgrammingError):
        sql.write_rows(connection, [(sql.TITLE, 1, "a title")])


@pytest.mark.parametrize("count", COUNTS)
def test_what_sqlite_cannot_take_leaves_nothing_behind(
    connection: sqlite3.Connection, count: int
) -> None:
    with pytest.raises(OverflowError):
        sql.write_rows(connection, [*map(commit, range(3, 3 + count)), commit(899, epoch=2**70)])
    assert not connection.in_transaction
    assert ask(connection, "SELECT count(*) FROM events") == [(0,)]
