"""The store in a SQLite file. `store` has the operations; the other modules are its parts."""

from bargein.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
