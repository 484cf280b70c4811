"""Errors of PostgreSQL and the network as sentences that name the database and say what to do.

A mistake that shows when the store is opened (no such database, a wrong password, a database of
another encoding) is a `UserError`. Anything that can also happen later is `StoreFailed`. The
driver's own words are shown only where they cannot hold a secret: PostgreSQL sends back values of
rows, and those stay out.
"""

import asyncpg

from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, UserError

CLOSED = "the store is closed"

LOST = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The connection is of no use any more: the server went, or became a standby."""

ABOUT_VALUES = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""Errors that concern the values of one statement and not the server."""


def explain(error: BaseException, name: str) -> BargeinError:
    """The same sentence for every operation: what was being written counts as not saved."""
    if isinstance(error, BargeinError):
        return error
    match error:
        case asyncpg.InsufficientPrivilegeError():
            return StoreFailed(
                f"{name}: this user may not do that. Let it own the schema bargein, or grant it "
                "all rights on that schema and its tables",
                retryable=False,
            )
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return StoreFailed(
                f"{name}: the server has no room left ({_kind(error)}), so nothing new can be "
                "saved; what was saved before is safe. Make room there: no restart is needed here",
                retryable=True,
            )
        case asyncpg.TooManyConnectionsError():
            return StoreFailed(
                f"{name} takes no more connections. Raise max_connections, or put PgBouncer in "
                "front of it and name the server as direct=HOST:PORT in the address",
                retryable=True,
            )
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreFailed(
                f"{name} is a standby or read-only. Wait for the failover, or let the address "
                "name the primary",
                retryable=True,
            )
        case asyncpg.UndefinedTableError() | asyncpg.InvalidSchemaNameError():
            return StoreFailed(
                f"{name}: its tables are gone. Restore a backup, or restart Bargein to begin anew",
                retryable=False,
            )
        case TimeoutError():
            return silent(name, 0.0)
    return StoreFailed(
        f"{name} cannot be reached or failed ({_kind(error)}). What was saved before is safe. Look "
        "whether the server runs and this machine reaches it; Bargein tries again by itself",
        retryable=True,
    )


def explain_opening(error: BaseException, name: str) -> BargeinError:
    """For the first connection: mistakes of the operator are a `UserError`."""
    match error:
        case asyncpg.InvalidCatalogNameError():
            return UserError(f"{name} does not exist: create it with createdb, encoding UTF8")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return UserError(f"{name} refuses this user or password: correct the address")
        case asyncpg.InsufficientPrivilegeError():
            return UserError(
                f"{name}: this user may not make the schema bargein. Create it and let the user "
                "own it: CREATE SCHEMA bargein AUTHORIZATION ..."
            )
    return explain(error, name)


def silent(name: str, bound_s: float) -> StoreFailed:
    """The server accepts and does not answer, or the network swallows what is sent."""
    within = f" within {bound_s:g} s" if bound_s else ""
    return StoreFailed(
        f"{name} did not answer{within}. Look at the server's load and locks and at the network; "
        "Bargein tries again by itself",
        retryable=True,
    )


def closed(name: str) -> StoreFailed:
    return StoreFailed(f"{name}: {CLOSED}", retryable=False)


def _kind(error: BaseException) -> str:
    """Names an error without the values that PostgreSQL may quote in its message."""
    state = getattr(error, "sqlstate", None)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__} {state}" if state else type(error).__name__
