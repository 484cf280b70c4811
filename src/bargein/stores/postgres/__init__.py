"""The store in a PostgreSQL database: sessions for many machines. Needs the extra `postgres`."""

from bargein.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
