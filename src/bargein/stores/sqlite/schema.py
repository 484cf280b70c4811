"""The tables, as numbered migrations.

A released migration never changes: the next change is a new migration at the end. Each runs in its
own transaction, which also records it in the table `migrations`, so a program that was killed
continues where it was. The program refuses a file with more migrations than it knows.

How the tables are laid out:

- `sessions.number` is never used twice. All other rows of a session depend on it, so the session is
  gone when its row is; `doomed` lists the rest, which is swept later, in slices.
- `sessions.epoch` and `sessions.owner` are set for roots. Other sessions have their root's.
- Events lie in the order of commits, across sessions. A transaction for many sessions then writes a
  few pages; an index would need one for each session. Each event points to the one before it in its
  session, and the session to its last. `marks` has every 64th event of a session: a page in the
  middle of a log is read from the next mark backwards.
- The long texts of a large event are in `segments`, and its body refers to them (`large_sql`).
- Triggers make the log append-only: no event can be changed, and none removed while its session is
  there.
- `store` has one row: the last epoch; the stamp of the last transaction, which shows the writer
  after a failure whether it happened; and how far the search index reaches (`search_sql`).
"""

import sqlite3
from typing import NamedTuple

from bargein.errors import UserError

APPLICATION_ID = 0x42415247  # "BARG", which `file` and others read from the header
SQLITE_NEEDED = (3, 35, 0)


class Migration(NamedTuple):
    name: str
    statements: tuple[str, ...]


MIGRATIONS = (
    Migration(
        "sessions and their logs",
        (
            f"PRAGMA application_id = {APPLICATION_ID}",
            """CREATE TABLE store (
                one INTEGER PRIMARY KEY CHECK (one = 1),
                epoch INTEGER NOT NULL,
                stamp INTEGER NOT NULL,
                indexed INTEGER NOT NULL
            )""",
            "INSERT INTO store VALUES (1, 0, 0, 0)",
            """CREATE TABLE sessions (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                root INTEGER,
                epoch INTEGER NOT NULL,
                seq INTEGER NOT NULL,
                last INTEGER NOT NULL,
                unfinished INTEGER NOT NULL,
                created_at REAL NOT NULL,
                updated_at REAL NOT NULL,
                title TEXT NOT NULL,
                state BLOB NOT NULL
            )""",
            "CREATE INDEX roots_by_update ON sessions (updated_at, id) WHERE root IS NULL",
            "CREATE INDEX under_root ON sessions (root, updated_at, id) WHERE root IS NOT NULL",
            "CREATE INDEX unfinished ON sessions (number) WHERE unfinished",
            """CREATE TABLE events (
                number INTEGER PRIMARY KEY,
                session INTEGER NOT NULL,
                seq INTEGER NOT NULL,
                previous INTEGER NOT NULL,
                at REAL NOT NULL,
                body BLOB NOT NULL
            )""",
            """CREATE TABLE marks (
                session INTEGER NOT NULL,
                seq INTEGER NOT NULL,
                event INTEGER NOT NULL,
                PRIMARY KEY (session, seq)
            ) WITHOUT ROWID""",
            """CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events BEGIN
                SELECT raise(ABORT, 'the log is append-only');
            END""",
            """CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events
            WHEN EXISTS (SELECT 1 FROM sessions WHERE number = old.session) BEGIN
                SELECT raise(ABORT, 'the log is append-only');
            END""",
            """CREATE TABLE keys (
                session INTEGER NOT NULL,
                sender TEXT NOT NULL,
                client_id TEXT NOT NULL,
                message TEXT NOT NULL,
                body_hash BLOB NOT NULL,
                PRIMARY KEY (session, sender, client_id)
            ) WITHOUT ROWID""",
            """CREATE TABLE texts (
                event INTEGER PRIMARY KEY,
                session INTEGER NOT NULL,
                seq INTEGER NOT NULL,
                at REAL NOT NULL,
                text TEXT NOT NULL
            )""",
            "CREATE TABLE doomed (number INTEGER PRIMARY KEY, last INTEGER NOT NULL)",
        ),
    ),
    # Before this, `indexed` only said whether all texts were indexed, and removing a text without
    # FTS5 left its words in the index. The writer rebuilds the index at leisure.
    Migration("the index may be behind the texts", ("UPDATE store SET indexed = 0",)),
    # '' means free: older sessions belong to nobody.
    Migration(
        "sessions name their owner",
        ("ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),
    ),
    Migration(
        "long values lie in segments",
        (
            "CREATE TABLE long_values (value INTEGER PRIMARY KEY, event INTEGER NOT NULL)",
            "CREATE INDEX values_of_event ON long_values (event)",
            "CREATE TABLE segments (number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        ),
    ),
)

ADDED_OWNER = 3

MIGRATIONS_TABLE = """CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""


def migrate(connection: sqlite3.Connection, migrations: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Run the migrations that the file lacks. Errors do not name the file: the caller adds it."""
    check_kind(connection)
    if _reached(connection, migrations) == len(migrations):
        return
    for number, migration in enumerate(migrations, 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have come first while this one waited for the lock.
            if _reached(connection, migrations) < number:
                connection.execute(MIGRATIONS_TABLE)
                for statement in migration.statements:
                    connection.execute(statement)
                connection.execute(
                    "INSERT INTO migrations (number, name) VALUES (?, ?)", (number, migration.name)
                )
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def check_kind(connection: sqlite3.Connection) -> None:
    """Refuse a database of another program. An empty file is a new store."""
    (kind,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and kind != APPLICATION_ID:
        raise UserError("is a database of another program: choose another file")


def check_known(
    connection: sqlite3.Connection, migrations: tuple[Migration, ...] = MIGRATIONS
) -> None:
    """Refuse a file without a store in it, or one that a newer program wrote."""
    check_kind(connection)
    if _reached(connection, migrations) == 0:
        raise UserError("contains no store of Bargein: choose another file")


def let_older_be_read(connection: sqlite3.Connection) -> None:
    """Make an older file readable without migrating it: views of the connection add the columns
    that the file lacks."""
    if version_of(connection) < ADDED_OWNER:
        connection.execute("CREATE TEMP VIEW sessions AS SELECT *, '' AS owner FROM main.sessions")


def version_of(connection: sqlite3.Connection) -> int:
    """Return the number of migrations of the file, even if this program knows fewer; 0 for an empty
    file."""
    check_kind(connection)
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone()
    if found is None:
        return 0
    (reached,) = connection.execute("SELECT max(number) FROM migrations").fetchone()
    return reached or 0


def _reached(connection: sqlite3.Connection, migrations: tuple[Migration, ...]) -> int:
    reached = version_of(connection)
    if reached > len(migrations):
        raise UserError(
            f"was written by a newer Bargein (migration {reached}; this one knows "
            f"{len(migrations)}): update Bargein, or choose another data directory"
        )
    return reached
