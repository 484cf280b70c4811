"""Stores keep sessions. `open` opens a store by its address; `look` opens one only for reading.

| address | store |
|---|---|
| `sqlite:///path`, `sqlite:////absolute/path`, or a plain path | a SQLite file |
| `postgresql://user@host/database` | a PostgreSQL database, which many machines can share |
| `memory:` or `memory` | memory; nothing is kept |

As with other libraries, three slashes begin a path relative to the current directory, and four an
absolute one. Every store keeps the contract of `bargein.contracts.store`.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from bargein.contracts.event import Recorded
from bargein.contracts.store import Found, SessionHead, Store
from bargein.errors import UserError

if TYPE_CHECKING:
    from bargein.stores.postgres import PostgresStore

POSTGRES = ("postgresql", "postgres")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_PASSWORD = re.compile(r"(?<=:)[^:@/]*(?=@)")


async def open(address: str | Path, *, owner: str | None = None) -> Store:  # noqa: A001
    """Open a store, and make it if it does not exist.

    `owner` is the name under which the store owns sessions; the default is a new name. The caller
    must already own the directory that `directory_of` returns. Raises `UserError` for an address
    that this version does not know.
    """
    if is_postgres(address):
        return await _postgres().open(str(address), owner=owner)
    path = file_of(address)
    if path is None:
        from bargein.stores.memory import MemoryStore

        return MemoryStore() if owner is None else MemoryStore(owner)
    from bargein.stores.sqlite import SqliteStore

    return await SqliteStore.open(path, owner=owner)


def directory_of(address: str | Path) -> Path | None:
    """Return the directory that a process must own while it uses the store; None if it needs
    none."""
    if is_postgres(address):
        from bargein.stores.postgres.address import parse_address

        _postgres()
        parse_address(str(address))
        return None
    path = file_of(address)
    return path.absolute().parent if path is not None else None


class ReadableStore(Protocol):
    """The operations of a store that `look` offers."""

    async def head(self, session: str) -> SessionHead | None: ...

    async def events(self, session: str, *, limit: int | None = None) -> list[Recorded]: ...

    async def sessions(self, *, limit: int) -> list[SessionHead]: ...

    async def search(self, words: str) -> list[Found]: ...

    async def aclose(self) -> None: ...


async def look(address: str | Path) -> ReadableStore:
    """Open a store for reading, even while another process owns it or where this user may not
    write."""
    if is_postgres(address):
        return await _postgres().open(str(address), joins=False)
    path = file_of(address)
    if path is None:
        raise UserError(f"{address} keeps nothing, so there is nothing to read; name a file")
    from bargein.stores.sqlite.read_only import ReadOnlyStore, may_be_written

    if not may_be_written(path):
        return ReadOnlyStore(path)
    from bargein.stores.sqlite import SqliteStore

    return await SqliteStore.open(path)


def shown(address: str | Path) -> str:
    """An address as messages may show it, without a password."""
    if is_postgres(address):
        from bargein.stores.postgres.address import without_password

        return without_password(str(address))
    return _PASSWORD.sub("***", str(address))


async def promises(store: ReadableStore) -> str:
    """What a server that keeps sessions promises if it fails; "" for a file."""
    replication = getattr(store, "replication", None)
    return await replication() if replication is not None else ""


def is_postgres(address: str | Path) -> bool:
    return isinstance(address, str) and address.partition("://")[0].lower() in POSTGRES


def _postgres() -> "type[PostgresStore]":
    try:
        from bargein.stores.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise UserError(
            "a PostgreSQL store needs the extra postgres: pip install 'bargein[postgres]'"
        ) from None
    return PostgresStore


def file_of(address: str | Path) -> Path | None:
    """Return the file that an address names; None for memory."""
    if isinstance(address, Path):
        return address
    if address in ("memory", "memory:"):
        return None
    found = _SCHEME.match(address)
    if found is None:
        if not address:
            raise UserError("a store's address is empty: give a path, sqlite:///path or memory:")
        return Path(address)
    if found[1].lower() == "sqlite":
        return _file_of_url(address)
    raise UserError(_unknown(address, found[1].lower()))


def _file_of_url(address: str) -> Path:
    path = unquote(address.partition("://")[2])
    if not path.startswith("/") or path == "/" or path.endswith("/"):
        raise UserError(f"{address} names no file: write sqlite:///path, or give a plain path")
    return Path(path[1:])


def _unknown(address: str, scheme: str) -> str:
    named = shown(address)
    return (
        f"{named}: there is no store {scheme}. Use postgresql://..., sqlite:///path, a plain path, "
        f"or memory:; for a file of that name write ./{named}"
    )
