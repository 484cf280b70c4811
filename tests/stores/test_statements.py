"""One statement for many rows does what one for each would."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from bargein.stores.statements import ForEach

INSERT = ForEach(2, "INSERT INTO things {rows}")
RENAME = ForEach(2, "UPDATE things SET name = {0} {source} WHERE number = {1}")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE things (number INTEGER PRIMARY KEY, name TEXT)")
        yield connection


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 63, 64, 65, 127, 200])
def test_every_row_is_written_once(connection: sqlite3.Connection, count: int) -> None:
    rows = [(number, f"thing {number}") for number in range(count)]
    assert INSERT.run(connection, rows) == count
    assert connection.execute("SELECT * FROM things ORDER BY number").fetchall() == rows
    renamed = [(f"other {number}", number) for number, _ in rows]
    assert RENAME.run(connection, renamed) == count
    found = connection.execute("SELECT name, number FROM things ORDER BY number").fetchall()
    assert found == renamed


@pytest.mark.parametrize("missing", [0, 40, 99])
def test_a_row_that_is_not_there_is_not_counted(
    connection: sqlite3.Connection, missing: int
) -> None:
    rows = [(number, "before") for number in range(100)]
    INSERT.run(connection, rows[:missing] + rows[missing + 1 :])
    assert RENAME.run(connection, [("after", number) for number, _ in rows]) == 99


def test_rows_of_another_width_are_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.ProgrammingError):
        INSERT.run(connection, [(1, "one"), (2,)])


def test_columns_that_are_not_named_in_their_order_are_refused() -> None:
    with pytest.raises(AssertionError, match="in their order"):
        ForEach(2, "UPDATE things SET name = {1} {source} WHERE number = {0}")
