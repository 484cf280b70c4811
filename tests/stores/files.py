"""Store files whose connections are of a test's own making."""

import sqlite3

from bargein.stores.sqlite.file import StoreFile


def ends_a_transaction(connection: sqlite3.Connection, sql: str) -> bool:
    """A COMMIT, a statement of commits that is a transaction of its own, or the end of several."""
    if sql.startswith("INSERT INTO commit_rows"):
        return not connection.in_transaction
    return sql in ("COMMIT", "RELEASE commits")


class OwnConnections(StoreFile):
    """`factory` is what the file is connected to with."""

    factory: type[sqlite3.Connection]

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_s,
            isolation_level=None,
            check_same_thread=False,
            factory=self.factory,
        )
