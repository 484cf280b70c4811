"""Statements that do the same for many rows, a good part of them at once.

SQLite's module lets go of the interpreter while a statement runs and takes it back for the next.
If another thread computes meanwhile, that may take 5 ms each time: a statement for each row would
have a busy program wait seconds for a few hundred commits.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain

Row = tuple[object, ...]

AT_ONCE = (64, 32, 16, 8, 4, 2, 1)


class ForEach:
    """`statement` has `{rows}` in the place of the rows that it writes; or `{0}`, `{1}` and so on,
    once each and in this order, for what each of the `columns` is, and `{source}` where it is to
    say which table they come from. One row alone needs none, and takes half the time so."""

    def __init__(self, columns: int, statement: str) -> None:
        self.statements = [(count, _for_many(columns, statement, count)) for count in AT_ONCE]

    def run(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> int:
        """How many rows of the file were written."""
        done = written = 0
        for count, statement in self.statements:
            if done == len(rows):
                break
            while len(rows) - done >= count:
                values = tuple(chain.from_iterable(rows[done : done + count]))
                written += connection.execute(statement, values).rowcount
                done += count
        return written


def _for_many(columns: int, statement: str, count: int) -> str:
    row = f"({', '.join('?' * columns)})"
    rows = f"VALUES {', '.join([row] * count)}"
    if count == 1:
        # Without numbers: the first versions of Python 3.12 warn of each as of a name.
        places = [statement.find(f"{{{n}}}") for n in range(columns)]
        assert places == sorted(places), "columns are named in their order"
        return statement.format(*["?"] * columns, rows=rows, source="")
    names = [f"new.column{n + 1}" for n in range(columns)]
    return statement.format(*names, rows=rows, source=f"FROM ({rows}) AS new")
