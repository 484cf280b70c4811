"""Stores keep sessions. `open` opens a store by its address; `look` opens one only for reading.

| address | store |
|---|---|
| `sqlite:///path`, `sqlite:////absolute/path`, or a plain path | a SQLite file |
| `memory:` or `memory` | memory; nothing is kept |

As with other libraries, three slashes begin a path relative to the current directory, and four an
absolute one. Every store keeps the contract of `bargein.contracts.store`.
"""

import re
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from bargein.contracts.event import Recorded
from bargein.contracts.store import Found, SessionHead, Store
from bargein.errors import UserError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_PASSWORD = re.compile(r"(?<=:)[^:@/]*(?=@)")


async def open(address: str | Path, *, owner: str | None = None) -> Store:  # noqa: A001
    """Open a store, and make it if it does not exist.

    `owner` is the name under which the store owns sessions; the default is a new name. The caller
    must already own the directory that `directory_of` returns. Raises `UserError` for an address
    that this version does not know.
    """
    path = _file_of(address)
    if path is None:
        from bargein.stores.memory import MemoryStore

        return MemoryStore() if owner is None else MemoryStore(owner)
    from bargein.stores.sqlite import SqliteStore

    return await SqliteStore.open(path, owner=owner)


def directory_of(address: str | Path) -> Path | None:
    """Return the directory that a process must own while it uses the store; None if it needs
    none."""
    path = _file_of(address)
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
    path = _file_of(address)
    if path is None:
        raise UserError(f"{address} keeps nothing, so there is nothing to read; name a file")
    from bargein.stores.sqlite.read_only import ReadOnlyStore, may_be_written

    if not may_be_written(path):
        return ReadOnlyStore(path)
    from bargein.stores.sqlite import SqliteStore

    return await SqliteStore.open(path)


def _file_of(address: str | Path) -> Path | None:
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
    shown = _PASSWORD.sub("***", address)
    if scheme in ("postgresql", "postgres"):
        return (
            f"{shown}: PostgreSQL is not in this version of Bargein. Use sqlite:///path, a plain "
            "path, or memory:"
        )
    return (
        f"{shown}: there is no store {scheme}. Use sqlite:///path, a plain path, or memory:; for "
        f"a file of that name write ./{shown}"
    )
